package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"example.com/conductor/events/payload"
	"example.com/conductor/internal/must"
	"example.com/conductor/lab/bench/footprint"
	"example.com/conductor/lab/bench/ingest"
	"example.com/conductor/lab/harness"
)

// footprintOf measures a server, with flags, and publishers of this binary.
func footprintOf(t *testing.T, c footprint.Config, flags ...string) *footprint.Report {
	t.Helper()
	c.Server = func() *exec.Cmd {
		return server(t)(append([]string{"serve", "--listen", "127.0.0.1:0=conductor"}, flags...)...)
	}
	c.Publisher = func(hold int) *exec.Cmd {
		load, err := json.Marshal(ingest.Load{Sources: c.Sources, Blocks: c.EventBlocks, BlockSize: c.BlockSize, Hold: hold,
			Holders: c.Holders})
		must.Succeed(t, err)
		return command(t, "bench", "publisher", string(load))
	}
	r, err := footprint.Run(c)
	must.Succeed(t, err)
	return r
}

// A server that was filled over sockets says by part what its memory is for, when it is
// loaded and when it is idle, and loses nothing.
func TestMemoryIsAccountedFor(t *testing.T) {
	t.Parallel()
	if payload.PoisonsReleased {
		t.Skip("a race build takes memory that no part is for")
	}
	r := footprintOf(t, footprint.Config{
		Blocks: 512_000, Holders: 2, Sources: 8, EventBlocks: 64, BlockSize: 16, Churn: time.Second, Idle: time.Second,
	})
	// Two sources hold the same blocks. While the server is behind with one of them, there are more blocks.
	if r.Indexed < r.Blocks || r.Lost > 0 {
		t.Errorf("%d of %d blocks are indexed, %d gaps", r.Indexed, r.Blocks, r.Lost)
	}
	for _, s := range r.End {
		if s.RSS == 0 || float64(s.Explained()) < 0.9*float64(s.RSS) || float64(s.Explained()) > 1.3*float64(s.RSS) {
			t.Errorf("%s: parts are %d of %d bytes: %v", s.Phase, s.Explained(), s.RSS, s.Parts)
		}
		if s.Parts["index_pieces"] < 16*int64(r.Blocks) || s.Parts["index_names"] < 8*int64(r.Blocks) {
			t.Errorf("%s: the index takes less than its blocks: %v", s.Phase, s.Parts)
		}
	}
	if len(r.End) != 3 || len(r.Worst) != 3 {
		t.Errorf("%d phases", len(r.End))
	}
	var table bytes.Buffer
	if r.Table(&table); !strings.Contains(table.String(), "RSS / account") || !strings.Contains(table.String(), "index_pieces") {
		t.Errorf("%s", &table)
	}
	table.Reset()
	var back footprint.Report
	if err := harness.Print(&table, r, true); err != nil || json.Unmarshal(table.Bytes(), &back) != nil || back.End[2].RSS != r.End[2].RSS {
		t.Errorf("the JSON is %s, %v", &table, err)
	}
}

// Publishers that run ahead flood the server: what waits stays within the bound, and all of
// it is applied.
func TestFloodStaysInBound(t *testing.T) {
	t.Parallel()
	const limit = 8 << 20 // stream.queue_bytes_total; the publishers may be ahead by five times as much
	r := footprintOf(t, footprint.Config{
		Blocks: 16_000, Holders: 2, Sources: 16, EventBlocks: 64, BlockSize: 16, Churn: time.Second, Ahead: 500,
	}, "--max-payload", "1MiB", "--queue-bytes-total", "8MiB")
	if r.Lost > 0 {
		t.Errorf("%d gaps", r.Lost)
	}
	for _, s := range append(r.Worst, r.End...) {
		n := s.Parts["payloads"]
		t.Logf("%s: %d bytes of payloads wait", s.Phase, n)
		if n > limit/2+16*(16<<10) { // one message of each source fits in any case
			t.Errorf("%s: %d bytes of payloads wait, the limit is %d", s.Phase, n, limit/2)
		}
	}
}

func TestBenchMemoryRefuses(t *testing.T) {
	for _, args := range [][]string{{"--sources", "5"}, {"--blocks", "100"}, {"--holders", "0"}} {
		if _, err := runBench(t, append([]string{"memory", "--quiet", "--conductor", os.Args[0]}, args...)...); err == nil ||
			!strings.Contains(err.Error(), "multiple of holders") {
			t.Errorf("%q: %v", args, err)
		}
	}
}
