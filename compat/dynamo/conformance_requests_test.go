package dynamo_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"sort"
	"strconv"
	"strings"

	"example.com/conductor/compat/internal/conformance"
	"example.com/conductor/conductor/scripttest"
	"example.com/conductor/internal/must"
)

// request runs a step that is an HTTP request. A body without a Content-Type
// above it is sent as application/json; "Content-Type:" alone sends none.
func (s *script) request(st *scripttest.Step, want []string) (string, error) {
	headers, lines := s.Headers(st.Input)
	body := s.Expand(strings.Join(lines, "\n"))
	if n, ok := strings.CutPrefix(body, "@pad "); ok {
		size, err := strconv.Atoi(n)
		must.Succeed(s.T, err)
		body = `{"pad":"` + strings.Repeat("x", size-len(`{"pad":""}`)) + `"}`
	}
	if _, set := headers["Content-Type"]; !set && (body != "" || st.Name == http.MethodPost) {
		headers["Content-Type"] = "application/json"
	}
	if headers["Content-Type"] == "" {
		delete(headers, "Content-Type")
	}
	status, header, answer := s.do(st.Name, s.Word(st, 0), headers, body)
	got := fmt.Sprintf("%d\n%s", status, answer)
	if strings.HasPrefix(header.Get("Content-Type"), "text/") && !strings.Contains(answer, "\n") {
		got = fmt.Sprintf("%d\nexact %s", status, answer)
	}
	return got, s.CompareAnswer(want, status, header, answer)
}

// do sends one request as it is and returns status, headers and body.
func (s *script) do(method, path string, headers map[string]string, body string) (int, http.Header, string) {
	s.T.Helper()
	status, header, answer := s.Do(method, path, headers, []byte(body))
	return status, header, string(answer)
}

// answer is what /query and /query_by_hash say.
type answer struct {
	Scores    map[string]map[string]uint64 `json:"scores"`
	Instances map[string]struct {
		Longest uint64            `json:"longest_matched"`
		GPU     uint64            `json:"gpu"`
		DP      map[string]uint64 `json:"dp"`
		CPU     uint64            `json:"cpu"`
		Disk    uint64            `json:"disk"`
	} `json:"instances"`
}

// query asks and prints a line per instance that holds something:
//
//	$A gpu 8 cpu 12 disk 12 longest 12 dp 0:8
//
// A rank with nothing and an instance with nothing are the same as none. What
// scores says must be what dp says.
func (s *script) query(st *scripttest.Step) string {
	q := map[string]any{"model_name": s.Key(st, "model", s.Vars["M"])}
	path := "/query"
	if tokens, ok := st.Keys["tokens"]; ok {
		q["token_ids"] = conformance.Numbers(s.Expand(tokens))
	} else {
		q["block_hashes"], path = conformance.Numbers(s.Key(st, "hashes", "")), "/query_by_hash"
	}
	for key, name := range map[string]string{"group": "routing_group", "tenant": "tenant_id", "lora": "lora_name", "salt": "cache_salt"} {
		if v, ok := st.Keys[key]; ok {
			q[name] = s.Expand(v)
		}
	}
	status, _, body := s.do("POST", path, map[string]string{"Content-Type": "application/json"}, conformance.EncodeJSON(q))
	var a answer
	if err := json.Unmarshal([]byte(body), &a); status != 200 || err != nil {
		return fmt.Sprintf("%d %s", status, body)
	}
	var lines []string
	for id, i := range a.Instances {
		ranks := []string{}
		for rank, n := range i.DP {
			if n != a.Scores[id][rank] {
				return fmt.Sprintf("dp and scores differ: %s", body)
			}
			if n > 0 {
				ranks = append(ranks, fmt.Sprintf("%s:%d", rank, n))
			}
		}
		sort.Strings(ranks)
		if i.Longest > 0 {
			lines = append(lines,
				strings.TrimSpace(fmt.Sprintf("%s gpu %d cpu %d disk %d longest %d dp %s", id, i.GPU, i.CPU, i.Disk, i.Longest,
					strings.Join(ranks, ","))))
		}
	}
	for id := range a.Scores {
		if _, there := a.Instances[id]; !there {
			return fmt.Sprintf("%s has scores only: %s", id, body)
		}
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

type routerEvent struct {
	Worker json.Number `json:"worker_id"`
	Tier   *string     `json:"storage_tier"`
	Event  struct {
		Data struct {
			Stored *struct {
				Parent *json.Number `json:"parent_hash"`
				Blocks []struct {
					Block  json.Number `json:"block_hash"`
					Tokens json.Number `json:"tokens_hash"`
				} `json:"blocks"`
			} `json:"stored"`
		} `json:"data"`
		Rank *uint32 `json:"dp_rank"`
	} `json:"event"`
}

// dump prints a line per block of one partition, sorted,
//
//	$A/0 device root>101 9143094415614847814
//
// and the markers of settle not at all. A device block before its parent is an
// error, and so is anything but stores.
func (s *script) dump(model, group string) string {
	status, _, body := s.do("GET", "/dump", nil, "")
	var all map[string]json.RawMessage
	if err := json.Unmarshal([]byte(body), &all); status != 200 || err != nil {
		return fmt.Sprintf("%d %v %s", status, err, body)
	}
	raw, ok := all[model+":"+group]
	if !ok {
		return "no partition"
	}
	var partition struct {
		BlockSize *uint32 `json:"block_size"`
		Events    []routerEvent
	}
	if err := json.Unmarshal(raw, &partition); err != nil || partition.BlockSize == nil || partition.Events == nil {
		return fmt.Sprintf("not a partition: %s", raw)
	}
	var lines []string
	seen := map[string]bool{}
	for _, e := range partition.Events {
		stored := e.Event.Data.Stored
		if stored == nil || e.Tier == nil || e.Event.Rank == nil {
			return fmt.Sprintf("not a store of a tier and a rank: %s", raw)
		}
		owner := fmt.Sprintf("%s/%d %s", e.Worker, *e.Event.Rank, *e.Tier)
		parent := "root"
		if stored.Parent != nil {
			parent = stored.Parent.String()
			if *e.Tier == "device" && !seen[owner+parent] {
				return fmt.Sprintf("%s comes before its parent %s: %s", owner, parent, raw)
			}
		}
		for _, b := range stored.Blocks {
			seen[owner+b.Block.String()] = true
			if n, err := strconv.ParseUint(b.Block.String(), 10, 64); err != nil || n>>20 != 4_000_000_000>>20 {
				lines = append(lines, fmt.Sprintf("%s %s>%s %s", owner, parent, b.Block, b.Tokens))
			}
			parent = b.Block.String()
		}
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

// metric returns the value of one series of /metrics, 0 if it is not there.
func (s *script) metric(name string) float64 {
	_, _, body := s.do("GET", "/metrics", nil, "")
	for scan := bufio.NewScanner(strings.NewReader(body)); scan.Scan(); {
		series, value, ok := cutLast(scan.Text(), " ")
		if ok && series == name {
			v, err := strconv.ParseFloat(value, 64)
			must.Succeed(s.T, err)
			return v
		}
	}
	return 0
}

func cutLast(text, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(text, sep)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+len(sep):], true
}

// file compares the lines of a file of JSON with the expected ones.
func (s *script) file(st *scripttest.Step, want []string) (string, error) {
	raw, err := os.ReadFile(s.Word(st, 0))
	if err != nil {
		return "", err
	}
	lines := strings.Split(string(bytes.TrimRight(raw, "\n")), "\n")
	if len(lines) != len(want) {
		return string(raw), fmt.Errorf("%d lines", len(lines))
	}
	for i := range want {
		if err := conformance.CompareBody([]string{s.Expand(want[i])}, lines[i]); err != nil {
			return string(raw), fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	return string(raw), nil
}

// clean unregisters what the script left, so that a shared server is as before.
func (s *script) clean() {
	resp, err := http.Get(s.Base + "/workers")
	if err != nil {
		return
	}
	defer resp.Body.Close()
	var rows []struct {
		ID    json.RawMessage `json:"instance_id"`
		Model string          `json:"model_name"`
	}
	if json.NewDecoder(resp.Body).Decode(&rows) != nil {
		return
	}
	for _, r := range rows {
		if strings.HasPrefix(r.Model, s.Vars["M"]) {
			body := fmt.Sprintf(`{"instance_id":%s,"model_name":%q}`, r.ID, r.Model)
			if resp, err := http.Post(s.Base+"/unregister", "application/json", strings.NewReader(body)); err == nil {
				resp.Body.Close()
			}
		}
	}
}
