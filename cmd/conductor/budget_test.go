package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"example.com/conductor/events/payload"
	"example.com/conductor/internal/must"
)

var residentLine = regexp.MustCompile(`(?m)^process_resident_memory_bytes (\S+)$`)

// resident returns the resident memory of a process in bytes, by its metrics.
func resident(t *testing.T, p *process) int {
	t.Helper()
	_, text := get(p.url + "/metrics")
	m := residentLine.FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no resident memory: %.200s", text)
	}
	bytes, err := strconv.ParseFloat(m[1], 64)
	must.Succeed(t, err)
	return int(bytes)
}

// TestUnfinishedBodies begins large bodies and ends none. The server refuses those that do not fit,
// and goes on answering queries; when the clients are gone, large bodies are welcome again.
func TestUnfinishedBodies(t *testing.T) {
	t.Parallel()
	p := serveProcess(t, "limits: {memory: 48MiB}\n# fixed: {readtimeout: 60s}\n")
	before := resident(t, p)
	const half = 4 << 20
	body := `{"model":"m","block_size":16,"token_ids":[` + strings.Repeat("123456, ", half/8)
	var mu sync.Mutex
	var open []net.Conn
	refused := 0
	var all sync.WaitGroup
	for range 60 {
		all.Go(func() {
			c, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			fmt.Fprintf(c, "POST /query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"+
				"Content-Length: %d\r\n\r\n", 2*half)
			io.WriteString(c, body) // the server may refuse it meanwhile
		})
	}
	eventually(t, "no body was refused", func() (string, bool) {
		_, text := get(p.url + "/metrics")
		m := regexp.MustCompile(`conductor_requests_without_memory_total (\d+)`).FindStringSubmatch(text)
		if m != nil {
			refused, _ = strconv.Atoi(m[1])
		}
		return text, refused > 40
	})
	if grown := resident(t, p) - before; grown > 200<<20 && !payload.PoisonsReleased {
		t.Errorf("60 unfinished bodies took %d MiB", grown>>20)
	}
	post(t, p.url+"/query", `{"model":"m","block_size":16,"token_ids":[1,2,3]}`, 200)
	mu.Lock()
	for _, c := range open {
		c.Close()
	}
	mu.Unlock()
	all.Wait()
	whole := strings.TrimSuffix(body, ", ") + "]}"
	eventually(t, "a large body is still refused", func() (string, bool) {
		resp, err := http.Post(p.url+"/query", "application/json", strings.NewReader(whole))
		if err != nil {
			return err.Error(), false // refused, and the connection ended before all of the body was sent
		}
		defer resp.Body.Close()
		answer, _ := io.ReadAll(resp.Body)
		return string(answer), resp.StatusCode == 200
	})
}

// TestUnreadAnswers asks for long answers and reads none.
func TestUnreadAnswers(t *testing.T) {
	t.Parallel()
	p := serveProcess(t, "limits: {memory: 16MiB}\n")
	for i := range 200 {
		post(t, p.url+"/register", fmt.Sprintf(`{"endpoint":"tcp://127.0.0.1:1","type":"vLLM","modelname":"m","instance_id":"%s-%d",`+
			`"block_size":16,"dp_rank":0}`, strings.Repeat("x", 200), i), 200)
	}
	item := map[string]any{"model": "m", "block_size": 16, "token_ids": []int{1}}
	items := make([]any, 256)
	for i := range items {
		items[i] = item
	}
	batch, err := json.Marshal(map[string]any{"queries": items})
	must.Succeed(t, err)
	before := resident(t, p)
	for range 60 {
		c, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
		must.Succeed(t, err)
		defer c.Close()
		c.(*net.TCPConn).SetReadBuffer(4 << 10)
		fmt.Fprintf(c, "POST /query_batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			len(batch), batch)
	}
	var answer string
	eventually(t, "no answer was refused", func() (string, bool) {
		_, answer = get(p.url + "/metrics")
		return answer, regexp.MustCompile(`conductor_requests_without_memory_total [1-9]`).MatchString(answer)
	})
	// Eight at a time are made, in buffers that grow and that the collector takes later. All
	// of them would be a gigabyte.
	if grown := resident(t, p) - before; grown > 700<<20 && !payload.PoisonsReleased {
		t.Errorf("60 unread answers took %d MiB", grown>>20)
	}
	eventually(t, "a small query is refused", func() (string, bool) { // the batches take all slots while they are made
		resp, err := http.Post(p.url+"/query", "application/json",
			strings.NewReader(`{"model":"m","block_size":16,"token_ids":[1,2,3],"top":1}`))
		must.Succeed(t, err)
		defer resp.Body.Close()
		answer, _ := io.ReadAll(resp.Body)
		return string(answer), resp.StatusCode == 200
	})
}
