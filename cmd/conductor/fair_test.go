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
	"sync/atomic"
	"testing"

	"kvconductor/internal/must"
)

// rawQuery is a query as bytes on a connection, from a client of a tenant.
func rawQuery(t *testing.T, p *process, tenant string, tokens []uint32) []byte {
	body, err := json.Marshal(map[string]any{"model": "m", "block_size": recordedBlock, "tenant_id": tenant, "token_ids": tokens})
	must.Succeed(t, err)
	return fmt.Appendf(nil, "POST /query HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer client-%s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		strings.TrimPrefix(p.url, "http://"), tenant, len(body), body)
}

// TestQuietTenant asks for one tenant now and then while 32 clients of another ask without pause.
// No query of the first is refused, and few of the others are answered before it: as many as there are
// places, give or take. Where all are one tenant, a query waits until most others have been answered.
func TestQuietTenant(t *testing.T) {
	t.Parallel()
	const blocks, clients, rounds = 2048, 32, 15
	engines := map[string]*ruledEngine{"a": newRuledEngine(t, "engine-a", 0), "b": newRuledEngine(t, "engine-b", 0)}
	settings := "auth: {file: " + credentialsFile(t, "client-a query a", "client-b query b") + "}\nlimits: {max_queries: 2, query_wait: 4m}\nsources:\n"
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
	var answered atomic.Int64 // queries of the others
	// quiet returns how many queries of the others are answered while one of the tenant is, in the median.
	quiet := func(tenant string) int64 {
		c, r := dial()
		defer c.Close()
		query := rawQuery(t, p, tenant, recordedTokens(blocks))
		eventually(t, "the engine never settled", func() (string, bool) {
			_, answer, err := ask(c, r, query)
			must.Succeed(t, err)
			return answer, strings.Contains(answer, fmt.Sprint(blocks*recordedBlock))
		})
		var before []int64
		for range rounds {
			begun := answered.Load()
			status, answer, err := ask(c, r, query)
			must.Succeed(t, err)
			before = append(before, answered.Load()-begun)
			if status != http.StatusOK {
				t.Errorf("a query of tenant %s: %d %.300s", tenant, status, answer)
			}
		}
		slices.Sort(before)
		t.Logf("tenant %s: %v of the others are answered before", tenant, before)
		return before[rounds/2]
	}
	quiet("a")
	var wg sync.WaitGroup
	var noisy []net.Conn
	query := rawQuery(t, p, "b", recordedTokens(blocks))
	for range clients {
		c, r := dial()
		noisy = append(noisy, c)
		wg.Go(func() {
			for {
				if _, _, err := ask(c, r, query); err != nil {
					return // closed below
				}
				answered.Add(1)
			}
		})
	}
	if of, among := quiet("a"), quiet("b"); 4*of >= 3*among {
		t.Errorf("%d of the others are answered before a query of the quiet tenant, %d before one of theirs", of, among)
	}
	for _, c := range noisy {
		c.Close()
	}
	wg.Wait()
}
