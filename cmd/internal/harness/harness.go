// Package harness holds what every bench and the simulated fleet need: latencies,
// processes, reports, and what this machine tells of itself.
//
// No symbol here knows which part of the product a bench measures.
package harness
