package pick

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"example.com/conductor/integrations/envoy/guard"
)

// Names of the gauges of vLLM and SGLang.
var (
	waitingGauges  = []string{"vllm:num_requests_waiting", "sglang:num_queue_reqs"}
	runningGauges  = []string{"vllm:num_requests_running", "sglang:num_running_reqs"}
	cacheUseGauges = []string{"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"}
)

const (
	maxMetrics = 16 << 20 // bytes of the metrics of an engine
	// scrapesAtOnce bounds the engines that are asked at once.
	scrapesAtOnce = 16
	// staleAfter is how many intervals what an engine said of itself counts, if it says nothing new.
	staleAfter = 3
)

// scrape asks all engines for their metrics, each for at most ScrapeEvery, which must not be 0.
func (c *Chooser) scrape(ctx context.Context) {
	c.mu.Lock()
	f := c.fleet
	c.mu.Unlock()
	if f == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.ScrapeEvery)
	defer cancel()
	var all sync.WaitGroup
	slots := make(chan struct{}, scrapesAtOnce)
	for _, e := range f.byEndpoint {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			began := c.Now()
			waiting, running, cacheUse, err := c.scrapeOne(ctx, e)
			c.mu.Lock()
			defer c.mu.Unlock()
			if err != nil {
				c.metrics.scrapes.WithLabelValues("failed").Inc()
				c.logPanic(err)
				c.Log.Debug().Err(err).Str("instance", e.Instance.Instance).Msg("the engine tells no load")
				if errors.Is(err, syscall.ECONNREFUSED) {
					e.unreachable = true
					c.failed(e, began, "it takes no connection")
				}
				return
			}
			if e.unreachable {
				c.lives(e, began)
			}
			e.unreachable = false
			c.metrics.scrapes.WithLabelValues("read").Inc()
			e.waiting, e.running, e.cacheUse, e.scraped = waiting, running, cacheUse, c.Now()
		})
	}
	all.Wait()
}

// scrapeOne reads the metrics of an engine: the sums of its ranks, and the fullest cache.
func (c *Chooser) scrapeOne(ctx context.Context, e *engine) (waiting, running, cacheUse float64, err error) {
	defer guard.Recover(&err) // what an engine says must not end the picker
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(e.base, "/")+"/metrics", nil)
	if err != nil {
		return 0, 0, 0, err
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return 0, 0, 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, 0, 0, fmt.Errorf("GET /metrics: %s", resp.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(io.LimitReader(resp.Body, maxMetrics))
	if err != nil {
		return 0, 0, 0, err
	}
	waiting, found := gauge(families, waitingGauges, func(a, b float64) float64 { return a + b })
	if !found {
		return 0, 0, 0, fmt.Errorf("the metrics have none of %q", waitingGauges)
	}
	running, _ = gauge(families, runningGauges, func(a, b float64) float64 { return a + b })
	cacheUse, _ = gauge(families, cacheUseGauges, func(a, b float64) float64 { return max(a, b) })
	return waiting, running, cacheUse, nil
}

// gauge returns the values of the first family that is there, put together.
func gauge(families map[string]*dto.MetricFamily, names []string, join func(a, b float64) float64) (value float64, found bool) {
	for _, name := range names {
		for _, m := range families[name].GetMetric() {
			v := m.GetGauge().GetValue()
			if m.GetUntyped() != nil {
				v = m.GetUntyped().GetValue()
			}
			if !(v >= 0 && v < 1e9) { // also no number
				continue
			}
			value, found = join(value, v), true
		}
		if found {
			return value, true
		}
	}
	return 0, false
}

// stale reports whether what an engine said of itself is too old to count. The caller holds mu.
func (c *Chooser) stale(l *load, now time.Time) bool {
	return l.scraped.IsZero() || now.Sub(l.scraped) > staleAfter*c.ScrapeEvery
}
