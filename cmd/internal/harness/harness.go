// Package harness holds what every bench and the simulated fleet need: latencies,
// processes, reports, and what this machine tells of itself.
//
// Nothing here knows what is measured.
package harness
