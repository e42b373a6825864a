package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"
)

// settings are the flags of the program. Each flag is also an environment variable: --max-body is CONDUCTOR_PICKER_MAX_BODY. A flag
// on the command line wins.
type settings struct {
	listen, admin string

	conductor, tokenFile, tenant string
	patience                     time.Duration

	tokenizer, tokenizerKeyFile string
	tokenizerRender             bool
	tokenizerTimeout            time.Duration
	tokenCache                  bytesValue

	weights           weightsValue
	fallbacks         int
	maxTokensInFlight int
	maxWaiting        int
	leaveFor          time.Duration
	scrapeEvery       time.Duration
	othersEvery       time.Duration
	noFeedback        bool

	maxBody, maxHeld bytesValue
	ownHeaders       listValue
	debugHeader      bool

	tlsCert, tlsKey string
	tlsSelfSigned   bool

	logLevel zerolog.Level
	drain    time.Duration
	version  bool
}

const envPrefix = "CONDUCTOR_PICKER_"

// newFlags returns the flags, and the settings that they set.
func newFlags() (*flag.FlagSet, *settings) {
	s := &settings{
		tokenCache: 256 << 20, weights: weightsValue{1, 0.7, 1}, maxBody: 8 << 20, maxHeld: 1 << 30, logLevel: zerolog.InfoLevel,
	}
	f := flag.NewFlagSet("conductor-picker", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&s.listen, "listen", ":9002", "`address` where the data plane asks over gRPC")
	f.StringVar(&s.admin, "admin", ":9003", "`address` of GET /metrics, /healthz and /readyz over HTTP; empty for none")

	f.StringVar(&s.conductor, "conductor", "", "base `URL` of Conductor, such as http://127.0.0.1:13333 (required)")
	f.StringVar(&s.tokenFile, "conductor-token-file", "",
		"`file` with the bearer token for Conductor, of role query; read for each request")
	f.StringVar(&s.tenant, "tenant", "", "`tenant` whose engines are chosen; empty is Conductor's default tenant")
	f.DurationVar(&s.patience, "patience", 50*time.Millisecond,
		"how long a request waits for Conductor, for each 65536 tokens of its prompts, before load alone decides; "+
			"raise it if Conductor is far away")

	f.StringVar(&s.tokenizer, "tokenizer", "", "base `URL` of a service that tokenizes in place of the engines")
	f.BoolVar(&s.tokenizerRender, "tokenizer-render", false, "the tokenizer is vLLM's render service, not one with /tokenize")
	f.StringVar(&s.tokenizerKeyFile, "tokenizer-key-file", "", "`file` with the API key of the engines or of the tokenizer")
	f.DurationVar(&s.tokenizerTimeout, "tokenizer-timeout", 250*time.Millisecond,
		"how long tokenizing may take for each started 64 KiB before load alone decides; raise it if engines answer late")
	f.Var(&s.tokenCache, "token-cache", "`bytes` of tokenized prompts to keep, 4 for each token; raise it for many long conversations")

	f.Var(&s.weights, "weights",
		"three `weights` for the cost of an engine: of tokens to compute, of tokens that wait there, and of its load")
	f.IntVar(&s.fallbacks, "fallbacks", 3, "`engines` that the data plane may try after the best one")
	f.IntVar(&s.maxTokensInFlight, "max-tokens-in-flight", 0,
		"prompt `tokens` that this picker may have at an engine before their first token; "+
			"clients get 429 when all engines are beyond it; 0 is no bound")
	f.IntVar(&s.maxWaiting, "max-waiting", 0, "the same for the `requests` that wait in an engine by its own metrics; needs --scrape-every")
	f.DurationVar(&s.leaveFor, "leave-for", 5*time.Second,
		"how long an engine is left out after it refused a connection or answered 502 or 503")
	f.DurationVar(&s.scrapeEvery, "scrape-every", 0,
		"how often GET /metrics of each engine is read for its load; 0 is never, 1s is a good value")
	f.DurationVar(&s.othersEvery, "others-every", 250*time.Millisecond,
		"how often Conductor is asked what engines compute for other pickers; lower it if prompts are short; 0 is never")
	f.BoolVar(&s.noFeedback, "no-feedback", false, "do not tell Conductor what engines say they had cached")

	f.Var(&s.maxBody, "max-body", "`bytes` of a request that are read to choose its engine; load alone decides for larger ones")
	f.Var(&s.maxHeld, "max-held",
		"`bytes` of all requests that are held at once until their engine is chosen; load alone decides beyond it")
	f.Var(&s.ownHeaders, "own-headers",
		"`names` of further request headers, with commas between, that are removed when they come from clients")
	f.BoolVar(&s.debugHeader, "debug-header", false,
		"let clients ask with x-conductor-picker-debug: 1 for the answer header x-conductor-picker, which says how the engine was chosen")

	f.StringVar(&s.tlsCert, "tls-cert", "", "`file` with the certificate for gRPC in PEM; read again when it changes")
	f.StringVar(&s.tlsKey, "tls-key", "", "`file` with its key")
	f.BoolVar(&s.tlsSelfSigned, "tls-self-signed", false,
		"serve gRPC with a certificate made at the start, for gateways that do not verify it")

	f.TextVar(&s.logLevel, "log-level", s.logLevel, "`level` of the log: debug, info, warn or error")
	f.DurationVar(&s.drain, "drain", 30*time.Second, "how long answers under way may take to end after SIGTERM")
	f.BoolVar(&s.version, "version", false, "print the version and exit")
	return f, s
}

// parseSettings reads args and the environment that lookup has. It returns flag.ErrHelp after it has written the usage to out.
func parseSettings(args []string, lookup func(string) (string, bool), out io.Writer) (*settings, error) {
	f, s := newFlags()
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintf(out, "conductor-picker chooses an engine for each request that Envoy or a gateway asks it about over ext_proc.\n"+
				"Each flag is also an environment variable: --max-body is %sMAX_BODY.\n\n", envPrefix)
			f.SetOutput(out)
			f.PrintDefaults()
		}
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q: only flags are known", f.Arg(0))
	}
	given := map[string]bool{}
	f.Visit(func(g *flag.Flag) { given[g.Name] = true })
	var wrong []error
	f.VisitAll(func(g *flag.Flag) {
		name := envName(g.Name)
		if value, ok := lookup(name); ok && !given[g.Name] {
			if err := g.Value.Set(value); err != nil {
				wrong = append(wrong, fmt.Errorf("invalid value %q of %s: %w", value, name, err))
			}
		}
	})
	if !s.version {
		wrong = append(wrong, s.check())
	}
	if err := errors.Join(wrong...); err != nil {
		return nil, err
	}
	return s, nil
}

func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// check returns what is wrong with the settings as a whole.
func (s *settings) check() error {
	var wrong []error
	f := func(bad bool, format string, of ...any) {
		if bad {
			wrong = append(wrong, fmt.Errorf(format, of...))
		}
	}
	for name, value := range map[string]string{"conductor": s.conductor, "tokenizer": s.tokenizer} {
		u, err := url.Parse(value)
		f(value != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == ""),
			"invalid --%s %q: want a URL such as http://127.0.0.1:13333", name, value)
	}
	f(s.conductor == "", "no --conductor: say where Conductor is, such as http://127.0.0.1:13333")
	f(s.tokenizerRender && s.tokenizer == "", "--tokenizer-render needs --tokenizer, the URL of the render service")
	f((s.tlsCert == "") != (s.tlsKey == ""), "--tls-cert and --tls-key belong together: one of them is missing")
	f(s.tlsSelfSigned && s.tlsCert != "", "--tls-self-signed and --tls-cert exclude each other")
	f(s.maxWaiting > 0 && s.scrapeEvery == 0, "--max-waiting needs --scrape-every: only engines know how many requests wait")
	for name, d := range map[string]time.Duration{"scrape-every": s.scrapeEvery, "others-every": s.othersEvery, "drain": s.drain} {
		f(d < 0, "invalid --%s %s: a duration is not negative", name, d)
	}
	for name, d := range map[string]time.Duration{
		"patience": s.patience, "tokenizer-timeout": s.tokenizerTimeout, "leave-for": s.leaveFor,
	} {
		f(d <= 0, "invalid --%s %s: want more than 0", name, d)
	}
	for name, n := range map[string]int{
		"fallbacks": s.fallbacks, "max-tokens-in-flight": s.maxTokensInFlight, "max-waiting": s.maxWaiting,
	} {
		f(n < 0, "invalid --%s %d: want 0 or more", name, n)
	}
	f(s.maxBody < 1, "invalid --max-body %d: want 1 or more", s.maxBody)
	f(s.maxBody > 1<<30, "invalid --max-body %d: want at most 1 GiB", s.maxBody)
	f(s.maxHeld < 1, "invalid --max-held %d: want 1 or more", s.maxHeld)
	return errors.Join(wrong...)
}

// bytesValue is a number of bytes, such as 8388608 or 8MiB.
type bytesValue int64

func (v *bytesValue) String() string {
	for _, unit := range byteUnits {
		if *v != 0 && int64(*v)%unit.bytes == 0 {
			return strconv.FormatInt(int64(*v)/unit.bytes, 10) + unit.name
		}
	}
	return "0"
}

func (v *bytesValue) Set(text string) error {
	for _, unit := range byteUnits {
		number, ok := strings.CutSuffix(text, unit.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n < 0 || n > (1<<62)/unit.bytes {
			break
		}
		*v = bytesValue(n * unit.bytes)
		return nil
	}
	return errors.New("want a number of bytes, such as 8388608 or 8MiB")
}

var byteUnits = []struct {
	name  string
	bytes int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"", 1}}

// weightsValue is three numbers: of what is left to compute, what waits, and load.
type weightsValue [3]float64

func (v *weightsValue) String() string { return fmt.Sprintf("%g,%g,%g", v[0], v[1], v[2]) }

func (v *weightsValue) Set(text string) error {
	parts := strings.Split(text, ",")
	var w weightsValue
	sum := 0.0
	for i, part := range parts {
		n, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
		if err != nil || !(n >= 0 && n <= 1e9) || len(parts) != len(w) {
			sum = 0
			break
		}
		w[i] = n
		sum += n
	}
	if sum == 0 {
		return errors.New("want three numbers, such as 1,0.7,1, of which none is negative and not all are 0")
	}
	*v = w
	return nil
}

// listValue is a list with commas between.
type listValue []string

func (v *listValue) String() string { return strings.Join(*v, ",") }

func (v *listValue) Set(text string) error {
	*v = nil
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			*v = append(*v, part)
		}
	}
	return nil
}
