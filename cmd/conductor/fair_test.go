package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"kvconductor/internal/must"
)

// rawQuery is a query as bytes on a connection, from a client of a tenant.
func rawQuery(t *testing.T, p *process, tenant string, tokens []uint32) []byte {
	body, err := json.Marshal(map[string]any{"model": "m", "block_size": recordedBlock, "tenant_id": tenant, "token_ids": tokens})
	must.Succeed(t, err)
	return fmt.Appendf(nil, "POST /query HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer client-%s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		strings.TrimPrefix(p.url, "http://"), tenant, len(body), body)
}

// TestQuietTenant asks for one tenant now and then while 64 clients of another ask without pause.
// No query of the first is refused. The log has its latency alone, with the others at work, and as it is
// where all are one tenant.
func TestQuietTenant(t *testing.T) {
	const blocks = 8192
	engines := map[string]*ruledEngine{"a": newRuledEngine(t, "engine-a", 0), "b": newRuledEngine(t, "engine-b", 0)}
	settings := "auth: {file: " + credentialsFile(t, "client-a query a", "client-b query b") + "}\nlimits: {max_queries: 2, query_wait: 10s}\nsources:\n"
	for tenant, e := range engines {
		settings += fmt.Sprintf("  - {endpoint: 'tcp://%s', type: vLLM, modelname: m, instance_id: %s, tenant_id: %s, block_size: %d}\n", e.pub.Addr(), e.name, tenant, recordedBlock)
	}
	p := serveProcess(t, settings)
	for _, e := range engines {
		e.publish(ruledStored(0, blocks))
	}
	dial := func() (net.Conn, *bufio.Reader) {
		c, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
		must.Succeed(t, err)
		return c, bufio.NewReader(c)
	}
	ask := func(c net.Conn, r *bufio.Reader, query []byte) (int, string, error) {
		if _, err := c.Write(query); err != nil {
			return 0, "", err
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(answer), err
	}
	quiet := func(tenant string) string {
		c, r := dial()
		defer c.Close()
		query := rawQuery(t, p, tenant, recordedTokens(blocks))
		eventually(t, "the engine never settled", func() (string, bool) {
			_, answer, err := ask(c, r, query)
			must.Succeed(t, err)
			return answer, strings.Contains(answer, fmt.Sprint(blocks*recordedBlock))
		})
		pace := time.NewTicker(10 * time.Millisecond)
		defer pace.Stop()
		var took []time.Duration
		for range 100 {
			begun := time.Now()
			status, answer, err := ask(c, r, query)
			must.Succeed(t, err)
			took = append(took, time.Since(begun))
			if status != http.StatusOK {
				t.Errorf("a query of tenant %s: %d %.300s", tenant, status, answer)
			}
			<-pace.C
		}
		slices.Sort(took)
		return fmt.Sprintf("p50 %s, p99 %s", took[50].Round(100*time.Microsecond), took[98].Round(100*time.Microsecond))
	}
	t.Log("alone:", quiet("a"))
	var wg sync.WaitGroup
	var noisy []net.Conn
	query := rawQuery(t, p, "b", recordedTokens(blocks))
	for range 64 {
		c, r := dial()
		noisy = append(noisy, c)
		wg.Go(func() {
			for {
				if _, _, err := ask(c, r, query); err != nil {
					return // closed below
				}
			}
		})
	}
	t.Log("with 64 clients of another tenant:", quiet("a"))
	t.Log("with 64 clients of its own tenant:", quiet("b"))
	for _, c := range noisy {
		c.Close()
	}
	wg.Wait()
}
