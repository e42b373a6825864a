package query

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	ask "example.com/conductor/internal/request"
	"example.com/conductor/lab/harness"
)

// Expected is what reports made before the measurement add to the server.
type Expected struct {
	Reports    int     `json:"reports"`
	NewTokens  int     `json:"new_tokens"`
	Seconds    float64 `json:"seconds"`
	Bytes      int64   `json:"bytes"` // by the server's account
	RSS        int64   `json:"rss_bytes"`
	Allocs     int     `json:"allocs"`
	AllocBytes int     `json:"alloc_bytes"`
}

// Reports come in lists, so that this process can make them at the rate.
const (
	reportRate = 10_000 // a second
	reportList = 100
)

// mostNewBlocks bounds the new blocks of a report, because a list has to stay below limits.max_body, 16 MiB. A hash takes up
// to 20 digits and a comma, the rest of a report less than 100 bytes.
const mostNewBlocks = (16<<20/reportList - 100) / 21

// sendReports makes Config.Reports reports at reportRate, of prompts by canonical hashes: a block that many share, and blocks of
// their own. Their targets are the instances in turn.
func (s *served) sendReports(ctx context.Context, c *Config) (*Expected, error) {
	e := &Expected{Reports: c.Reports, NewTokens: c.NewTokens}
	before := s.RSS()
	objects, size, err := s.readAllocated()
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	for n := 0; n < c.Reports; n += reportList {
		list := c.reportBody(n)
		harness.Wait(ctx, time.Until(begun.Add(time.Duration(n)*time.Second/reportRate)))
		status, answer, err := ask.Do(ctx, http.DefaultClient, http.MethodPost, s.URL+pathRouted, list)
		if err == nil {
			err = checkStatus(status, answer)
		}
		if err != nil {
			return nil, err
		}
	}
	e.Seconds = time.Since(begun).Seconds()
	e.RSS = s.RSS() - before
	more, larger, err := s.readAllocated()
	if err != nil {
		return nil, err
	}
	e.Allocs, e.AllocBytes = int(more-objects), int(larger-size)
	text, err := s.Get("/metrics")
	if _, rest, found := strings.Cut(string(text), `conductor_memory_bytes{part="expected"} `); found {
		var bytes float64
		fmt.Sscan(rest, &bytes)
		e.Bytes = int64(bytes)
	}
	return e, err
}

// reportBody returns the body of a list of reports, from the n-th on.
func (c *Config) reportBody(n int) []byte {
	body := []byte(`{"model": "` + model + `", "block_size": ` + fmt.Sprint(c.BlockSize) + `, "prompts": [`)
	for i := n; i < min(n+reportList, c.Reports); i++ {
		if i > n {
			body = append(body, ',')
		}
		seq := uint64(i % 100)
		body = fmt.Appendf(body, `{"instance_id": %q, "seq_hashes": [%d`, instanceName(i%c.Workers), seq)
		for b := range c.NewTokens / c.BlockSize {
			seq = (uint64(i)<<20 | uint64(b)) * 0x9e3779b97f4a7c15 // odd, so all differ
			body = fmt.Appendf(body, ",%d", seq)
		}
		body = append(body, "]}"...)
	}
	return append(body, "]}"...)
}
