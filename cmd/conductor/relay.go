package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/statelog"
	"example.com/conductor/config"
	"example.com/conductor/events/relay"
	"example.com/conductor/events/stream"
	"example.com/conductor/events/zmq"
)

// relayOptions are the flags of conductor relay.
type relayOptions struct {
	endpoint, replay    string // of the engine
	bind, bindReplay    string
	dir                 string
	memory, disk        config.Size
	ranks               int
	listen              string
	tls                 access.ServerFiles
	logLevel, logFormat string
}

func relayCommand() *cobra.Command {
	o := relayOptions{memory: 64 << 20}
	cmd := &cobra.Command{
		Use:   "relay",
		Short: "Follow one engine and serve its events onwards, with a longer history",
		Long: `Follows the KV-cache events of one engine (vLLM, SGLang, TensorRT-LLM) and serves them
onwards over sockets of the same protocol: live batches, and replays of older ones. The
engine keeps some minutes of history; the relay keeps as much as its memory and its disk
take, and behind that a list of all blocks that the engine holds. A follower that asks for
more than the relay has gets that list first, as batches of the engine's form.

Followers need no change but the two endpoints: Conductor, routers and vLLM's own
subscribers read from a relay as from an engine.`,
		Example: "  conductor relay --endpoint tcp://127.0.0.1:5557 --replay-endpoint tcp://127.0.0.1:6557",
		Args:    cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&o.endpoint, "endpoint", "", "`endpoint` of the engine's live events, as in tcp://127.0.0.1:5557")
	f.StringVar(&o.replay, "replay-endpoint", "",
		"`endpoint` of the engine's replay service; without it the history begins when the relay does")
	f.StringVar(&o.bind, "bind", "", "`endpoint` to serve live events at, as in tcp://*:6557")
	f.StringVar(&o.bindReplay, "bind-replay", "", "`endpoint` to serve replays at, as in tcp://*:6577")
	f.IntVar(&o.ranks, "ranks", 1, "data-parallel ranks of the engine; the ports of each endpoint are consecutive")
	f.Var(&o.memory, "memory", "history in memory, of each rank")
	f.Var(&o.disk, "disk", "history on the disk behind that, of each rank; needs --dir")
	f.StringVar(&o.dir, "dir", "", "`directory` of the history on the disk; what an earlier relay left there is removed")
	f.StringVar(&o.tls.Cert, "cert", "", "PEM `file` with the certificate of the listener; read again when it changes")
	f.StringVar(&o.tls.Key, "key", "", "PEM `file` with the key of --cert")
	f.StringVar(&o.tls.ClientCA, "client-ca", "", "PEM `file` with the authorities whose clients alone may connect to the listener")
	f.StringVar(&o.listen, "listen", "127.0.0.1:13380", "`address` of /metrics, /health and /ready; empty for none")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", "json", "json or console")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.checkOptions(); err != nil {
			return cli.Usagef("%w", err)
		}
		log, flush := newLogger(config.Log{Level: o.logLevel, Format: o.logFormat}, cmd.ErrOrStderr())
		defer flush()
		ctx, stop := cli.UntilSignal(cmd)
		defer stop()
		return runRelay(ctx, o, log)
	}
	return cmd
}

// checkOptions returns an error for options with which no relay can work.
func (o *relayOptions) checkOptions() error {
	for _, need := range []struct{ flag, value string }{{"endpoint", o.endpoint}, {"bind", o.bind}, {"bind-replay", o.bindReplay}} {
		if need.value == "" {
			return fmt.Errorf("--%s is missing", need.flag)
		}
	}
	if err := zmq.CheckEndpoint(o.endpoint); err != nil {
		return fmt.Errorf("--endpoint: %w", err)
	}
	if o.replay != "" {
		if err := zmq.CheckEndpoint(o.replay); err != nil {
			return fmt.Errorf("--replay-endpoint: %w", err)
		}
	}
	switch level, err := zerolog.ParseLevel(o.logLevel); {
	case err != nil || level == zerolog.NoLevel:
		return fmt.Errorf("--log-level: %q is none of debug, info, warn, error", o.logLevel)
	case o.logFormat != "json" && o.logFormat != "console":
		return fmt.Errorf("--log-format: %q is none of json, console", o.logFormat)
	case o.ranks < 1:
		return fmt.Errorf("--ranks: %d is less than 1", o.ranks)
	case o.memory < 1:
		return errors.New("--memory: a relay needs memory")
	case (o.tls.Cert == "") != (o.tls.Key == ""):
		return errors.New("--cert and --key belong together")
	case o.tls.ClientCA != "" && o.tls.Cert == "":
		return errors.New("--client-ca needs --cert and --key")
	case o.disk > 0 && o.dir == "":
		return errors.New("--disk needs --dir")
	case o.dir != "" && o.disk < 1:
		return errors.New("--dir needs --disk, the bytes that files may take")
	}
	return nil
}

// ofRank returns the endpoint of a data-parallel rank: its port is that many higher. Port 0
// stays: each rank gets a free one.
func ofRank(endpoint string, rank int) (string, error) {
	if rank == 0 || endpoint == "" {
		return endpoint, nil
	}
	i := strings.LastIndexByte(endpoint, ':')
	port, err := strconv.Atoi(endpoint[i+1:])
	if err != nil || !strings.HasPrefix(endpoint, "tcp://") {
		return "", fmt.Errorf("%q has no port to count ranks from", endpoint)
	}
	if port == 0 {
		return endpoint, nil
	}
	if port += rank; port > 65535 {
		return "", fmt.Errorf("%q has no port left for rank %d", endpoint, rank)
	}
	return endpoint[:i+1] + strconv.Itoa(port), nil
}

// runRelay relays until ctx ends or its listener fails.
func runRelay(ctx context.Context, o relayOptions, log zerolog.Logger) error {
	life := newLifecycle(ctx, log)
	defer life.end()
	relays := &relays{}
	life.onEnd("relaying", relays.closeAll)
	for rank := range o.ranks {
		if err := relays.openRank(o, rank, log.With().Int("rank", rank).Logger()); err != nil {
			return err
		}
	}
	if o.listen != "" {
		if err := relays.listen(life, o); err != nil {
			return err
		}
	}
	err := life.wait()
	log.Info().Msg("stopping")
	return err
}

// listen serves /metrics, /health and /ready.
func (r *relays) listen(life *lifecycle, o relayOptions) error {
	bound, err := net.Listen("tcp", o.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	life.onEnd("the port", func() { bound.Close() })
	ln := bound
	if o.tls.Cert != "" {
		if ln, err = secureListener(life, bound, o.tls); err != nil {
			return err
		}
	}
	web := &http.Server{Handler: access.OnlyLocalNames(r.httpHandler()), DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	life.run("the listener", func(context.Context) error { return web.Serve(ln) })
	life.onEnd("answering clients", func() { web.Close() })
	life.log.Info().Str("address", ln.Addr().String()).Msg("listening")
	return nil
}

// secureListener returns a listener with TLS, whose certificate is read again when it changes.
func secureListener(life *lifecycle, ln net.Listener, files access.ServerFiles) (net.Listener, error) {
	files.RequireClientCert = files.ClientCA != ""
	stamp := access.Stamp(files.Cert, files.Key, files.ClientCA)
	certificates, err := access.LoadCertificates(files)
	if err != nil {
		return nil, fmt.Errorf("--cert: %w", err)
	}
	life.follow("watching the certificate", func(ctx context.Context) {
		access.Watch(ctx, stamp, certificates.Paths, func() {
			if err := certificates.Reload(); err != nil {
				life.log.Error().Err(err).Msg("the certificate is not replaced")
			}
		})
	})
	return tls.NewListener(ln, certificates.Config()), nil
}

// relays are the relays of one process, by rank.
type relays struct{ all []*relay.Relay }

// closeAll closes the relays of all ranks.
func (r *relays) closeAll() {
	for _, one := range r.all {
		one.Close()
	}
}

// openRank opens the sockets and the relay of a rank.
func (r *relays) openRank(o relayOptions, rank int, log zerolog.Logger) error {
	var ends [4]string
	for i, end := range [...]struct{ flag, endpoint string }{{"endpoint", o.endpoint}, {"replay-endpoint", o.replay}, {"bind", o.bind},
		{"bind-replay", o.bindReplay}} {
		var err error
		if ends[i], err = ofRank(end.endpoint, rank); err != nil {
			return fmt.Errorf("--%s: %w", end.flag, err)
		}
	}
	live, err := zmq.Listen(ends[2])
	if err != nil {
		return fmt.Errorf("--bind: %w", err)
	}
	replays, err := zmq.Listen(ends[3])
	if err != nil {
		live.Close()
		return fmt.Errorf("--bind-replay: %w", err)
	}
	cfg := relay.Config{
		Endpoint: ends[0], ReplayEndpoint: ends[1], Memory: int64(o.memory), Disk: int64(o.disk),
		Report: func(err error) {
			if err == nil {
				log.Info().Msg("the disk takes history again")
				return
			}
			log.Warn().Err(err).Msg("the relay has no history on the disk")
		},
	}
	var opened atomic.Pointer[relay.Relay]
	cfg.OnState = statelog.New(log.With().Str("source", ends[0]).Logger(), func() (st stream.Status) {
		if one := opened.Load(); one != nil {
			st = one.Stats().Stream
		}
		return st
	}, 30*time.Second).Change
	if o.dir != "" {
		cfg.Dir = filepath.Join(o.dir, strconv.Itoa(rank))
	}
	one, err := relay.Open(cfg)
	if err != nil {
		live.Close()
		replays.Close()
		return err
	}
	opened.Store(one)
	one.Serve(live, replays)
	r.all = append(r.all, one)
	log.Info().Str("endpoint", ends[0]).Str("live", live.Addr().String()).Str("replays", replays.Addr().String()).Msg("relaying")
	return nil
}

// httpHandler returns the handler of /metrics, /health and /ready. A process is ready once all its relays follow their engines.
func (r *relays) httpHandler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(r, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildInfo())
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		for rank, one := range r.all {
			if st := one.Stats().Stream; st.State != stream.Synced && st.State != stream.Partial {
				http.Error(w, fmt.Sprintf("rank %d is %s", rank, st.State), http.StatusServiceUnavailable)
				return
			}
		}
		fmt.Fprintln(w, "ready")
	})
	return mux
}
