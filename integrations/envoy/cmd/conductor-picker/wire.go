package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/client"
	"example.com/conductor/integrations/envoy/pick"
	"example.com/conductor/integrations/envoy/tokens"
)

// newChooser makes the chooser that the settings ask for. It is the only place that knows both.
func newChooser(s *settings, registry prometheus.Registerer, log zerolog.Logger) (chooser, error) {
	// Without retries, because a request waits.
	options := []client.Option{client.WithRetries(0), client.WithMsgpack(),
		client.WithTransport(func(t http.RoundTripper) http.RoundTripper { return traced{t} })}
	if s.tokenFile != "" {
		if _, err := readSecret(s.tokenFile); err != nil {
			return nil, fmt.Errorf("--conductor-token-file: %w", err)
		}
		options = append(options, client.WithTokens(func() (string, error) { return readSecret(s.tokenFile) }))
	}
	conductor, err := client.New(s.conductor, options...)
	if err != nil {
		return nil, fmt.Errorf("--conductor: %w", err)
	}
	tokenizer := tokens.Options{
		URL: s.tokenizer, Render: s.tokenizerRender, Timeout: s.tokenizerTimeout, CacheBytes: int64(s.tokenCache),
	}
	if s.tokenCache == 0 {
		tokenizer.CacheBytes = -1 // 0 is the default there, and none here
	}
	if s.tokenizerKeyFile != "" {
		if tokenizer.Key, err = readSecret(s.tokenizerKeyFile); err != nil {
			return nil, fmt.Errorf("--tokenizer-key-file: %w", err)
		}
	}
	fallbacks := s.fallbacks
	if fallbacks == 0 {
		fallbacks = -1 // likewise
	}
	others := s.othersEvery
	if others == 0 {
		others = -1 // likewise
	}
	return pick.New(pick.Options{
		Conductor: conductor, Tenant: s.tenant, Tokenizer: tokenizer,
		Weights:  pick.Weights{Compute: s.weights[0], Wait: s.weights[1], Load: s.weights[2]},
		Patience: s.patience, Fallbacks: fallbacks, MaxTokensInFlight: s.maxTokensInFlight, MaxWaiting: s.maxWaiting,
		LeaveFor: s.leaveFor, ScrapeEvery: s.scrapeEvery, OthersEvery: others, NoFeedback: s.noFeedback,
		Log: &log, Metrics: registry,
	})
}

// traced sends the trace context of the request for which Conductor is asked, so that the spans of Conductor are in the same trace.
type traced struct{ http.RoundTripper }

func (t traced) RoundTrip(r *http.Request) (*http.Response, error) {
	if parent := pick.Traceparent(r.Context()); parent != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Traceparent", parent)
	}
	return t.RoundTripper.RoundTrip(r)
}

// readSecret returns what a file has, without the space around it.
func readSecret(file string) (string, error) {
	text, err := os.ReadFile(file) // #nosec G703 -- a file that the operator names
	if err != nil {
		return "", err
	}
	secret := strings.TrimSpace(string(text))
	if secret == "" {
		return "", fmt.Errorf("%q is empty", file)
	}
	return secret, nil
}
