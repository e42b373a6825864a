package cluster_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"
	"example.com/conductor/conductor/cluster"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"

	conductorhttp "example.com/conductor/conductor/http"
	"example.com/conductor/conductor/server"
	"example.com/conductor/internal/must"
)

// TestPartsAreHeldAgainstTheBudget lets other replicas give large answers for parts of a batch: those
// that do not fit into limits.memory cost their queries alone, and all memory is given back.
func TestPartsAreHeldAgainstTheBudget(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked, err := io.ReadAll(r.Body)
		must.Report(t, err)
		n := 100
		if strings.Contains(string(asked), "large") {
			n = 4 << 20
		}
		fmt.Fprintf(w, `{"answers":[{"pad":%q}]}`, strings.Repeat("x", n))
	}))
	defer other.Close()
	c := conductor.New(conductor.Options{Log: zerolog.Nop()})
	defer c.Close()
	c.ServeBy(allAt(other.URL))
	forwarder := cluster.NewForwarder(cluster.ForwarderConfig{
		Me: "me", To: cluster.NewTransport(), Failed: func() {}, Timeout: time.Minute, Log: zerolog.Nop(),
	})
	budget, registry := server.NewBudget(0), prometheus.NewRegistry()
	registry.MustRegister(budget)
	opts := admin.Options{
		Dialect: conductorhttp.Options{MaxBody: 1 << 20, MaxTokens: 1 << 16}, Budget: budget, Gatherer: registry,
		Log: zerolog.Nop(), Use: []gin.HandlerFunc{forwarder.At(cluster.Mounted{Prefix: "/conductor/v1"})},
	}
	router := admin.New(c, opts)
	conductorhttp.Mount(router, c, opts.Dialect)
	const batch = `{"block_size":16,"queries":[{"model":"small","token_ids":[1]},{"model":"large","token_ids":[1]}]}`
	f := func(most int64, want ...string) {
		t.Helper()
		budget.SetBound(most)
		w := httptest.NewRecorder()
		router.ServeHTTP(w, httptest.NewRequest("POST", "/query_batch", strings.NewReader(batch)))
		answer := w.Body.String()
		for _, text := range want {
			if w.Code != http.StatusOK || !strings.Contains(answer, text) {
				t.Errorf("%d bytes: %d %.300s", most, w.Code, answer)
			}
		}
		metrics, err := registry.Gather()
		must.Succeed(t, err)
		for _, m := range metrics {
			if m.GetName() == "conductor_request_bytes" && m.GetMetric()[0].GetGauge().GetValue() != 0 {
				t.Errorf("%d bytes: it keeps %v", most, m)
			}
		}
	}
	const small = `{"pad":"xxx`
	f(0, small, `]}`)
	f(64<<20, small, strings.Repeat("x", 4<<20))
	f(6<<20, `"reason":"memory"`) // of the large one, and maybe of the small one that comes meanwhile
}

// TestPartsWithoutAnAnswer reports a list of prompts that two other replicas keep. One of them has nothing to say, which is
// an answer without a body; the other one has errors and warnings.
func TestPartsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked, err := io.ReadAll(r.Body)
		must.Report(t, err)
		if r.URL.Path != "/conductor/v1/routed" || !strings.Contains(string(asked), "some") {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		said := `{"kept":1,"errors":[{"prompt":1,"error":"no rank","reason":"not_found","field":"dp_rank","known":["0"]}],` +
			`"warnings":["late"]}`
		if r.Header.Get("Accept") == "application/msgpack" {
			said = recoded(t, said, json.Unmarshal, msgpack.Marshal)
		}
		io.WriteString(w, said)
	}))
	defer other.Close()
	c := conductor.New(conductor.Options{Log: zerolog.Nop()})
	defer c.Close()
	c.ServeBy(allAt(other.URL))
	forwarder := cluster.NewForwarder(cluster.ForwarderConfig{
		Me: "me", To: cluster.NewTransport(), Failed: func() {}, Timeout: time.Minute, Log: zerolog.Nop(),
	})
	opts := admin.Options{
		Dialect: conductorhttp.Options{MaxBody: 1 << 20, MaxTokens: 1 << 16}, Gatherer: prometheus.NewRegistry(),
		Log: zerolog.Nop(), Use: []gin.HandlerFunc{forwarder.At(cluster.Mounted{Prefix: "/conductor/v1"})},
	}
	router := admin.New(c, opts)
	conductorhttp.Mount(router, c, opts.Dialect)
	f := func(models string, status int, want string) {
		t.Helper()
		var prompts []string
		for model := range strings.FieldsSeq(models) {
			prompts = append(prompts, fmt.Sprintf(`{"model":%q,"token_ids":[1]}`, model))
		}
		for _, accept := range []string{"application/json", "application/msgpack"} {
			w, r := httptest.NewRecorder(), httptest.NewRequest("POST", "/routed",
				strings.NewReader(`{"block_size":16,"instance_id":"a","prompts":[`+strings.Join(prompts, ",")+`]}`))
			r.Header.Set("Accept", accept)
			router.ServeHTTP(w, r)
			got := w.Body.String()
			if accept != "application/json" && got != "" {
				got = recoded(t, got, msgpack.Unmarshal, json.Marshal)
			}
			if w.Code != status || got != want {
				t.Errorf("%s in %s: %d %s, want %d %s", models, accept, w.Code, got, status, want)
			}
		}
	}
	f("all all", http.StatusNoContent, "")
	f("all some some", http.StatusOK,
		`{"kept":2,"errors":[{"prompt":2,"error":"no rank","reason":"not_found","field":"dp_rank","known":["0"]}],"warnings":["late"]}`)
	f("some some all all", http.StatusOK,
		`{"kept":3,"errors":[{"prompt":1,"error":"no rank","reason":"not_found","field":"dp_rank","known":["0"]}],"warnings":["late"]}`)
}

// recoded returns what became of a list of reports in another codec.
func recoded(t must.T, text string, read func([]byte, any) error, write func(any) ([]byte, error)) string {
	var of struct {
		Kept   int `json:"kept" msgpack:"kept"`
		Errors []struct {
			Prompt int      `json:"prompt" msgpack:"prompt"`
			Error  string   `json:"error" msgpack:"error"`
			Reason string   `json:"reason" msgpack:"reason"`
			Field  string   `json:"field" msgpack:"field"`
			Known  []string `json:"known" msgpack:"known"`
		} `json:"errors" msgpack:"errors"`
		Warnings []string `json:"warnings" msgpack:"warnings"`
	}
	must.Report(t, read([]byte(text), &of))
	out, err := write(of)
	must.Report(t, err)
	return string(out)
}

// allAt is the URL of a replica that serves all shards, with an id for each model.
type allAt string

func (url allAt) Serves(s scope.Shard) *conductor.UnservedError {
	return &conductor.UnservedError{Shard: s, Serving: []conductor.ReplicaAddress{{ID: s.Model, URL: string(url)}}}
}
func (allAt) ServesInstance(string, string) *conductor.UnservedError { return nil }
func (allAt) Names() registration.Names                              { return nil }
func (allAt) Models(string) []string                                 { return nil }
func (allAt) Away() []*conductor.UnservedError                       { return nil }
