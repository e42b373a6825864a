package main

import (
	"runtime"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/server"
	"example.com/conductor/config"
	"example.com/conductor/internal/memory"
)

// mostRequestBytes is the bound of bodies and answers in flight, unless the settings say otherwise or
// there is little memory: sixteen of the largest bodies, with the numbers in them.
const mostRequestBytes = 512 << 20

// indexBytes is the bound of one index, or of all, that a setting says, 0 for none.
func indexBytes(setting int64) int64 {
	if setting != config.AutoSize {
		return setting
	}
	n, _ := memory.Available()
	return n / 2
}

// tellIndexBytes says at the start what all indexes may take, and who says so.
func tellIndexBytes(c config.Index, log zerolog.Logger) {
	from := "index.max_bytes_total"
	if c.MaxBytesTotal == config.AutoSize {
		_, from = memory.Available()
	}
	switch bytes := indexBytes(c.MaxBytesTotal); {
	case bytes > 0:
		log.Info().Int64("bytes", bytes).Str("from", from).Msg("memory that all indexes may take; beyond it new blocks are refused")
	case from != "":
		log.Info().Str("from", from).Msg("the indexes may take any memory")
	default:
		log.Warn().Msg("the indexes may take any memory: neither the cgroup nor the machine says how much there is; set " +
			"index.max_bytes_total")
	}
}

// requestBudget is the bound of bodies and answers in flight.
func requestBudget(limits config.Limits) *server.Budget {
	return server.NewBudget(requestBytes(limits))
}

// requestBytes is that bound in bytes, 0 for none.
func requestBytes(limits config.Limits) int64 {
	if limits.Memory == config.AutoSize {
		if n, _ := memory.Available(); n > 0 {
			return min(n/8, mostRequestBytes)
		}
		return mostRequestBytes
	}
	return limits.Memory
}

// connectionBounds are the bounds of open connections, of all clients and of one address.
func connectionBounds(limits config.Limits) (most, perAddress int) {
	most = roomOf(limits).connections
	if limits.ConnectionsPerAddress == config.AutoCount {
		return most, max((most+3)/4, min(most, fewConnections))
	}
	return most, limits.ConnectionsPerAddress
}

// queriesPerProcessor is how many queries are worked on at once for each processor. In
// its slot a query waits for nothing but a processor, so that more of them only share
// it; several, because a short one shall pass those of a million tokens.
const queriesPerProcessor = 4

// newAdmission is the bound of queries as configured.
func newAdmission(limits config.Limits) *server.Admission {
	return server.NewAdmission(maxQueries(), limits.QueryWait)
}

// maxQueries is how many queries are worked on at once.
func maxQueries() int {
	return queriesPerProcessor * runtime.GOMAXPROCS(0)
}
