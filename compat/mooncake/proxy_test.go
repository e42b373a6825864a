package mooncake

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/conductor/body"
)

// sendsProfile says whether the proxy registers with the hash_profile it always sends.
const sendsProfile = true

// proxy is the cache-aware router of the second server's examples, as far as it talks
// to a Conductor and to engines: in JSON as of July 2026, in msgpack as of August.
type proxy struct {
	form      body.Codec
	client    http.Client
	conductor string // base URL
	engines   []routable
	blockSize int
	model     string
	tenant    string
	lora      string

	tokenizers, turns int            // of their round robins
	ties              map[string]int // by the tied instances
}

// routable is an instance it routes to; ranks are the endpoints of their publishers.
type routable struct {
	id, url string
	ranks   []string
}

// Why it takes turns.
const (
	tokenizationFailed = "tokenization_failed"
	queryFailed        = "conductor_query_failed"
	invalidInstances   = "invalid_instances_response"
	nothingRoutable    = "no_routable_cache_result"
	allZero            = "all_cache_hits_zero"
)

// start registers every rank. Anything but the answer it expects ends it. It never
// unregisters, so that at its next start all are registered already.
func (p *proxy) start() error {
	for _, e := range p.engines {
		for rank, endpoint := range e.ranks {
			fields := map[string]any{
				"endpoint": endpoint, "type": "vLLM", "modelname": p.model, "instance_id": e.id, "block_size": p.blockSize,
				"dp_rank": rank, "tenant_id": p.tenant, "lora_name": p.lora,
			}
			if sendsProfile {
				fields["hash_profile"] = map[string]any{
					"strategy": "vllm_v1", "algorithm": "sha256_cbor", "python_hash_seed": "0", "index_projection": "low64_be",
				}
			}
			answer, err := p.call("/register", fields, 5*time.Second, "")
			if err != nil {
				return fmt.Errorf("%s: %w", e.id, err)
			}
			if answer["status"] != "registered successfully" || answer["instance_id"] != e.id {
				return fmt.Errorf("%s: another answer than expected: %v", e.id, answer)
			}
		}
	}
	return nil
}

// route returns where a request goes and, if that is by turns, why.
func (p *proxy) route(request map[string]any, id string) (instance, reason string) {
	tokens, err := p.tokenize(request)
	if err != nil {
		return p.turn(tokenizationFailed)
	}
	fields := map[string]any{"model": request["model"], "block_size": p.blockSize, "tenant_id": p.tenant, "lora_name": p.lora}
	if p.form == body.Msgpack {
		little := []byte{}
		for _, t := range tokens {
			little = binary.LittleEndian.AppendUint32(little, uint32(t))
		}
		fields["token_ids"] = little
	} else {
		fields["token_ids"] = tokens
	}
	if salt, given := request["cache_salt"]; given {
		fields["cache_salt"] = salt
	}
	answer, err := p.call("/query", fields, time.Second, id)
	if err != nil {
		return p.turn(queryFailed)
	}
	return p.choose(answer)
}

// choose takes the longest match above zero; of several the next in turn among these.
// It reads longest_matched alone.
func (p *proxy) choose(answer map[string]any) (instance, reason string) {
	rows, ok := answer["instances"].(map[string]any)
	if !ok {
		return p.turn(invalidInstances)
	}
	longest, best := int64(-1), []string(nil)
	for _, e := range p.engines {
		row, _ := rows[e.id].(map[string]any)
		switch n, ok := count(row["longest_matched"]); {
		case !ok || n < longest:
		case n == longest:
			best = append(best, e.id)
		default:
			longest, best = n, []string{e.id}
		}
	}
	switch {
	case best == nil:
		return p.turn(nothingRoutable)
	case longest == 0:
		return p.turn(allZero)
	}
	slices.Sort(best)
	tied := strings.Join(best, ",")
	if p.ties == nil {
		p.ties = map[string]int{}
	}
	p.ties[tied]++
	return best[(p.ties[tied]-1)%len(best)], ""
}

// count returns an integer that is not negative, which true, "16" and 16.0 are not.
func count(v any) (n int64, ok bool) {
	switch v := v.(type) {
	case int64:
		n, ok = v, true
	case uint64:
		n, ok = int64(v), true
	case json.Number:
		var err error
		n, err = strconv.ParseInt(v.String(), 10, 64)
		ok = err == nil
	}
	return n, ok && n >= 0
}

func (p *proxy) turn(reason string) (string, string) {
	p.turns++
	return p.engines[(p.turns-1)%len(p.engines)].id, reason
}

// tokenize asks one engine after the other, always in JSON.
func (p *proxy) tokenize(request map[string]any) ([]int32, error) {
	ask := maps.Clone(request)
	ask["stream"], ask["max_tokens"] = false, 1
	delete(ask, "stream_options")
	body, err := json.Marshal(ask)
	if err != nil {
		return nil, err
	}
	p.tokenizers++
	resp, err := p.client.Post(p.engines[(p.tokenizers-1)%len(p.engines)].url+"/tokenize", "application/json", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer struct{ Tokens []int32 }
	err = json.NewDecoder(resp.Body).Decode(&answer)
	if err == nil && (resp.StatusCode != http.StatusOK || answer.Tokens == nil) {
		err = fmt.Errorf("status %d without tokens", resp.StatusCode)
	}
	return answer.Tokens, err
}

// call makes a request of the Conductor in the proxy's form.
func (p *proxy) call(path string, fields map[string]any, timeout time.Duration, id string) (answer map[string]any, err error) {
	marshal, contentType := msgpack.Marshal, msgpackType
	if p.form == body.JSON {
		marshal, contentType = json.Marshal, "application/json"
	}
	text, err := marshal(fields)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequest("POST", p.conductor+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", contentType)
	if id != "" {
		req.Header.Set("X-Request-Id", id)
	}
	client := p.client
	client.Timeout = timeout
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		return nil, fmt.Errorf("status %d: %q", resp.StatusCode, got)
	}
	if p.form == body.JSON {
		d := json.NewDecoder(bytes.NewReader(got))
		d.UseNumber()
		return answer, d.Decode(&answer)
	}
	if resp.Header.Get("Content-Type") != msgpackType {
		return nil, fmt.Errorf("an answer of type %q", resp.Header.Get("Content-Type"))
	}
	d := msgpack.NewDecoder(bytes.NewReader(got))
	d.UseLooseInterfaceDecoding(true)
	return answer, d.Decode(&answer)
}
