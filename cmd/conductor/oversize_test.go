package main

import (
	"encoding/json"
	"fmt"
	"testing"

	"example.com/conductor/internal/must"
	"example.com/conductor/lab/sim/engine"
)

// TestOversizeBatchOverSockets publishes a batch that is larger than limits.max_payload, to a server that
// follows the engine and to one that is replayed it. It costs itself alone.
func TestOversizeBatchOverSockets(t *testing.T) {
	t.Parallel()
	const config = "limits: {max_payload: 4KiB}\n"
	p := serveProcess(t, config)
	e := recordEngine(t, p, "a", 7)
	check := func(p *process) {
		t.Helper()
		type row struct {
			State, Reason              string
			LastSeq, Epoch, Reconnects uint64
			DroppedBy                  map[string]int
		}
		want := row{"partial", "batch_too_large", 2, 1, 0, map[string]int{"too_large": 1}}
		eventually(t, "the batch behind the large one was not applied", func() (string, bool) {
			rows, body := servicesOf[row](t, p.url)
			return body, len(rows) == 1 && fmt.Sprint(rows[0]) == fmt.Sprint(want)
		})
		tokens, err := json.Marshal(recordedTokens(3))
		must.Succeed(t, err)
		if got := matched(answerOf(t, p.url, fmt.Sprintf(`{"model":"m","block_size":%d,"token_ids":%s}`, recordedBlock, tokens))); got !=
			"48" {
			t.Errorf("%s tokens of the batches around it are found", got)
		}
	}
	e.publish(engine.Stored, 0, 1)
	e.settle(p, "a")
	e.publish(engine.Stored, 10, 2010)
	e.publish(engine.Stored, 1, 3)
	check(p)
	late := serveProcess(t, config)
	e.register(late, "a")
	check(late)
}
