package ingest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"example.com/conductor/events"
	"example.com/conductor/events/wire"
	"example.com/conductor/internal/must"
	"example.com/conductor/lab/harness"
)

const publisherEnv = "CONDUCTOR_TEST_PUBLISHER" // a Load as JSON: be the other process

func TestMain(m *testing.M) {
	if text := os.Getenv(publisherEnv); text != "" {
		var l Load
		err := json.Unmarshal([]byte(text), &l)
		if err == nil {
			err = RunPublisher(l, os.Stdin, os.Stdout)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// Everything that is published arrives, in both ways to bound the index, and every
// figure is there.
func TestRunAppliesAll(t *testing.T) {
	for _, c := range []Config{
		{Load: Load{Sources: 1, Blocks: 8, BlockSize: 16, Hold: 512}, Duration: 200 * time.Millisecond},
		{Load: Load{Sources: 20, Blocks: 2, BlockSize: 4, Hold: 64, Clear: true}, Rate: 50, Duration: 200 * time.Millisecond},
	} {
		shape, err := json.Marshal(c.Load)
		must.Succeed(t, err)
		c.Publisher = func() *exec.Cmd {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), publisherEnv+"="+string(shape))
			return cmd
		}
		r, err := Run(c)
		must.Succeed(t, err)
		if r.BatchesLost > 0 || r.Unsynced > 0 {
			t.Errorf("lost %d batches, %d sources not synced", r.BatchesLost, r.Unsynced)
		}
		var out bytes.Buffer
		must.Succeed(t, harness.Print(&out, r, true))
		var figures map[string]float64
		must.Succeed(t, json.Unmarshal(out.Bytes(), &figures))
		for _, key := range []string{"blocks_per_sec", "batches_per_sec", "bytes_per_sec", "lag_p99_ms", "allocs_per_block",
			"peak_rss_bytes"} {
			if figures[key] <= 0 {
				t.Errorf("%s is %v", key, figures[key])
			}
		}
	}
}

// Patched messages are what an engine would have encoded.
func TestMessageIsPatched(t *testing.T) {
	for _, clear := range []bool{false, true} {
		l := Load{Sources: 3, Blocks: 4, BlockSize: 8, Hold: 40, Clear: clear}
		s := NewStamper(l, 2)
		seen := make(map[uint64]bool)
		for seq := uint64(0); seq < 30; seq++ {
			wireBytes := s.stampedMessage(seq)
			b, err := wire.Decode(wireBytes[seqAt+8+9:], wire.DefaultLimits)
			must.Succeed(t, err)
			if clear && seq%10 == 0 {
				if len(b.Events) != 1 || b.Events[0].Kind != events.Cleared {
					t.Errorf("batch %d does not clear", seq)
				}
				continue
			}
			stored := b.Events[0]
			if len(stored.Hashes) != 4 || len(stored.Tokens) != 32 || time.Since(time.Unix(0, int64(b.Time*1e9))) > time.Minute {
				t.Errorf("batch %d: %+v", seq, stored)
			}
			if !slices.Equal(s.TokensOf(seq), stored.Tokens) {
				t.Errorf("batch %d stores %d, not the tokens %d", seq, stored.Tokens, s.TokensOf(seq))
			}
			for _, h := range stored.Hashes {
				if seen[h] {
					t.Errorf("batch %d stores a block that is not new", seq)
				}
				seen[h] = true
			}
			if !clear && seq >= 10 {
				for _, h := range b.Events[1].Hashes {
					if !seen[h] {
						t.Errorf("batch %d removes what was never stored", seq)
					}
				}
			}
		}
	}
}

// A batch is the same bytes each time, from any Stamper of its source: followers compare a
// replayed batch with the one that they have heard.
func TestPayloadIsTheSame(t *testing.T) {
	l := Load{Sources: 3, Blocks: 4, BlockSize: 8, Hold: 40}
	s := NewStamper(l, 2)
	for seq := range uint64(30) {
		s.stampedMessage(seq + 7)
		if first := bytes.Clone(s.StampPayload(seq)); !bytes.Equal(first, NewStamper(l, 2).StampPayload(seq)) {
			t.Fatalf("batch %d differs", seq)
		}
	}
}
