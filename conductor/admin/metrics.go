package admin

import (
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// metricsHandler answers /metrics in the text format, or in OpenMetrics with exemplars where the client
// prefers that.
func metricsHandler(from prometheus.Gatherer) http.Handler {
	text := promhttp.HandlerFor(from, promhttp.HandlerOpts{})
	open := promhttp.HandlerFor(sameNames{from}, promhttp.HandlerOpts{EnableOpenMetrics: true})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if expfmt.NegotiateAccept(r.Header, expfmt.DefaultOpenMetricsAcceptedFormats()...).FormatType() == expfmt.TypeOpenMetrics {
			open.ServeHTTP(w, r)
			return
		}
		text.ServeHTTP(w, r)
	})
}

// sameNames keeps the names of all series in OpenMetrics, where a counter has to end in _total: a
// counter under another name, such as those of Dynamo's indexer, has no type.
type sameNames struct{ prometheus.Gatherer }

// Gather implements prometheus.Gatherer.
func (g sameNames) Gather() ([]*dto.MetricFamily, error) {
	all, err := g.Gatherer.Gather()
	for _, f := range all {
		if f.GetType() != dto.MetricType_COUNTER || strings.HasSuffix(f.GetName(), "_total") {
			continue
		}
		f.Type = dto.MetricType_UNTYPED.Enum()
		for _, m := range f.Metric {
			m.Untyped, m.Counter = &dto.Untyped{Value: m.Counter.Value}, nil
		}
	}
	return all, err
}
