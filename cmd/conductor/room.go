package main

import (
	"fmt"
	"math"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/config"
	"example.com/conductor/internal/memory"
	"example.com/conductor/spelling"
)

// room is how many sources and connections of clients this process can have. Both take open files, so each has a share
// that the other cannot use up:
//
//	open files = ownFiles + sources + connections of clients
type room struct {
	sources     int
	by          ingest.Room // what leaves room for fewer sources than limits.max_sources
	connections int
	asked       int // engines that are asked over HTTP at a time
	limits      config.Limits
	files       int // open files that the process may have
}

const (
	// ownFiles is how many open files a server needs beside sources and clients: the listeners, files that it reads and
	// writes, connections to the store, to replicas and to the engines that are asked over HTTP, 8 replays and 4 snapshots of
	// engines. Where there are few, they are a third.
	ownFiles = 96
	// sourceMemory is what a source takes before it holds a block, with the garbage of the heap: 10,000 take 420 MB.
	sourceMemory = 44 << 10
	// A source may take so much of the memory, 3/8. The indexes have a half, if they fill.
	sourcesNumerator, sourcesDenominator = 3, 8
	// fewConnections may all be of one address.
	fewConnections = 64
	// enoughConnections are as many as the routers and dashboards of a large fleet keep open.
	enoughConnections = 1024
)

// Reasons of conductor_sources_refused_total.
const (
	reasonFiles  = "open_files"
	reasonMemory = "memory"
)

// roomOf measures what this process has room for.
func roomOf(limits config.Limits) room {
	bytes, _ := memory.Available()
	return roomFor(limits, openFiles(), bytes)
}

// openFiles is how many files this process may have open. The Go runtime has raised the soft limit to the hard one.
func openFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxInt
	}
	return int(min(limit.Cur, math.MaxInt32))
}

// roomFor is the room that some open files and bytes of memory leave, 0 for memory that is not known.
func roomFor(limits config.Limits, files int, bytes int64) room {
	r := room{sources: limits.MaxSources, limits: limits, files: files}
	if most := int(bytes / sourcesDenominator * sourcesNumerator / sourceMemory); bytes > 0 && r.sources > most {
		r.sources = most
		r.by = ingest.Room{Reason: reasonMemory, Text: fmt.Sprintf("the memory, %d MiB, is enough for %s: give the server more",
			bytes>>20, spelling.Count(most, "source"))}
	}
	own := min(ownFiles, files/3)
	shared := files - own
	if most := shared / 2; r.sources > most {
		r.sources = most
		r.by = ingest.Room{Reason: reasonFiles, Text: fmt.Sprintf("the limit of %d open files is enough for %s: raise it (ulimit -n, "+
			"LimitNOFILE)", files, spelling.Count(most, "source"))}
	}
	r.connections = min(fixed.Connections, shared-r.sources)
	r.asked = max(1, own/6)
	return r
}

// tell says at the start what there is room for, and warns if that is less than the settings allow.
func (r room) tell(log zerolog.Logger) {
	log.Info().Int("sources", r.sources).Int("connections", r.connections).Int("open_files", r.files).Msg(
		"room for sources and connections; beyond it registrations are refused, and connections without an admitted request closed")
	if r.by.Reason != "" {
		log.Warn().Int("max_sources", r.limits.MaxSources).Msg("fewer sources than limits.max_sources: " + r.by.Text)
	}
	if r.connections < enoughConnections {
		log.Warn().Int("connections", r.connections).Msg(fmt.Sprintf(
			"clients may have few connections: the limit of open files is %d, and %d would be enough",
			r.files, ownFiles+r.limits.MaxSources+enoughConnections))
	}
}

var (
	descSourcesRefused = prometheus.NewDesc("conductor_sources_refused_total",
		"Attempts to register a source, or to learn a block size from the events of an engine, for which there was no room, by reason: "+
			"max_sources, tenant (limits.max_tenant_sources), or what the process has: open_files, memory. An engine that waits for "+
			"room is tried again every 5 to 30 s.", []string{"reason"}, nil)
	descSourcesLimit = prometheus.NewDesc("conductor_sources_limit",
		"Sources that this server has room for: limits.max_sources, or fewer where open files or memory are not enough.", nil, nil)
)

// sourcesRoom exposes the room for sources to Prometheus.
type sourcesRoom struct{ places *ingest.Places }

// Describe implements prometheus.Collector.
func (sourcesRoom) Describe(ch chan<- *prometheus.Desc) {
	ch <- descSourcesRefused
	ch <- descSourcesLimit
}

// Collect implements prometheus.Collector.
func (s sourcesRoom) Collect(ch chan<- prometheus.Metric) {
	all, _ := s.places.Bounds()
	ch <- prometheus.MustNewConstMetric(descSourcesLimit, prometheus.GaugeValue, float64(all))
	for reason, n := range s.places.Refused() {
		ch <- prometheus.MustNewConstMetric(descSourcesRefused, prometheus.CounterValue, float64(n), reason)
	}
}
