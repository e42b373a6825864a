// Package meter reads the numbers of a running server, for Prometheus and for /admin/stats, the page and /ready: sources and
// their states, sizes of indexes, memory by part, and what became of the blocks that routers reported.
//
//	catalog, sources, matcher, memo, tape --Meter--> Services, Ready, Stats, Memory            values
//	                                          |----> Meter, ExpectedCollector, AgesCollector   series
//
// Invariants: reading changes nothing. A series exists as long as what it is about, so nothing of a source stays once it has
// left, except in sums of the fleet. Publishers and clients name adapters, tenants and models: the series of each are bounded,
// the rest is added up under "(others)".
//
// A Meter is safe for concurrent use and has no lock of its own. Services, Stats and Collect lock each index a few times and cost
// the number of sources and owners. Memory locks each index once, for as long as it takes to add up its sources and owners. Ready
// locks no index and costs the number of sources. None costs the number of blocks.
package meter
