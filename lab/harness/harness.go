// Package harness holds the common parts of the benches and the simulated fleet: latencies,
// processes, reports, and the description of this machine.
//
// No symbol here knows which part of the product a bench measures.
package harness
