package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"kvconductor/cmd/internal/harness"
)

// client asks a running server on behalf of the commands that print tables.
type client struct {
	base string
	http http.Client
}

func newClient(base string) *client {
	return &client{base: strings.TrimRight(base, "/"), http: http.Client{Timeout: 30 * time.Second}}
}

// get decodes the answer of GET path into out.
func (c *client) get(ctx context.Context, path string, out any) error {
	return c.do(ctx, http.MethodGet, path, nil, out)
}

// post sends in as JSON and decodes the answer into out.
func (c *client) post(ctx context.Context, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	return c.do(ctx, http.MethodPost, path, body, out)
}

func (c *client) do(ctx context.Context, method, path string, body []byte, out any) error {
	status, answer, err := harness.Ask(ctx, &c.http, method, c.base+path, body)
	if err != nil {
		return fmt.Errorf("no answer from %s: %w", c.base, err)
	}
	if status != http.StatusOK {
		var e struct{ Error string }
		if json.Unmarshal(answer, &e) == nil && e.Error != "" {
			return fmt.Errorf("%s%s answers %d: %s", c.base, path, status, e.Error)
		}
		return fmt.Errorf("%s%s answers %d", c.base, path, status)
	}
	return json.Unmarshal(answer, out)
}
