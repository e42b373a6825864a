package discovery

import (
	"fmt"
	"strings"
	"testing"

	"example.com/conductor/conductor/doctor"
)

// TestDrafterOf holds that only what a server says for certain is taken for certain.
func TestDrafterOf(t *testing.T) {
	f := func(config string, want drafter) {
		t.Helper()
		if got := drafterOf([]byte(`{"vllm_config":` + config + `}`)); got != want {
			t.Errorf("%s is %d, want %d", config, got, want)
		}
	}
	f(`{"speculative_config":{"method":"eagle3"},"kv_transfer_config":null}`, dropsBlock)
	f(`{"speculative_config":{"method":"mtp","disable_eagle_block_drop":true}}`, dropsNothing)
	f(`{"speculative_config":{"method":"mtp","disable_lookahead_block_hashes":false},"kv_transfer_config":null}`, dropsNothing)
	f(`{"speculative_config":{"method":"mtp","disable_lookahead_block_hashes":true},"kv_transfer_config":null}`, dropsBlock)
	f(`{"speculative_config":{"method":"eagle","disable_lookahead_block_hashes":false},"kv_transfer_config":{"kv_connector":"X"}}`,
		dropsBlock)
	f(`{"speculative_config":{"method":"ngram"}}`, dropsNothing)
	f(`{"speculative_config":{"method":"later"}}`, dropsMaybe)
	f(`{"speculative_config":null}`, dropsMaybe)
	f(`"speculative_config=SpeculativeConfig(method='eagle')"`, dropsMaybe)
}

// TestDrafterIsLearned holds that a registration has the drafter that an engine tells, that one which only drafts gets a hint, and
// that a registration which names it wins.
func TestDrafterIsLearned(t *testing.T) {
	f := newFleet(t, nil, "127.0.0.1", "127.0.0.2", "127.0.0.3")
	for i := range 3 {
		at := fmt.Sprintf("127.0.0.%d", i+1)
		f.answer(at, "/v1/models", `{"data":[{"id":"llama"}]}`)
		f.answer(at, "/kv_event_sources", `{"0":{"endpoint":"tcp://*:7000"}}`)
		f.answer(at, "/metrics", "vllm:num_requests_running 0\nvllm:spec_decode_num_drafts_total{engine=\"0\"} 0.0\n")
	}
	f.answer("127.0.0.3", "/metrics", "vllm:num_requests_running 0\n")
	f.add("127.0.0.1", func(t *Target) { t.Instance = "maybe" })
	f.add("127.0.0.2", func(t *Target) { t.Instance = "named"; t.Drafter = "drops_last_block" })
	f.add("127.0.0.3", func(t *Target) { t.Instance = "none" })
	want := func(instance, drafter, says string) {
		t.Helper()
		for _, s := range f.c.Services() {
			if s.Instance != instance {
				continue
			}
			text := ""
			for _, found := range s.Findings {
				if found.Code == doctor.FindingLearned {
					text = found.Message
				}
			}
			if s.Registration.Drafter != drafter || !strings.Contains(text, says) || says == "" && strings.Contains(text, "draft") {
				t.Errorf("%s has the drafter %q and says %q, want %q and %q", instance, s.Registration.Drafter, text, drafter, says)
			}
			return
		}
		t.Errorf("there is no %s", instance)
	}
	want("maybe", "", "register it with drafter: drops_last_block")
	want("named", "drops_last_block", "")
	want("none", "", "")

	// A server in development mode tells it, with the next refresh if its first answer took too long.
	f.answer("127.0.0.1", "/server_info", `{"vllm_config":{"speculative_config":{"method":"eagle3"}}}`)
	f.pass(maxRefresh)
	want("maybe", "drops_last_block", "told model \"llama\" and drafter drops_last_block")
	// The answer stays until the engine restarts, also while the engine does not reply.
	f.answer("127.0.0.1", "/metrics", "")
	f.answer("127.0.0.1", "/server_info", "")
	f.pass(maxRefresh)
	want("maybe", "drops_last_block", "drafter drops_last_block")
}
