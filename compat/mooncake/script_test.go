package mooncake

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/conductor"
	"example.com/conductor/index/hash"
	"example.com/conductor/internal/must"
)

// script is what clients and publishers do one after the other: testdata/make.py.
type script struct {
	Name  string
	Steps []step
}

// step is a request, or something a publisher does.
type step struct {
	Stored, Removed *blocks

	Request string  // method and path
	Type    *string // of the body, if not the dialect's own
	Body    hexed
	Hashes  int // blocks of the prompt whose hashes are the seq_hashes of the body
	Says    string
	Status  int
	Answer  hexed
	Means   string

	// In JSON; steps without an answer there are of msgpack alone.
	JSONBody   string `json:"json_body"`
	JSONAnswer string `json:"json_answer"`
}

// hexed is bytes in hexadecimal.
type hexed []byte

func (h *hexed) UnmarshalText(text []byte) (err error) {
	*h, err = hex.AppendDecode(nil, text)
	return err
}

func load(t testing.TB, name string, into any) {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	must.Succeed(t, err)
}

// do makes the request of a step and compares the answer byte by byte.
func (s *testServer) do(on *gin.Engine, at *step) {
	s.t.Helper()
	contentType := msgpackType
	if at.Type != nil {
		contentType = *at.Type
	}
	body := []byte(at.Body)
	if at.Hashes > 0 {
		body = withHashes(s.t, body, at.Hashes)
	}
	method, path, _ := strings.Cut(at.Request, " ")
	rec := send(on, method, path, body, "Content-Type", contentType)
	if got := rec.Header().Get("Content-Type"); got != msgpackType {
		s.t.Errorf("%s %s: an answer of type %q", at.Request, at.Says, got)
	}
	if rec.Code != at.Status || !bytes.Equal(rec.Body.Bytes(), at.Answer) {
		s.t.Errorf("%s %s\n got %d %v\nwant %d %s", at.Request, at.Says, rec.Code, unpacked(rec.Body.Bytes()), at.Status, at.Means)
	}
}

func unpacked(packed []byte) any {
	var v any
	if err := msgpack.Unmarshal(packed, &v); err != nil {
		return hex.EncodeToString(packed)
	}
	return v
}

// withHashes puts the seq hashes of the prompt's first blocks into a body.
func withHashes(t testing.TB, body []byte, n int) []byte {
	t.Helper()
	var m map[string]any
	must.Succeed(t, msgpack.Unmarshal(body, &m))
	var tokens []uint32
	for i := range n * blockSize {
		tokens = append(tokens, uint32(i+1))
	}
	var chain hash.Chain
	chain.Reset(hash.Scheme{Seed: 1337}, tokens, blockSize, 0)
	var all []uint64
	for i := range n {
		all = append(all, chain.At(i))
	}
	m["seq_hashes"] = all
	body, err := msgpack.Marshal(m)
	must.Succeed(t, err)
	return body
}

// TestRefusedRequestsChangeNothing makes every request that is refused for what it says, on a listener of
// the dialect and on one that knows it by its type, and checks that nothing comes of it.
func TestRefusedRequestsChangeNothing(t *testing.T) {
	var steps []step
	load(t, "errors.json", &steps)
	if len(steps) < 300 {
		t.Fatalf("only %d requests", len(steps))
	}
	inBubble(t, func(t *testing.T, s *testServer) {
		for i := range steps {
			s.do(s.alone, &steps[i])
			if steps[i].Type == nil { // with another type it is JSON there
				s.do(s.mixed, &steps[i])
			}
		}
		if all := s.conductor.Registrations(); len(all) != 0 {
			t.Errorf("refused, and registered: %v", all)
		}
		if all := s.conductor.For(conductor.Reader{}).Inspect().Contexts(); len(all) != 0 {
			t.Errorf("refused, and created: %v", all)
		}
	})
}

// TestExchangesInEveryForm plays every script on a server of its own, on each kind of listener,
// in each form.
func TestExchangesInEveryForm(t *testing.T) {
	var scripts []script
	load(t, "exchanges.json", &scripts)
	if len(scripts) < 10 {
		t.Fatalf("only %d scripts", len(scripts))
	}
	for _, sc := range scripts {
		play := func(s *testServer, do func(*step)) {
			for i := range sc.Steps {
				switch at := &sc.Steps[i]; {
				case at.Stored != nil:
					s.publish(at.Stored.Endpoint, at.Stored.stored())
				case at.Removed != nil:
					s.publish(at.Removed.Endpoint, at.Removed.removed())
				default:
					do(at)
				}
			}
		}
		t.Run(sc.Name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *testServer) { play(s, func(at *step) { s.do(s.alone, at) }) })
		})
		t.Run(sc.Name+", beside the published", func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *testServer) { play(s, func(at *step) { s.do(s.mixed, at) }) })
		})
		t.Run(sc.Name+", in JSON", func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *testServer) { play(s, func(at *step) { s.doJSON(s.plain, at, "") }) })
		})
		t.Run(sc.Name+", in JSON, beside the published", func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *testServer) { play(s, func(at *step) { s.doJSON(s.mixed, at, "?dialect=v2") }) })
		})
	}
}
