// The conductor-picker program chooses an inference engine for each request that Envoy, or a gateway that speaks the Endpoint Picker
// Protocol, asks it about. It asks Conductor which engine has how much of the prompt in its cache.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"

	"example.com/conductor/integrations/envoy/extproc"
	"example.com/conductor/integrations/envoy/pick"
	"example.com/conductor/integrations/envoy/server"
)

var version = "dev" // set by the linker

// chooser is what the program needs of package pick.
type chooser interface {
	pick.Picker
	// Run follows the fleet until ctx ends. Pick is called only while it runs.
	Run(ctx context.Context)
	// Ready reports whether there is an engine to choose.
	Ready() bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.LookupEnv, newChooser, os.Stdout, os.Stderr))
}

// run is the program. It returns its exit status: 2 if the settings are wrong, 1 if it cannot serve.
func run(ctx context.Context, args []string, lookup func(string) (string, bool),
	newChooser func(*settings, prometheus.Registerer, zerolog.Logger) (chooser, error), stdout, stderr io.Writer) int {
	s, err := parseSettings(args, lookup, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "conductor-picker: %v\n", err)
		return 2
	case s.version:
		fmt.Fprintln(stdout, version)
		return 0
	}
	zerolog.TimeFieldFormat = time.RFC3339Nano
	log := zerolog.New(stderr).Level(s.logLevel).With().Timestamp().Logger()
	if err := serve(ctx, s, lookup, newChooser, log); err != nil {
		log.Error().Err(err).Msg("the picker ends")
		return 1
	}
	return 0
}

// serve runs the picker until ctx ends, and then until the requests under way have ended.
func serve(ctx context.Context, s *settings, lookup func(string) (string, bool),
	newChooser func(*settings, prometheus.Registerer, zerolog.Logger) (chooser, error), log zerolog.Logger) error {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "conductor_picker_build_info", Help: "1, labelled with the version.", ConstLabels: prometheus.Labels{"version": version},
		}, func() float64 { return 1 }))

	tracer, flushTraces, err := newTracer(ctx, lookup, log)
	if err != nil {
		return err
	}
	defer flushTraces()
	var security *tls.Config
	switch {
	case s.tlsSelfSigned:
		security, err = server.SelfSignedTLS()
	case s.tlsCert != "":
		security, err = server.FileTLS(s.tlsCert, s.tlsKey, log)
	}
	if err != nil {
		return err
	}
	picker, err := newChooser(s, registry, log)
	if err != nil {
		return err
	}
	grpcServer := server.New(extproc.New(picker, extproc.Options{
		MaxBody: int(s.maxBody), MaxHeld: int64(s.maxHeld),
		OwnHeaders: s.ownHeaders, Debug: s.debugHeader, Log: log, Tracer: tracer, Registry: registry,
	}), server.Options{
		// Bodies that are too large to be read must pass in BUFFERED as well, where the data plane sends them in one message.
		Ready: picker.Ready, TLS: security, MaxMessage: max(64<<20, 2*int(s.maxBody)),
	})

	listener, err := net.Listen("tcp", s.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	failed := make(chan error, 2)
	if s.admin != "" {
		adminListener, err := net.Listen("tcp", s.admin)
		if err != nil {
			listener.Close()
			return fmt.Errorf("--admin: %w", err)
		}
		admin := &http.Server{Handler: adminHandler(registry, picker.Ready), ReadHeaderTimeout: 10 * time.Second}
		defer admin.Close()
		go func() { failed <- admin.Serve(adminListener) }()
		log.Info().Str("address", adminListener.Addr().String()).Msg("metrics and health over HTTP")
	}

	// The chooser runs longer than the server, because requests under way still ask it and report to it.
	running, halt := context.WithCancel(context.WithoutCancel(ctx))
	var work sync.WaitGroup
	work.Go(func() { picker.Run(running) })
	defer work.Wait()
	defer halt()
	go func() { failed <- grpcServer.Serve(listener) }()
	log.Info().Str("address", listener.Addr().String()).Bool("tls", security != nil).Str("version", version).
		Msg("the picker takes requests")

	select {
	case err = <-failed:
	case <-ctx.Done():
		log.Info().Dur("at_most_ms", s.drain).Msg("the picker waits for answers under way, then ends")
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.drain)
	defer cancel()
	grpcServer.Stop(drain)
	return err
}

// adminHandler serves metrics and health. /healthz is well while the process answers, /readyz if it can choose engines.
func adminHandler(registry *prometheus.Registry, ready func() bool) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !ready() {
			http.Error(w, "no engine is known yet", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}
