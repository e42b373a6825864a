package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/rs/zerolog"
	"github.com/vmihailenco/msgpack/v5"

	kvconductor "example.com/conductor"
	"example.com/conductor/compat/dynamo"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"
	conductorhttp "example.com/conductor/conductor/http"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/watch"
	"example.com/conductor/config"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/stream/streamtest"
	"example.com/conductor/internal/must"
	"example.com/conductor/tiers"
)

// hostileNames are what a publisher, an engine or a client may call things.
var hostileNames = []string{
	`"`, `\`, `{"`, `":0},"plain":{"longest_matched":999,"x":{"`, "a\x00b", "a\x1b[2J", "a\nb",
	"a\r\n\r\nb", "a\tb", "\u2028", "\u202e", "\u009b31m",
	"longest_matched", "DP", "MEDIUM_DP", "MEDIUM_MEDIUM_DP", "detail", "pools",
	"__proto__", "constructor", "warnings", "error", "null", "true",
	"<script>alert(1)</script>", "&amp;", "a|default|0", "%s%d%!",
	"\xff", "a\xfe", "\xed\xa0\x80", "é", "ß", strings.Repeat("x", 64), strings.Repeat("é", 32),
	"data: x\n\nevent: y", "7", "-1", "0x1", "1e3", "a,b", "a=b", "a{b}", " ", "\ufeff", "ＧＰＵ",
}

// FuzzNames gives names from outside to everything that has one, and reads every answer of every dialect back: each is
// whole, no key is there twice, and the rows are those of the instances that are there, with their numbers.
func FuzzNames(f *testing.F) {
	for i, name := range hostileNames {
		f.Add("b", name, "t", "m", "s") // a publisher may call a medium what no client may call an instance
		f.Add(name, hostileNames[(i+1)%len(hostileNames)], name, name, name)
		f.Add(name, "T", "t", "m", "") // the Dynamo dialect knows no salts
	}
	f.Fuzz(func(t *testing.T, instance, medium, tenant, modelName, salt string) {
		if instance == "" || instance == "plain" || tenant == "" || modelName == "" || len(medium) > 64 ||
			medium == instance || medium == "plain" || // which is unregistered below
			len(instance)+len(tenant)+len(modelName)+len(salt) > 256 {
			t.Skip()
		}
		synctest.Test(t, func(t *testing.T) { testNames(t, instance, medium, tenant, modelName, salt) })
	})
}

func testNames(t *testing.T, instance, medium, tenant, modelName, salt string) {
	var logged bytes.Buffer
	log := zerolog.New(zerolog.SyncWriter(&logged))
	n := new(streamtest.Network)
	c := conductor.New(conductor.Options{HashSeed: 1337, KeepClientHashes: true, Log: log, Stream: stream.Config{Transport: n}})
	defer c.Close()
	hub := watch.New(watch.Config{Conductor: c, Version: "test", Viewers: 2, KeepQueries: true})
	defer hub.Close()
	d := dynamo.New(dynamo.Config{Conductor: c, MaxTokens: 64, Log: log})
	registry := prometheus.NewRegistry()
	registry.MustRegister(c.Meter(), c.Meter().ExpectedCollector(), d)
	h := dialectHandler(config.Conductor, c, d, admin.Options{
		Dialect: conductorhttp.Options{MaxBody: 1 << 16, MaxTokens: 64, Version: "test"}, OpenAPI: kvconductor.OpenAPI,
		Gatherer: registry, Watch: hub, Log: log,
	})

	// Two instances. The hostile one holds a block more.
	valid := utf8.ValidString(instance + tenant + modelName + salt)
	for i, name := range []string{"plain", instance} {
		r := registration.Registration{Endpoint: fmt.Sprintf("tcp://e:%d", i+1), Type: registration.TypeVLLM, Model: modelName,
			Instance: name,
			Tenant:   tenant, Salt: salt, BlockSize: 2}
		err := c.Register(r, ingest.RegisterOptions{})
		if field := new(invalid.FieldError); errors.As(err, &field) && !valid {
			continue
		}
		must.Succeed(t, err)
		if !utf8.ValidString(name + tenant + modelName + salt) {
			t.Fatalf("%q is registered", r.Key())
		}
		synctest.Wait()
		hashes, tokens := []int{1, 2}[:i+1], []int{1, 1, 2, 2}[:2*i+2]
		n.PublisherAt(r.Endpoint).Publish(streamtest.EncodeBatch(0.5, 0,
			map[string]any{"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": nil, "token_ids": tokens, "block_size": 2,
				"lora_id": nil, "medium": "GPU"},
			map[string]any{"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": nil, "token_ids": tokens, "block_size": 2,
				"lora_id": nil, "medium": medium},
			map[string]any{"type": "BlockStored", "block_hashes": []int{7}, "parent_block_hash": 99, "token_ids": []int{3, 3},
				"block_size": 2,
				"lora_id":    nil, "medium": medium, "lora_name": medium, "cache_salt": salt, "group_idx": 3, "kv_cache_spec_kind": medium},
			map[string]any{"type": medium, "block_hashes": []int{1}, "medium": medium},
		))
	}
	synctest.Wait()

	request := func(fields map[string]any) map[string]any {
		for name, v := range map[string]any{"model": modelName, "tenant_id": tenant, "block_size": 2, "cache_salt": salt} {
			if _, given := fields[name]; !given {
				fields[name] = v
			}
		}
		return fields
	}
	prompt := []int{1, 1, 2, 2}
	query := request(map[string]any{"token_ids": prompt})
	answers := func(method, target string, body any, packed bool, accept string) any {
		t.Helper()
		text, kind := []byte(nil), ""
		if body != nil {
			kind = "application/json"
			if text = asJSON(body); packed {
				var b bytes.Buffer
				must.Succeed(t, msgpack.NewEncoder(&b).Encode(body))
				kind, text = "application/msgpack", b.Bytes()
			}
		}
		r := httptest.NewRequest(method, target, bytes.NewReader(text))
		if kind != "" {
			r.Header.Set("Content-Type", kind)
		}
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		what := fmt.Sprintf("%s %s: %d %s %q", method, target, w.Code, w.Header().Get("Content-Type"), w.Body)
		if w.Code == http.StatusInternalServerError {
			t.Fatal(what)
		}
		var answer any
		var err error
		switch media, _, _ := strings.Cut(w.Header().Get("Content-Type"), ";"); media {
		case "application/json":
			answer, err = strictJSON(w.Body.Bytes())
		case "application/msgpack":
			answer, err = strictMsgpack(w.Body.Bytes())
		case "application/x-ndjson":
			for line := range bytes.Lines(w.Body.Bytes()) {
				if _, err = strictJSON(line); err != nil {
					break
				}
			}
		case "text/plain":
			if strings.HasPrefix(target, "/metrics") {
				parser := expfmt.NewTextParser(model.UTF8Validation)
				_, err = parser.TextToMetricFamilies(w.Body)
			}
		}
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		return answer
	}

	// Whatever the names are, each answer of each route can be read.
	mediumName := tiers.ParseMedium(medium).Name
	ask := []struct {
		target string
		body   any
	}{
		{"/conductor/v1/query?detail=1", query}, {"/query?dialect=v2", query},
		{"/query_by_hash?detail=1", request(map[string]any{"seq_hashes": []uint64{1}})},
		{"/query_batch?detail=1", map[string]any{"queries": []any{query, map[string]any{"model": instance, medium: medium}}}},
		{"/query?detail=1", request(map[string]any{"token_ids": prompt, "expected": true, "instance_id": instance, salt: medium})},
		{"/query?detail=1&strict=1", request(map[string]any{"token_ids": prompt, salt: medium})},
		{"/routed?detail=1", request(map[string]any{"token_ids": []int{5, 5}, "instance_id": instance, "request_id": medium})},
		{"/routed", request(map[string]any{"token_ids": []int{5, 5}, "instance_id": salt + medium})},
		{"/feedback", map[string]any{"instance_id": instance, "tenant_id": tenant, "medium": medium, "matched_tokens": 4,
			"cached_tokens": 4}},
		{"/admin/explain", query}, {"/admin/explain", request(map[string]any{"token_ids": []int{9, 9}, "lora_name": medium})},
		{"/register", map[string]any{"instance_id": instance, "tenant_id": tenant, "endpoint": medium, "type": salt, "modelname": modelName,
			"block_size": 2, "dp_rank": 0, "lora_name": medium, "ttl": map[string]any{medium: "1h"}}},
		{"/register", map[string]any{"instance_id": instance, "tenant_id": tenant, "endpoint": "tcp://e:9", "type": "vLLM",
			"modelname":  medium,
			"block_size": 2, "dp_rank": 0}},
		{"/unregister", map[string]any{"instance_id": medium, "tenant_id": tenant, "dp_rank": 0}},
		{"/register?dialect=v2", map[string]any{"instance_id": medium, "endpoint": medium, "type": medium}},
		{"/dynamo/v1/query", map[string]any{"model_name": modelName, "routing_group": tenant, "token_ids": prompt}},
		{"/dynamo/v1/query_tiered_by_hash", map[string]any{"model_name": modelName, "routing_group": tenant, "block_hashes": []int{1}}},
		{"/dynamo/v1/query", map[string]any{"model_name": medium, "routing_group": instance, "token_ids": prompt}},
		{"/dynamo/v1/register", map[string]any{"instance_id": medium, "model_name": medium, "endpoint": medium, "block_size": 2}},
		{"/dynamo/v1/unregister", map[string]any{"instance_id": medium, "model_name": medium}},
		{"/dynamo/v1/register_peer", map[string]any{"url": medium}},
	}
	live := watchLive(h)
	for _, x := range ask {
		for _, packed := range []bool{false, true} {
			for _, accept := range []string{"application/json", "application/msgpack"} {
				answers("POST", x.target, x.body, packed, accept)
			}
		}
	}
	for _, target := range []string{"/services", "/services?dialect=v2", "/global_view", "/global_view?dialect=v2", "/ready", "/health",
		"/metrics",
		"/metrics?sources=1", "/admin/stats", "/admin/queries", "/admin/prefixes", "/admin/check", "/admin/digest", "/admin/settings",
		"/admin/events", "/dynamo/v1/workers", "/dynamo/v1/dump", "/dynamo/v1/peers", "/dynamo/v1/metrics"} {
		for _, accept := range []string{"application/json", "application/msgpack", "application/x-ndjson", "text/plain"} {
			answers("GET", target, nil, false, accept)
		}
	}
	time.Sleep(3 * time.Second)
	for event := range strings.SplitSeq(strings.TrimSpace(live()), "\n\n") {
		name, data, found := strings.Cut(strings.TrimPrefix(event, "event: "), "\ndata: ")
		if _, err := strictJSON([]byte(data)); found && err != nil || !found && !strings.HasPrefix(event, ":") ||
			found && !slices.Contains([]string{"stats", "change", "feed", "query"}, name) {
			t.Fatalf("%q: %v", event, err)
		}
	}
	for line := range bytes.Lines(logged.Bytes()) {
		if _, err := strictJSON(line); err != nil {
			t.Fatalf("log: %v: %q", err, line)
		}
	}
	if !valid {
		return
	}

	// The rows are those that are there, with their numbers and names.
	for _, accept := range []string{"application/json", "application/msgpack"} {
		target := "/query?detail=1"
		rows := answers("POST", target, query, false, accept).(map[string]any)[tenant].(map[string]any)
		if len(rows) != 2 {
			t.Fatalf("rows: %v", rows)
		}
		for i, name := range []string{"plain", instance} {
			row := rows[name].(map[string]any)
			if text := fmt.Sprintf("%v %v", row["longest_matched"], row["GPU"]); text != fmt.Sprintf("%d %d", 2*i+2, 2*i+2) {
				t.Errorf("%q: %s in %v", name, text, row)
			}
			detail := row["detail"].(map[string]any)["0"].(map[string]any)
			var media []string
			for medium := range detail["stay"].(map[string]any) {
				media = append(media, medium)
			}
			slices.Sort(media)
			want := slices.Compact(slices.Sorted(slices.Values([]string{"GPU", mediumName})))
			if utf8.ValidString(medium) && !slices.Equal(media, want) {
				t.Errorf("%q: media %q, want %q", name, media, want)
			}
		}
	}
	rows := answers("POST", "/query?dialect=v2", query, false, "application/json").(map[string]any)["instances"].(map[string]any)
	numbers := func(rows map[string]any, field string) string {
		plain, hostile := rows["plain"].(map[string]any), rows[instance].(map[string]any)
		return fmt.Sprintf("%d rows: %v %v", len(rows), plain[field], hostile[field])
	}
	if numbers(rows, "longest_matched") != "2 rows: 2 4" {
		t.Errorf("second dialect: %v", rows)
	}
	if salt == "" {
		rows = answers("POST", "/dynamo/v1/query", map[string]any{"model_name": modelName, "routing_group": tenant,
			"token_ids": prompt}, false,
			"application/json").(map[string]any)["instances"].(map[string]any)
		if numbers(rows, "gpu") != "2 rows: 2 4" { // tokens
			t.Errorf("Dynamo: %v", rows)
		}
	}
	var listed []string
	for _, s := range answers("GET", "/services", nil, false, "application/json").(map[string]any)["services"].([]any) {
		listed = append(listed, s.(map[string]any)["InstanceID"].(string))
	}
	slices.Sort(listed)
	if want := slices.Sorted(slices.Values([]string{"plain", instance})); !slices.Equal(listed, want) {
		t.Errorf("services %q, want %q", listed, want)
	}
}

// watchLive looks at /admin/live. The function that it returns ends that and returns what came.
func watchLive(h http.Handler) (end func() string) {
	r, w := httptest.NewRequest("GET", "/admin/live?feed=1", nil), httptest.NewRecorder()
	ctx, cancel := context.WithCancel(r.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.ServeHTTP(w, r.WithContext(ctx))
	}()
	synctest.Wait()
	return func() string {
		cancel()
		<-ended
		return w.Body.String()
	}
}

// strictJSON reads one value, in which no key may be there twice.
func strictJSON(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	v, err := strictValue(d)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("more follows: %v", err)
	}
	if !json.Valid(text) || !utf8.Valid(text) {
		return nil, errors.New("not valid")
	}
	return v, nil
}

func strictValue(d *json.Decoder) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch token {
	case json.Delim('{'):
		m := make(map[string]any)
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			name := key.(string)
			if _, twice := m[name]; twice {
				return nil, fmt.Errorf("%q is there twice", name)
			}
			if m[name], err = strictValue(d); err != nil {
				return nil, err
			}
		}
		_, err := d.Token()
		return m, err
	case json.Delim('['):
		list := []any{}
		for d.More() {
			v, err := strictValue(d)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err := d.Token()
		return list, err
	}
	return token, nil
}

// strictMsgpack is strictJSON for msgpack.
func strictMsgpack(packed []byte) (any, error) {
	r := bytes.NewReader(packed)
	d := msgpack.NewDecoder(r)
	d.SetMapDecoder(func(d *msgpack.Decoder) (any, error) {
		n, err := d.DecodeMapLen()
		m := make(map[string]any, max(n, 0))
		for range n {
			var name string
			if name, err = d.DecodeString(); err != nil {
				return nil, err
			}
			if _, twice := m[name]; twice || !utf8.ValidString(name) {
				return nil, fmt.Errorf("%q is there twice, or not UTF-8", name)
			}
			if m[name], err = d.DecodeInterface(); err != nil {
				return nil, err
			}
		}
		return m, err
	})
	v, err := d.DecodeInterface()
	if err == nil && r.Len() > 0 {
		err = errors.New("more follows")
	}
	return v, err
}
