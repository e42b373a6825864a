package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	kvconductor "example.com/conductor"
	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/compat/dynamo"
	"example.com/conductor/conductor"
	"example.com/conductor/conductor/admin"
	"example.com/conductor/conductor/cluster"
	"example.com/conductor/conductor/docs"
	conductorhttp "example.com/conductor/conductor/http"
	"example.com/conductor/conductor/rpc"
	"example.com/conductor/conductor/server"
	"example.com/conductor/conductor/telemetry"
	"example.com/conductor/conductor/ui"
	"example.com/conductor/conductor/watch"
	"example.com/conductor/config"
	"example.com/conductor/history"
	"example.com/conductor/history/file"
	"example.com/conductor/history/peer"
	"example.com/conductor/index/hash"
	"example.com/conductor/internal/memory"
)

func serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:        "serve",
		SuggestFor: []string{"run", "start", "server"},
		Short:      "Follow the fleet's events and answer queries",
		Long: `Follows the KV-cache events of engines and answers routers that ask which instance holds
how long a prefix of a prompt. It runs until it gets SIGINT or SIGTERM, and then goes on
answering for shutdown.drain, so that routers can turn to another server.

Settings come from, each over the one before it: the defaults, the file of --config (else
CONDUCTOR_CONFIG_PATH, else ~/.mooncake/conductor_config.json), CONDUCTOR_… variables, and
flags. "conductor config show" prints what they come to, "conductor config check FILE" finds
mistakes without starting anything. SIGHUP, or POST /admin/reload, reads the settings again.

The log goes to standard error, one JSON object a line (--log-format console for people).`,
		Example: "  conductor serve\n" +
			"  conductor serve --config /etc/conductor/config.yaml\n" +
			"  conductor serve --listen 127.0.0.1:13333 --log-format console",
		Args: cobra.NoArgs,
	}
	config.Flags(cmd.Flags())
	flags := addIndexerFlags(cmd.Flags(), 0)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		loaded, err := flags.load()
		if err != nil {
			cmd.PrintErrln(err) // one line per mistake, each with its place
			return cli.ErrReported
		}
		return runServer(cmd, loaded, flags)
	}
	return cmd
}

// runServer serves until a signal.
func runServer(cmd *cobra.Command, loaded *config.Loaded, flags *indexerFlags) error {
	log := newLogger(loaded.Config.Log, cmd.ErrOrStderr()).Level(zerolog.TraceLevel)
	setLevel(loaded.Config.Log.Level) // of the process, so that a reload may change it
	remarks := flags.remarks()
	for _, w := range loaded.Warnings {
		log.Warn().Msg(w.Error())
	}
	for _, remark := range remarks {
		log.Info().Msg(remark)
	}
	ctx, stop := cli.UntilSignal(cmd)
	defer stop()
	return serve(ctx, loaded, flags.load, log, nil)
}

// newLogger writes to standard error as log.level and log.format say.
func newLogger(c config.Log, w io.Writer) zerolog.Logger {
	level, err := zerolog.ParseLevel(c.Level)
	if err != nil {
		panic("BUG: a checked log level does not parse: " + err.Error())
	}
	if c.Format == "console" {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.TimeOnly, NoColor: !cli.Coloured(w)}
	}
	return zerolog.New(w).Level(level).With().Timestamp().Logger()
}

// serve runs until ctx ends: ports first, so that a taken one is known before
// any engine is bothered, then sources, then HTTP. load reads the settings again. The Conductor, the servers and
// the metrics are passed to show, just before the servers run.
func serve(ctx context.Context, loaded *config.Loaded, load func() (*config.Loaded, error), log zerolog.Logger,
	show func(*conductor.Conductor, *server.Servers, *prometheus.Registry)) error {
	cfg, stamp := loaded.Config, stampOf(loaded.File)
	if err := errors.Join(refusals(loaded)...); err != nil {
		return err
	}
	web := server.NewServers(listeners(cfg.Listeners), timeouts(cfg.Limits), log)
	if err := web.Bind(); err != nil {
		return err
	}
	defer web.Unbind()
	web.Connections.SetBounds(connectionBounds(cfg.Limits))
	entry, err := newGate(loaded, log)
	if err != nil {
		return err
	}
	entry.warnOfExpiry()
	entry.watch(ctx)
	if entry.certificates != nil {
		web.TLS = entry.certificates.Config()
	}
	asking, err := peerClient(loaded)
	if err != nil {
		return err
	}
	tracer, err := newTracer(loaded, log)
	if err != nil {
		return err
	}
	defer closeTracer(tracer, log)
	timing := telemetry.New(tracer, log)
	timing.SetSlow(cfg.Log.SlowQuery)
	access, err := accessLog(cfg.Dynamo, log)
	if err != nil {
		return err
	}
	defer closeAccessLog(access, log)
	sockets, allowed := newSockets(cfg), newReaching(&cfg)
	options := conductorOptions(cfg, sockets, allowed, log)
	kept, err := snapshotDir(loaded)
	if err != nil {
		return err
	}
	if kept != nil {
		defer kept.Close()
	}
	shared, err := openStore(loaded)
	if err != nil {
		return err
	}
	recovers := kept != nil || len(cfg.Dynamo.Peers) > 0 || shared != nil
	gate := make(chan struct{})
	options.Gate = gate
	if !recovers {
		close(gate)
	}
	if options.Memo, err = hash.NewMemo(memoBytes); err != nil {
		return err
	}
	defer options.Memo.Close()
	if options.Tape, err = record(loaded, options, log); err != nil {
		return err
	}
	c := conductor.New(options)
	c.Tune(tunables(&cfg))
	loader := &history.Loader{Conductor: c, TTL: recoveredTTL, Log: log}
	var shelved *shelving // set once the store is known
	peers := peer.New(peer.Config{
		Others: func(ctx context.Context) []string { return shelved.others(ctx) },
		Peers:  cfg.Dynamo.Peers, Formats: []peer.Format{peer.OwnFormat(), dynamo.Dumps(log)},
		Client:  asking,
		Digests: peer.Digests{Path: admin.DigestPath, Read: admin.ReadDigests}, Log: log,
	})
	discovered := cluster.NewAsked(c)
	targets := newTargets(&cfg, discovered, sockets, allowed, log)
	keeper := file.NewKeeper(file.Config{
		Dir: kept, Conductor: c, Targets: targets, Interval: cfg.Snapshot.Interval, Keep: snapshotsKept, Log: log,
	})
	if kept != nil {
		c.KeepRegistrations(keeper.Registrations)
	}
	members := newFleet(&cfg, shared, web, log)
	places, budget := admission(cfg.Limits), requestBudget(cfg.Limits)
	looks := watching(&cfg.UI, c, web, kept != nil, keeper, peers, targets, members)
	looks.Refused = func() uint64 { return places.Stats().Refused + budget.Refused() + entry.Limited() }
	hub := watch.New(looks)
	defer hub.Close()
	calls, watches := rpc.NewMetrics(timing), rpc.NewWatches(cfg.Limits.MaxWatches)
	dialect := dynamo.New(dynamo.Config{
		Conductor: c, MaxTokens: cfg.Limits.MaxTokens, TestEndpoints: cfg.Dynamo.TestEndpoints, Admission: places, Replica: peers,
		ReopenLogs: access.Reopen, Log: log,
	})
	registry := prometheus.NewRegistry()
	registry.MustRegister(conductor.Collector{Conductor: c}, conductor.FeedbackCollector{Conductor: c},
		conductor.ExpectedCollector{Conductor: c}, conductor.LivesCollector{Conductor: c}, memory.Collector{Conductor: c}, dialect, peers,
		keeper, hub, places, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildInfo(), accessLogLosses(access), unclaimedMessages(sockets),
		entry, budget, &web.Connections, timing, calls, watches)
	if entry.certificates != nil {
		registry.MustRegister(entry.certificates.Expiry())
	}

	registry.MustRegister(targets)
	c.AwaitUnfound(func() []conductor.SourceState { return targets.Unfound(cfg.Stream.StaleAfter) })
	replicas := newReplicas(members, c, targets, registry, log)
	defer replicas.close()
	if kept != nil && replicas.registry != nil {
		keeper.Registrations.Share(replicas.registry)
	}
	shelved, err = newShelving(loaded, members, c, asking, replicas.keeps, registry, log)
	if err == nil {
		err = replicas.share(loaded, c, discovered, shelved, registry, log)
	}
	if err != nil {
		c.Close()
		options.Tape.Close()
		return err
	}
	replicas.mirrorTo(peers, c, &cfg, asking, registry, log)
	sources := &following{conductor: c, targets: targets, shared: replicas.registry}
	for i, src := range cfg.Sources {
		if err := sources.register(src, false); err != nil {
			targets.Close()
			c.Close()
			options.Tape.Close()
			path := fmt.Sprintf("sources[%d]", i)
			return fmt.Errorf("%s: %s: %w", loaded.Place(path), path, err)
		}
	}

	var found *folder
	again := newReloader(&reloader{
		load: load, conductor: c, sources: sources, entry: entry, web: web, places: places, budget: budget, timing: timing,
		watches: watches, allowed: allowed, log: log, current: cfg,
	})
	registry.MustRegister(again)
	if dir := cfg.Discovery.SourcesDir; dir != "" {
		found = newFolder(dir, sources, again.settings, log)
		registry.MustRegister(found)
		found.look()
		again.files, again.owner = found.look, found.owner
	}
	targets.Settle(ctx, firstAnswers)
	if kept != nil {
		keeper.RestoreRegistrations()
	}
	replicas.start()
	following := make(chan struct{})
	go func() {
		defer close(following)
		var folder sync.WaitGroup
		if found != nil {
			folder.Go(func() { found.run(ctx) })
		}
		targets.Run(ctx)
		folder.Wait()
	}()
	defer func() { targets.Close(); <-following }()
	defer onHangup(loaded.File != "", again, access, log)()
	if cfg.Reload.Watch && loaded.File != "" {
		go watchFile(ctx, loaded.File, stamp, again)
	}
	opts := admin.Options{
		Dialect: conductorhttp.Options{
			Discovery: targets, Fleet: replicas.registry, MaxBody: cfg.Limits.MaxBody, MaxTokens: cfg.Limits.MaxTokens,
			Admission: places, Version: version,
		},
		Reload: again.Reload, Settings: settingsOf(loaded.File, again), Watch: hub, Again: entry.Again,
		Cluster: replicas.shards, Snapshots: new(peer.Spool), OpenAPI: kvconductor.OpenAPI, Gatherer: registry, Log: log,
		Draining: web.Draining, Guard: entry.Check, Budget: budget, Lists: server.NewLists(),
		Progress: func() conductor.Progress {
			if p := loader.Progress(); p.From != "" {
				return p
			}
			return shelved.progress()
		},
	}
	if cfg.UI.Enabled {
		opts.Page, opts.Docs = ui.New(), docs.New(kvconductor.Documents)
	}
	called := rpc.Options{
		Conductor: c, MaxBody: cfg.Limits.MaxBody, MaxTokens: cfg.Limits.MaxTokens, Idle: cfg.Limits.IdleTimeout,
		Admission: places, Budget: budget, Watches: watches, Guard: entry.Guard, TLS: web.TLS,
		Ready: func() bool { return c.Ready().Ready && !web.Draining() }, Metrics: calls, Log: log,
	}
	carried := grpcServer(c, &cfg, called) // it has no listener
	if replicas.shards != nil {
		opts.Calls = carried.Carried
	}
	web.Handler = func(root string) http.Handler {
		at := opts
		at.Use = append(replicas.forwards(root), refuseOwn(peers.Me()), timing.Middleware)
		if root == config.Dynamo {
			at.Use = append(at.Use, access.Middleware(cfg.Dynamo.TraceIDHeader, dynamo.ModelKey))
		}
		return handler(root, c, dialect, at)
	}
	web.Special = func(root string) server.Server {
		if root != config.GRPC {
			return nil
		}
		return grpcServer(c, &cfg, replicas.carries(called))
	}
	defer memory.Keep(log)()
	tellIndexBytes(cfg.Index, log)
	logStart(loaded.File, &cfg, web, log)
	if show != nil {
		show(c, web, registry)
	}
	var keeping sync.WaitGroup
	stopped, stopKeeping := context.WithCancel(context.Background())
	defer stopKeeping()
	if kept != nil {
		keeping.Go(func() { keeper.Registrations.Run(stopped) })
	}
	settle := func(settling context.Context) bool {
		var own history.Place
		if kept != nil {
			own = keeper
		}
		history.Recover(settling, loader, own, append([]history.Place{peers}, shelved.restores()...)...)
		if recovers {
			close(gate) // what engines sent meanwhile is applied
		}
		if kept != nil && settling.Err() == nil {
			keeping.Go(func() { keeper.Run(stopped) })
		}
		if shelved != nil && settling.Err() == nil {
			keeping.Go(func() { shelved.kept.Run(stopped) })
		}
		if every := cfg.Dynamo.CompareInterval; every > 0 {
			go peers.Compare(ctx, c, every)
		}
		return waitForWorkers(settling, cfg.Dynamo, dialect, log)
	}
	err = web.Run(ctx, settle, recovers || cfg.Dynamo.MinInitialWorkers > 0)
	if err == nil {
		drain(web, again.settings().Shutdown.Drain, log)
		log.Info().Msg("stopping")
	}
	hub.Close()     // viewers have seen the drain, and look for another server
	carried.Close() // its watches end
	web.Shutdown(shutdownTimeout)
	stopKeeping()
	keeping.Wait() // the last snapshot has what the sources hold
	shutdown(c, options.Tape, log)
	return err
}

// recoveredTTL is how long blocks recovered from a peer stay while their workers are not
// registered here. It outlasts an orchestrator that registers a fleet one by one.
const recoveredTTL = 5 * time.Minute

// shutdownTimeout is how long requests in flight may take after the drain. With the drain of
// five seconds and one for the sockets, that is the ten seconds after which Docker kills.
const shutdownTimeout = 4 * time.Second

// firstAnswers is how long a start waits for the engines of the configuration to say where they
// publish, so that a snapshot finds their sources.
const firstAnswers = 5 * time.Second
