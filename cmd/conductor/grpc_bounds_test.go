package main

import (
	"encoding/binary"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/status"

	pb "example.com/conductor/api/kvconductor/v1"
	"example.com/conductor/events/payload"
	"example.com/conductor/internal/must"
)

// rawCalls is a client of gRPC that may break off where it likes. All of its calls share one connection.
type rawCalls struct {
	client *http.Client
	base   string
}

func newRawCalls(t *testing.T, address string) *rawCalls {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	t.Cleanup(transport.CloseIdleConnections)
	return &rawCalls{client: &http.Client{Transport: transport}, base: "http://" + address}
}

// begin begins a call whose message has a length. The status is that of its end, "" if the connection ends before.
func (r *rawCalls) begin(method string, length int, message io.Reader) (status, text string) {
	prefix := binary.BigEndian.AppendUint32([]byte{0}, uint32(length))
	body := io.MultiReader(strings.NewReader(string(prefix)), message)
	req, err := http.NewRequest(http.MethodPost, r.base+method, io.NopCloser(body))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	resp, err := r.client.Do(req)
	if err != nil {
		return "", err.Error()
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, resp.Body)
	for _, from := range []http.Header{resp.Header, resp.Trailer} {
		if status = from.Get("Grpc-Status"); status != "" {
			return status, from.Get("Grpc-Message")
		}
	}
	return "", "no status"
}

// unfinished is the start of a message, which ends when the test does.
type unfinished struct {
	left int
	over <-chan struct{}
}

func (u *unfinished) Read(p []byte) (int, error) {
	if u.left == 0 {
		<-u.over
		return 0, io.ErrUnexpectedEOF
	}
	n := min(len(p), u.left)
	clear(p[:n])
	u.left -= n
	return n, nil
}

// TestUnfinishedMessages begins large messages to every method over one connection and ends none. The server refuses those
// that do not fit, and goes on answering; when the client is gone, large messages are welcome again.
func TestUnfinishedMessages(t *testing.T) {
	t.Parallel()
	p, address := grpcProcess(t, "limits: {memory: 64MiB}\n# fixed: {readtimeout: 10m}\n")
	before := resident(t, p)
	// A client alone may have half of the memory. It is not enough for three messages, and two leave room for small ones.
	const length, calls = 8<<20 - 128<<10, 160
	over := make(chan struct{})
	raw := newRawCalls(t, address)
	methods := append(methodsOf(), "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
	var mu sync.Mutex
	ended := make(map[string]int)
	var all sync.WaitGroup
	for i := range calls {
		all.Go(func() {
			method := methods[i%len(methods)]
			status, text := raw.begin(method, length, &unfinished{left: length - 1, over: over})
			mu.Lock()
			defer mu.Unlock()
			ended[status]++
			if status == "8" && !strings.Contains(text, "memory") && !strings.Contains(text, "reflection") {
				t.Errorf("%s is refused with %q", method, text)
			}
		})
	}
	eventually(t, "no message was refused", func() (string, bool) {
		mu.Lock()
		defer mu.Unlock()
		_, text := get(p.url + "/metrics")
		return text, ended["8"] >= calls-4
	})
	if grown := resident(t, p) - before; grown > 200<<20 && !payload.PoisonsReleased {
		t.Errorf("%d unfinished messages took %d MiB", calls, grown>>20)
	}
	client := pb.NewConductorClient(dialed(t, address, "", nil))
	small := &pb.QueryRequest{Model: "m", BlockSize: 16, Prompt: &pb.QueryRequest_Tokens{Tokens: &pb.Tokens{Ids: make([]uint32, 64)}}}
	_, err := client.Query(inTime(t), small)
	must.Succeed(t, err)
	if _, text := get(p.url + "/metrics"); !strings.Contains(text, `conductor_grpc_messages_refused_total{reason="memory"} `) {
		t.Error("no metric tells of messages without memory")
	}
	close(over)
	all.Wait()
	eventually(t, "a large message is still refused", func() (string, bool) {
		large := &pb.QueryRequest{Model: strings.Repeat("m", length), BlockSize: 16, Prompt: small.Prompt}
		_, err := client.Query(inTime(t), large)
		return status.Convert(err).String(), err == nil
	})
}
