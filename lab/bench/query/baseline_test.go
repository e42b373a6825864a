package query

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"
	conductorhttp "example.com/conductor/conductor/http"
	"example.com/conductor/events"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/wire"
	"example.com/conductor/events/zmq"
	"example.com/conductor/internal/must"
)

// What real publishers have loaded is answered by the baseline as by the handler it is
// compared with, and as the bench expects it.
func TestBaselineAnswersAlike(t *testing.T) {
	l := small
	k := conductor.New(conductor.Options{HashSeed: 1337, Log: zerolog.Nop(), Stream: stream.Config{
		Transport: zmq.Transport{},
		Decode:    func(payload []byte) (events.Batch, error) { return wire.Decode(payload, wire.DefaultLimits) },
	}})
	defer k.Close()
	end, err := l.preloadBlocks(inProcess{k})
	must.Succeed(t, err)
	defer end()
	opts := admin.Options{
		Dialect: conductorhttp.Options{MaxBody: 1 << 20, MaxTokens: 1 << 16}, Gatherer: prometheus.NewRegistry(), Log: zerolog.Nop(),
	}
	engine := admin.New(k, opts)
	conductorhttp.Mount(engine, k, opts.Dialect)
	plain := newBaseline(k, opts.Dialect.MaxBody)
	ask := func(h http.Handler, body string) (int, []byte) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/query", strings.NewReader(body)))
		text, err := io.ReadAll(w.Result().Body)
		must.Succeed(t, err)
		return w.Code, text
	}
	for f := range l.families() {
		body, err := l.encodeBody(JSON, l.appendPrompt(nil, f))
		must.Succeed(t, err)
		var values [2]any
		for i, h := range []http.Handler{engine, plain} {
			status, text := ask(h, string(body))
			if err := l.checkAnswer(JSON, f, text); status != http.StatusOK || err != nil {
				t.Fatalf("prompt %d: %d, %v in %s", f, status, err, text)
			}
			must.Succeed(t, json.Unmarshal(text, &values[i]))
		}
		if !reflect.DeepEqual(values[0], values[1]) {
			t.Fatalf("prompt %d: the baseline answers\n%v, not\n%v", f, values[1], values[0])
		}
	}
	for _, bad := range []string{"", "{", `{"model":"bench","block_size":8}`, `{"model":"bench","block_size":8,"token_ids":[-1]}`} {
		if status, text := ask(plain, bad); status != http.StatusBadRequest {
			t.Errorf("%q is answered %d %s", bad, status, text)
		}
	}
}
