package pick

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/integrations/envoy/tokens"
)

// Options configure a Chooser. Only Conductor is required; a field that is 0 or nil has its default.
type Options struct {
	Conductor Conductor
	// Tenant whose engines are chosen; "" is Conductor's default tenant.
	Tenant string
	// Tokenizer says who makes tokens of texts and chats: the engines, unless it names a service.
	Tokenizer tokens.Options
	// Weights of the cost of an engine; all 0 stands for {1, 0.7, 1}. See Cost.
	Weights Weights

	// Patience is how long a request waits for Conductor's answer before the load alone decides, for each 65,536 tokens of its prompts;
	// 50 ms. Raise it if Conductor is far away: the first requests after it hangs wait longer then.
	Patience time.Duration
	// Fallbacks is how many endpoints a choice names besides the best; 3, none if it is negative.
	Fallbacks int
	// MaxTokensInFlight is how many prompt tokens this picker may have at an engine before their first token. An engine beyond
	// it gets no request, and if all are, requests are refused with 429. 0 is no bound.
	MaxTokensInFlight int
	// MaxWaiting is the same for requests that wait in an engine by its own account, which needs ScrapeEvery. 0 is no bound.
	MaxWaiting int

	// LeaveFor is how long an engine is left out after it refused a connection or answered 502 or 503; 5 s. It doubles
	// with each further failure in a row, up to eightfold. Raise it if engines take long to come back.
	LeaveFor time.Duration
	// ScrapeEvery is how often GET /metrics of each engine is read for its waiting and running requests and its cache use; 0, the
	// default, is never. One second is a good value.
	ScrapeEvery time.Duration
	// OthersEvery is how often Conductor is asked how many tokens each engine is expected to compute for all pickers, so that those
	// that share a Conductor know each other's load; 250 ms, never if it is negative. Lower it if prompts are short, so that much changes
	// meanwhile. A large fleet is asked about less often, because at most a twentieth of the time goes into it.
	OthersEvery time.Duration
	// NoFeedback keeps what engines say they had cached from Conductor.
	NoFeedback bool

	// Log gets a line when an engine or Conductor fails, and when it is back; nil discards them.
	Log *zerolog.Logger
	// Metrics is where the metrics are registered; nil is nowhere.
	Metrics prometheus.Registerer
	// HTTP scrapes engines; nil is a client that follows no redirect.
	HTTP *http.Client
	// Resolve returns the addresses of a host name; nil asks the system.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// withDefaults fills in what is 0 or nil.
func (o Options) withDefaults() (Options, error) {
	if o.Conductor == nil {
		return o, errors.New("no Conductor is given")
	}
	for _, d := range []time.Duration{o.Patience, o.LeaveFor, o.ScrapeEvery} {
		if d < 0 {
			return o, errors.New("a duration is negative")
		}
	}
	if o.Weights.Compute < 0 || o.Weights.Wait < 0 || o.Weights.Load < 0 {
		return o, errors.New("a weight is negative")
	}
	if o.MaxTokensInFlight < 0 || o.MaxWaiting < 0 {
		return o, errors.New("a bound is negative")
	}
	if o.MaxWaiting > 0 && o.ScrapeEvery == 0 {
		return o, errors.New("MaxWaiting needs ScrapeEvery: only engines know how many requests wait")
	}
	o.Weights = cmp.Or(o.Weights, Weights{1, 0.7, 1})
	o.Patience = cmp.Or(o.Patience, 50*time.Millisecond)
	o.Fallbacks = max(cmp.Or(o.Fallbacks, 3), 0)
	o.LeaveFor = cmp.Or(o.LeaveFor, 5*time.Second)
	o.OthersEvery = cmp.Or(o.OthersEvery, 250*time.Millisecond)
	if o.Log == nil {
		nop := zerolog.Nop()
		o.Log = &nop
	}
	if o.HTTP == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.Proxy = nil
		o.HTTP = &http.Client{Transport: transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	if o.Resolve == nil {
		o.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Tokenizer.Now = o.Now
	return o, nil
}
