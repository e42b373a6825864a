package discovery

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"example.com/conductor/conductor/registration"
)

// drafter says what an engine has told about its drafter.
type drafter uint8

const (
	drafterUnknown drafter = iota // the engine was not asked, or did not answer
	dropsNothing                  // it does not draft, or its drafter needs no block of a hit computed again
	dropsMaybe                    // it drafts, and does not say how
	dropsBlock                    // its drafter has the last block of each hit computed again
)

// draftsMetric is in the metrics of a vLLM that drafts tokens, from its start on. They do not say how it drafts.
const draftsMetric = "vllm:spec_decode_num_drafts"

// askDrafter asks a vLLM how it drafts tokens. Once the engine has told, it is not asked again until it restarts. If a question fails,
// the earlier answer stays, and the engine is not blamed.
//
// Only a server in development mode tells. Its first answer may take longer than the timeout, so it is asked again with each refresh.
func (m *Manager) askDrafter(ctx context.Context, client *http.Client, t *Target, base string, known *engine) drafter {
	running := known.next.IsZero()
	if t.Drafter != "" || running && (known.drafter == dropsNothing || known.drafter == dropsBlock) {
		return known.drafter
	}
	if !running || known.drafter == drafterUnknown {
		body, err := m.getBody(ctx, client, t, base+"/metrics")
		switch {
		case err != nil:
			return known.drafter
		case !bytes.Contains(body, []byte(draftsMetric)):
			return dropsNothing
		}
	}
	body, err := m.getBody(ctx, client, t, base+"/server_info?config_format=json")
	if err != nil {
		return max(known.drafter, dropsMaybe)
	}
	return drafterOf(body)
}

// drafterOf reads the answer of a vLLM that drafts tokens to GET /server_info?config_format=json.
func drafterOf(body []byte) drafter {
	var info struct {
		Config struct {
			Speculative struct {
				Method   string `json:"method"`
				Keeps    bool   `json:"disable_eagle_block_drop"`
				NotAhead *bool  `json:"disable_lookahead_block_hashes"` // since 0.33, which hashes ahead without a connector
			} `json:"speculative_config"`
			Connector *struct{} `json:"kv_transfer_config"`
		} `json:"vllm_config"`
	}
	if json.Unmarshal(body, &info) != nil {
		return dropsMaybe
	}
	s := &info.Config.Speculative
	switch s.Method {
	case "eagle", "eagle3", "mtp":
		if ahead := s.NotAhead != nil && !*s.NotAhead && info.Config.Connector == nil; s.Keeps || ahead {
			return dropsNothing
		}
		return dropsBlock
	case "ngram", "ngram_gpu", "medusa", "mlp_speculator", "draft_model", "suffix":
		return dropsNothing
	}
	return dropsMaybe
}

// learnDrafter puts what an engine has told of its drafter into the registration of its sources, and returns what to say of it.
func (e *engine) learnDrafter(found drafter, r *registration.Registration) (learned []string) {
	e.drafter = found
	if r.Drafter == "" && found == dropsBlock {
		r.Drafter = registration.DrafterDrops
		learned = append(learned, fmt.Sprintf("drafter %s (%s or %s if the model has sliding windows that drop it, too)", r.Drafter,
			registration.DrafterDropsInWindows, registration.DrafterDropsInAll))
	}
	return learned
}
