package main

import (
	"runtime"

	"kvconductor/conductor/server"
	"kvconductor/config"
	"kvconductor/internal/memory"
)

// mostRequestBytes is the bound of bodies and answers in flight, unless the settings or a cgroup
// say otherwise: sixteen of the largest bodies, with the numbers in them.
const mostRequestBytes = 512 << 20

// requestBudget is the bound of bodies and answers in flight.
func requestBudget(limits config.Limits) *server.Budget {
	return server.NewBudget(requestBytes(limits))
}

// requestBytes is that bound in bytes, 0 for none.
func requestBytes(limits config.Limits) int64 {
	if limits.Memory == config.AutoSize {
		return min(memory.Fraction(8, mostRequestBytes), mostRequestBytes)
	}
	return limits.Memory
}

// connectionBounds are the bounds of open connections, of all clients and of one address.
func connectionBounds(limits config.Limits) (most, perAddress int) {
	if limits.ConnectionsPerAddress == config.AutoCount {
		return limits.MaxConnections, (limits.MaxConnections + 3) / 4
	}
	return limits.MaxConnections, limits.ConnectionsPerAddress
}

// queriesPerProcessor is how many queries are worked on at once for each processor. In
// its place a query waits for nothing but a processor, so that more of them only share
// it; several, because a short one shall pass those of a million tokens.
const queriesPerProcessor = 4

// admission is the bound of queries as configured.
func admission(limits config.Limits) *server.Admission {
	return server.NewAdmission(maxQueries(limits), limits.QueryWait)
}

// maxQueries is how many queries are worked on at once.
func maxQueries(limits config.Limits) int {
	if limits.MaxQueries > 0 {
		return limits.MaxQueries
	}
	return queriesPerProcessor * runtime.GOMAXPROCS(0)
}
