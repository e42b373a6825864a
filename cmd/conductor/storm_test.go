package main

import (
	"fmt"
	"strings"
	"testing"
)

// TestEnginesBehindOneForwarder has two engines publish through one socket, as a forwarder (XSUB/XPUB)
// has them: their batches come in turns, each with the next number of its engine.
func TestEnginesBehindOneForwarder(t *testing.T) {
	t.Parallel()
	e := newRuledEngine(t, "engine", 0)
	p := serveProcess(t, fmt.Sprintf("sources:\n  - {endpoint: 'tcp://%s', type: vLLM, modelname: m, instance_id: engine, "+
		"block_size: %d}\n", e.pub.Addr(), recordedBlock))
	type row struct {
		State, Reason string
		Restarts      int
		Findings      []struct{ Code, Message string }
	}
	at := [2]uint64{1000, 50}
	speak := func() {
		for i := range at {
			e.seq = at[i]
			e.publish(ruledStored(0, 1))
			at[i]++
		}
	}
	eventually(t, "no storm is found", func() (string, bool) {
		speak()
		rows, body := servicesOf[row](t, p.url)
		return body, len(rows) == 1 && rows[0].State == "partial" && rows[0].Reason == "restart_storm" && len(rows[0].Findings) == 1 &&
			rows[0].Findings[0].Code == "restart_storm" && strings.Contains(rows[0].Findings[0].Message, "bind:tcp://")
	})
	for range 100 {
		speak()
	}
	rows, _ := servicesOf[row](t, p.url)
	if n := strings.Count(p.log(), "blocks of the source dropped"); n > maxDropLines || rows[0].Restarts > 10 {
		t.Errorf("%d lines tell of dropped blocks, and %d restarts were seen", n, rows[0].Restarts)
	}
}

// maxDropLines is how many lines about dropped blocks one source may have in a minute.
const maxDropLines = 6
