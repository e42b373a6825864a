package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// TestStatesAreLogged reads the log of a server whose engine publishes, leaves a gap that nothing
// fills, and vanishes.
func TestStatesAreLogged(t *testing.T) {
	t.Parallel()
	e := newRuledEngine(t, "engine", 0)
	p := serveProcess(t, fmt.Sprintf("stream: {stale_after: 1s}\nsources:\n"+
		"  - {endpoint: 'tcp://%s', type: vLLM, modelname: m, instance_id: engine, block_size: %d}\n", e.pub.Addr(), recordedBlock))
	e.publish(ruledStored(0, 1))
	e.settled(p)
	e.seq += 5
	e.publish(ruledStored(1, 2))
	e.settled(p)
	e.pub.Close()
	// Where each change came from depends on which of connection and batch was seen first.
	want := []string{"info synced", "warn partial gap_unrecoverable", "warn connecting", "warn stale"}
	eventually(t, "the log has no line for each change", func() (string, bool) {
		left := want
		for line := range strings.Lines(p.log()) {
			var l struct{ Level, Source, From, To, Reason string }
			if json.Unmarshal([]byte(line), &l) != nil || l.To == "" {
				continue
			}
			if l.Source != "engine|default|0" {
				t.Errorf("a line is about source %q", l.Source)
			}
			if line := fmt.Sprint(l.Level, " ", l.To, " ", l.Reason); len(left) > 0 && strings.HasPrefix(line, left[0]) {
				left = left[1:]
			}
		}
		return p.log(), len(left) == 0
	})
}
