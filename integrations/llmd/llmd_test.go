package llmd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/llm-d/llm-d-router/pkg/epp/framework/interface/datalayer"
	"github.com/llm-d/llm-d-router/pkg/epp/framework/interface/plugin"
	"github.com/llm-d/llm-d-router/pkg/epp/framework/interface/requesthandling"
	"github.com/llm-d/llm-d-router/pkg/epp/framework/interface/scheduling"
	"github.com/llm-d/llm-d-router/pkg/epp/framework/plugins/datalayer/attribute/prefix"
	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/client"
	"example.com/conductor/internal/must"
)

func endpoint(pod, port string, rank int) scheduling.Endpoint {
	return scheduling.NewEndpoint(&datalayer.EndpointMetadata{Name: pod, Address: "10.0.0.1", Port: port, RankIndex: rank},
		datalayer.NewMetrics(), nil)
}

func asking(model, salt string, prompts ...requesthandling.PromptTokens) *scheduling.InferenceRequest {
	return &scheduling.InferenceRequest{TargetModel: model, Body: &requesthandling.InferenceRequestBody{
		TokenizedRequest: &scheduling.TokenizedRequest{Prompts: prompts, CacheSalt: salt},
	}}
}

func tokens(n int) requesthandling.PromptTokens {
	return requesthandling.PromptTokens{TokenIDs: make([]uint32, n)}
}

// info returns what the producer wrote to an endpoint: weighted, cached and total blocks.
func info(p *Producer, e scheduling.Endpoint) string {
	v, ok := e.Get(p.key())
	if !ok {
		return "none"
	}
	m := v.(*prefix.PrefixCacheMatchInfo)
	return fmt.Sprint(m.MatchBlocks(), m.CachedBlockCount(), m.TotalBlocks(), m.BlockSizeTokens())
}

// made returns a producer from the registry, as the picker makes it.
func made(t *testing.T, parameters string) (*Producer, error) {
	t.Helper()
	Register()
	d := json.NewDecoder(strings.NewReader(parameters))
	d.DisallowUnknownFields()
	p, err := plugin.Registry[Type]("conductor", d, nil)
	if err != nil {
		return nil, err
	}
	if name := p.TypedName(); name != (plugin.TypedName{Type: Type, Name: "conductor"}) {
		t.Errorf("the plug-in is %+v", name)
	}
	return p.(*Producer), nil
}

// TestProduce holds which endpoint gets which row, with weights by tier, and the queries asked.
func TestProduce(t *testing.T) {
	answer, bodies := `{"instances":{}}`, []string{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := new(strings.Builder)
		bufio.NewReader(r.Body).WriteTo(body)
		bodies = append(bodies, body.String())
		w.Header().Set("Content-Type", "application/json")
		if answer == "" {
			w.WriteHeader(503)
			return
		}
		w.Write(packed(t, answer))
	}))
	defer s.Close()
	p, err := made(t, fmt.Sprintf(`{"url":%q,"blockSize":16,"model":"base","tenant":"blue","timeoutMs":10000}`, s.URL))
	if err != nil {
		t.Fatal(err)
	}
	answer = `{"instances":{
		"10.0.0.1:8000":{"longest_matched":64,"rank_matches":{"0":{"gpu":16,"cpu":32,"disk":64}}},
		"10.0.0.1:8001":{"longest_matched":64,"rank_matches":{"0":{"gpu":0,"cpu":0,"disk":0},"1":{"gpu":48,"cpu":48,"disk":48}}},
		"pod-b":{"longest_matched":64,"rank_matches":{"0":{"gpu":32,"cpu":32,"disk":32},"1":{"gpu":0,"cpu":0,"disk":0}}}}}`
	a, b, c, d := endpoint("pod-a", "8000", 3), endpoint("pod-a", "8001", 1), endpoint("pod-b", "9", 0), endpoint("pod-c", "9", 0)
	produce := func(r *scheduling.InferenceRequest, endpoints ...scheduling.Endpoint) {
		t.Helper()
		if err := p.Produce(t.Context(), r, endpoints); err != nil {
			t.Error(err)
		}
	}
	produce(asking("sql", "s", tokens(100)), a, b, c, d)
	// 1 block on the device, 0.75 for the next on the host, 0.25 for each of 2 on the disk.
	for i, want := range []string{"2 4 6 16", "3 3 6 16", "2 2 6 16", "none"} {
		if got := info(p, []scheduling.Endpoint{a, b, c, d}[i]); got != want {
			t.Errorf("endpoint %d: %s, want %s", i, got, want)
		}
	}
	for _, want := range []string{"base", "sql", "blue", "cache_salt"} {
		if !strings.Contains(bodies[0], want) {
			t.Errorf("the query has no %s: %q", want, bodies[0])
		}
	}
	produce(asking("base", "", tokens(64), tokens(64), tokens(3)), b)
	if got := info(p, b); got != "6 6 8 16" || len(bodies) != 3 || strings.Contains(bodies[2], "lora_name") {
		t.Errorf("two prompts: %s after %d queries", got, len(bodies))
	}
	image := tokens(100)
	image.MultiModalFeatures = []requesthandling.MultiModalFeature{{Hash: "x", Offset: 40, Length: 20}}
	produce(asking("base", "", image), b)
	if len(bodies[3]) > len(bodies[2]) {
		t.Errorf("tokens behind an image were asked for: %d bytes", len(bodies[3]))
	}
	image.MultiModalFeatures[0].Offset = 3
	e := endpoint("pod-a", "8000", 0)
	produce(asking("base", "", image), e)
	produce(asking("base", "", tokens(3)), e)
	produce(nil, e)
	produce(&scheduling.InferenceRequest{}, e)
	if got := info(p, e); got != "none" || len(bodies) != 4 {
		t.Errorf("without a block to ask for: %s after %d queries", got, len(bodies))
	}
	answer = ""
	produce(asking("base", "", tokens(64)), e)
	if got := info(p, e); got != "none" {
		t.Errorf("without an answer: %s", got)
	}
	var shown state
	text, err := p.DumpState()
	if err != nil || json.Unmarshal(text, &shown) != nil || shown.Asked != 5 || shown.Failed != 1 || !strings.Contains(shown.Last, "503") {
		t.Errorf("%s, %v", text, err)
	}
	if len(p.Produces()) != 1 || len(p.Consumes().Required) != 1 || p.ProduceTimeout() != 20*time.Second {
		t.Errorf("%v, %v, %s", p.Produces(), p.Consumes(), p.ProduceTimeout())
	}
}

// TestParameters holds that wrong parameters are errors.
func TestParameters(t *testing.T) {
	for _, wrong := range []string{`{`, `{}`, `{"url":"http://c"}`, `{"url":"c","blockSize":16}`, `{"url":"http://c","blockSize":16,"x":1}`,
		`{"url":"http://c","blockSize":16,"timeoutMs":-1}`} {
		if _, err := made(t, wrong); err == nil {
			t.Errorf("%s is taken", wrong)
		}
	}
}

// TestRealServer asks a server of the binary that CONDUCTOR_BINARY names.
func TestRealServer(t *testing.T) {
	binary := os.Getenv("CONDUCTOR_BINARY")
	if binary == "" {
		must.Skip(t, "CONDUCTOR_BINARY, which make llmd-check sets, names no server")
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	file := filepath.Join(t.TempDir(), "credentials")
	server := exec.CommandContext(ctx, binary, "serve", "--listen", "127.0.0.1:0=conductor", "--log-format", "json")
	server.Dir = t.TempDir()
	log, err := server.StderrPipe()
	if err == nil {
		err = server.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { server.Process.Kill(); server.Wait() }()
	url := ""
	lines := bufio.NewScanner(log)
	for url == "" && lines.Scan() {
		if m := regexp.MustCompile(`"address":"(127\.0\.0\.1:[0-9]+)"`).FindStringSubmatch(lines.Text()); m != nil {
			url = "http://" + m[1]
		}
	}
	c, err := client.New(url)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Register(ctx, client.Registration{Endpoint: "tcp://127.0.0.1:1", Type: "vLLM", Model: "m", Instance: "10.0.0.1:8000",
		BlockSize: 16}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("unused\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := New("conductor", Parameters{URL: url, BlockSize: 16, TokenFile: file, TimeoutMS: 10000})
	if err != nil {
		t.Fatal(err)
	}
	known, unknown := endpoint("pod", "8000", 0), endpoint("pod", "8001", 0)
	if err := p.Produce(ctx, asking("m", "salt", tokens(64)), []scheduling.Endpoint{known, unknown}); err != nil {
		t.Error(err)
	}
	if text, _ := p.DumpState(); info(p, known) != "0 0 4 16" || info(p, unknown) != "none" {
		t.Errorf("%s, %s; %s", info(p, known), info(p, unknown), text)
	}
}

// packed returns JSON in msgpack.
func packed(t *testing.T, text string) []byte {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	e := msgpack.NewEncoder(&b)
	e.UseCompactFloats(true)
	e.UseCompactInts(true)
	if err := e.Encode(whole(v)); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// whole makes integers of the numbers of JSON.
func whole(v any) any {
	switch v := v.(type) {
	case float64:
		return int(v)
	case map[string]any:
		for name := range v {
			v[name] = whole(v[name])
		}
	}
	return v
}
