package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"example.com/conductor/internal/request"
)

// client speaks the Conductor dialect.
type client struct {
	base string
	http *http.Client
	// Of several servers: http asks them in turn, direct the one that the URL names.
	servers *Servers // nil for one
	direct  *http.Client
}

// requestTimeout bounds one HTTP exchange; the longest prompts of the traces
// are answered in milliseconds.
const requestTimeout = 30 * time.Second

func newClient(c *Config, inFlight int) (*client, error) {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = inFlight + 1
	t.DisableCompression = true
	if c.Servers != nil {
		t.ResponseHeaderTimeout = answersWithin
	}
	var to http.RoundTripper = t
	if c.Wrap != nil {
		var err error
		if to, err = c.Wrap(t); err != nil {
			return nil, err
		}
	}
	made := &client{base: strings.TrimRight(c.Server, "/"), http: &http.Client{Transport: to, Timeout: requestTimeout}, servers: c.Servers}
	if c.Servers != nil {
		made.base, made.direct = "http://servers", made.http
		made.http = &http.Client{Transport: &turns{c.Servers, to}, Timeout: requestTimeout}
	}
	return made, nil
}

// registration is the body of /register and /unregister.
type registration struct {
	Endpoint       string `json:"endpoint"`
	ReplayEndpoint string `json:"replay_endpoint,omitempty"`
	Type           string `json:"type"`
	Model          string `json:"modelname"`
	Instance       string `json:"instance_id"`
	Tenant         string `json:"tenant_id"`
	BlockSize      int    `json:"block_size"`
	Rank           int    `json:"dp_rank"`
	// Serves names the instances that the blocks of a pool count for; empty for all.
	Serves []string `json:"serves,omitempty"`
	// Reports is full for an engine that announces blocks again which it reuses.
	Reports string `json:"reports,omitempty"`
	// Clear is all for an engine whose reset clears all of its tiers.
	Clear string `json:"clear,omitempty"`
	// Address is where the engine would take requests.
	Address string `json:"address,omitempty"`
	// Replace moves a registration an earlier, killed run left behind.
	Replace bool `json:"replace"`
}

// keyOf returns the server's key of a registration.
func keyOf(instance, tenant string, rank int) string {
	return fmt.Sprintf("%s|%s|%d", instance, tenant, rank)
}

func (g registration) key() string { return keyOf(g.Instance, g.Tenant, g.Rank) }

func (f *Fleet) registration(r *rank) registration {
	live, replay := r.endpoints()
	reports, address := "", ""
	if r.traits.Report {
		reports = "full"
	}
	if f.Address != nil {
		address = f.Address(r.instance.first / f.Ranks)
	}
	return registration{
		Endpoint:       live,
		ReplayEndpoint: replay,
		Type:           r.registerAs,
		Model:          f.Model,
		Instance:       r.instance.id,
		Tenant:         f.Tenant,
		BlockSize:      f.BlockSize,
		Rank:           r.n,
		Reports:        reports,
		Clear:          "all", // see engine.Clear
		Address:        address,
		Replace:        true,
	}
}

// answer is the response of /query: tenant, instance, row.
type answer map[string]map[string]*row

// UnmarshalJSON implements json.Unmarshaler. While no source of a model is registered, the answer has
// a list of warnings in place of rows.
func (a *answer) UnmarshalJSON(text []byte) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return err
	}
	delete(fields, "warnings")
	*a = make(answer, len(fields))
	for tenant, raw := range fields {
		var rows map[string]*row
		if err := json.Unmarshal(raw, &rows); err != nil {
			return err
		}
		(*a)[tenant] = rows
	}
	return nil
}

// row is the server's answer about one instance. Pointers tell absent from 0.
type row struct {
	Longest   *int                `json:"longest_matched"`
	GPU       *int                `json:"GPU"`
	CPU       *int                `json:"CPU"`
	Disk      *int                `json:"DISK"`
	DP        map[string]*int     `json:"DP"`
	Ranks     map[string]*cascade `json:"rank_matches"`
	Truncated bool                `json:"truncated"`
	Detail    map[string]detail   `json:"detail"`
	Pools     map[string]detail   `json:"pools"` // by key of the registration
}

type cascade struct {
	GPU  *int `json:"gpu"`
	CPU  *int `json:"cpu"`
	Disk *int `json:"disk"`
}

type detail struct {
	State     string `json:"state"`
	Reason    string `json:"reason"`
	Watermark *int64 `json:"watermark"`
}

// service is the part of a /services row the simulation reads.
type service struct {
	Instance string `json:"InstanceID"`
	Tenant   string `json:"TenantID"`
	Rank     int    `json:"DPRank"`
	State    string `json:"State"`
	Reason   string `json:"Reason"`
	LastSeq  *int64 `json:"LastSeq"`
	Gaps     int    `json:"Gaps"`
	Replayed int    `json:"Replayed"`

	Epoch      uint64 `json:"Epoch"`
	Restarts   int    `json:"Restarts"`
	Overruns   int    `json:"Overruns"`
	Reconnects int    `json:"Reconnects"`
}

// reach returns an error in one sentence if there is no server to ask.
func (c *client) reach(ctx context.Context) error {
	status, got, err := request.Do(ctx, c.http, http.MethodGet, c.base+"/health", nil)
	switch {
	case err != nil && c.servers != nil:
		return fmt.Errorf("none of the servers answers: %w", err)
	case err != nil:
		return request.Explain(c.base, err)
	case status != http.StatusOK:
		return fmt.Errorf("cannot use the server at %s: %w", c.base, &statusError{status, shorten(got, 300)})
	}
	return nil
}

// post sends a registration to /register or /unregister.
func (c *client) post(ctx context.Context, path string, r registration) error {
	body, err := json.Marshal(r)
	if err == nil {
		_, err = c.do(ctx, http.MethodPost, path, body)
	}
	return err
}

// services returns the server's sources by key; of several servers the row of the one that is
// furthest. Servers that fail are left out.
func (c *client) services(ctx context.Context) (map[string]service, error) {
	if c.servers == nil {
		return c.ownServices(ctx)
	}
	all := make(map[string]service)
	for _, u := range c.servers.well() {
		one, err := (&client{base: u.String(), http: c.direct}).ownServices(ctx)
		if err != nil {
			c.servers.fail(u, false)
			continue
		}
		for key, s := range one {
			if other, ok := all[key]; !ok || seqOf(other.LastSeq) < seqOf(s.LastSeq) {
				all[key] = s
			}
		}
	}
	return all, nil
}

// ownServices returns the sources that one server follows.
func (c *client) ownServices(ctx context.Context) (map[string]service, error) {
	body, err := c.do(ctx, http.MethodGet, "/services", nil)
	if err != nil {
		return nil, err
	}
	var s struct {
		Services []service `json:"services"`
	}
	if err := json.Unmarshal(body, &s); err != nil {
		return nil, fmt.Errorf("cannot read the answer of /services: %w", err)
	}
	known := make(map[string]service, len(s.Services))
	for _, s := range s.Services {
		known[keyOf(s.Instance, s.Tenant, s.Rank)] = s
	}
	return known, nil
}

func (c *client) query(ctx context.Context, body []byte) (answer, error) {
	got, err := c.do(ctx, http.MethodPost, "/query?detail=1", body)
	if err != nil {
		return nil, err
	}
	var a answer
	if err := json.Unmarshal(got, &a); err != nil {
		return nil, fmt.Errorf("cannot read the answer of /query: %w", err)
	}
	return a, nil
}

// do returns the body of a 200 and an error for anything else.
func (c *client) do(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	status, got, err := request.Do(ctx, c.http, method, c.base+path, body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("%s %s: %w", method, path, &statusError{status, shorten(got, 300)})
	}
	return got, nil
}

// statusError is an answer other than 200.
type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string { return fmt.Sprintf("status %d: %s", e.status, e.text) }

func shorten(b []byte, most int) string {
	s := strings.TrimSpace(string(b))
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// queryHead renders the body of /query up to its tokens.
func (c *Config) queryHead() []byte {
	model, _ := json.Marshal(c.Model) // a string always has a JSON form
	tenant, _ := json.Marshal(c.Tenant)
	return fmt.Appendf(nil, `{"model":%s,"tenant_id":%s,"block_size":%d,"token_ids":[`, model, tenant, c.BlockSize)
}

// appendQuery renders the rest.
func appendQuery(b []byte, tokens []uint32) []byte {
	return append(appendTokens(b, tokens), `]}`...)
}

func appendTokens(b []byte, tokens []uint32) []byte {
	for i, t := range tokens {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(t), 10)
	}
	return b
}
