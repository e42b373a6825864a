package client

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
)

// Registration is a publisher to follow: the body of POST /register, see openapi.yaml. With Discover
// the engine tells endpoints, ranks, type, model and block size.
type Registration struct {
	Endpoint         string   `json:"endpoint,omitempty"`
	Discover         string   `json:"discover,omitempty"` // URL of the engine, in place of endpoints
	ReplayEndpoint   string   `json:"replay_endpoint,omitempty"`
	SnapshotEndpoint string   `json:"snapshot_endpoint,omitempty"`
	Type             string   `json:"type,omitempty"` // vLLM, SGLang, Mooncake, Standard or LMCache
	Model            string   `json:"modelname,omitempty"`
	Instance         string   `json:"instance_id"`
	Tenant           string   `json:"tenant_id,omitempty"`
	BlockSize        int      `json:"block_size,omitempty"`
	Rank             int      `json:"dp_rank"`
	Adapter          string   `json:"lora_name,omitempty"`
	Salt             string   `json:"additionalsalt,omitempty"`
	Aliases          []string `json:"aliases,omitempty"`  // further names of the model in queries
	Serves           []string `json:"serves,omitempty"`   // of a pool
	Sequence         string   `json:"sequence,omitempty"` // own or shared, where it is not that of the type
	// Events is "none" for an engine that publishes no KV events, which has no endpoints. CapacityBlocks is how
	// many blocks its cache has room for. Approximate "count" lets what routers report count as held.
	Events         string `json:"events,omitempty"`
	CapacityBlocks int    `json:"capacity_blocks,omitempty"`
	Approximate    string `json:"approximate,omitempty"`
	Replace        bool   `json:"replace,omitempty"`
}

// Register starts a source. The same registration twice is a success.
func (c *Client) Register(ctx context.Context, r Registration) error {
	return c.do(ctx, http.MethodPost, "/conductor/v1/register", r, new(json.RawMessage))
}

// Unregister ends a source and drops its blocks. One that is not there is an *Error with status 404.
func (c *Client) Unregister(ctx context.Context, instance, tenant string, rank int) error {
	body := map[string]any{"instance_id": instance, "dp_rank": rank}
	if tenant != "" {
		body["tenant_id"] = tenant
	}
	return c.do(ctx, http.MethodPost, "/conductor/v1/unregister", body, new(json.RawMessage))
}

// Service is one source of GET /services.
type Service struct {
	Endpoint, ReplayEndpoint, Type, ModelName, LoraName, TenantID, InstanceID string
	Events, Approximate                                                       string
	BlockSize, DPRank, CapacityBlocks                                         int
	State, Reason, LastError                                                  string
	Epoch                                                                     uint64
	LastSeq                                                                   *uint64
	Blocks                                                                    int
	AgeMs                                                                     *int64
	Gaps, Replayed, Restarts, Dropped                                         uint64
	Findings                                                                  []struct{ Code, Message string }
}

// Services returns the sources that the credentials may see.
func (c *Client) Services(ctx context.Context) ([]Service, error) {
	var answer struct{ Services []Service }
	err := c.do(ctx, http.MethodGet, "/conductor/v1/services", nil, &answer)
	return answer.Services, err
}

// Ready reports whether routers may rely on the answers.
func (c *Client) Ready(ctx context.Context) (bool, error) {
	err := c.once(ctx, jsonCodec, http.MethodGet, "/ready", nil, new(json.RawMessage))
	var refused *Error
	if errors.As(err, &refused) && refused.Status == http.StatusServiceUnavailable {
		return false, nil
	}
	return err == nil, err
}

// Feedback reports how many tokens of a prompt an answer promised of an instance, and how many it
// found.
func (c *Client) Feedback(ctx context.Context, instance, tenant, medium string, matched, cached int) error {
	body := map[string]any{"instance_id": instance, "matched_tokens": matched, "cached_tokens": cached}
	if tenant != "" {
		body["tenant_id"] = tenant
	}
	if medium != "" {
		body["medium"] = medium
	}
	return c.do(ctx, http.MethodPost, "/conductor/v1/feedback", body, new(json.RawMessage))
}
