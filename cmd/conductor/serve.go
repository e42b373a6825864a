package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/signal"
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
	"example.com/conductor/conductor/discovery"
	"example.com/conductor/conductor/docs"
	conductorhttp "example.com/conductor/conductor/http"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/rpc"
	"example.com/conductor/conductor/server"
	"example.com/conductor/conductor/status"
	"example.com/conductor/conductor/telemetry"
	"example.com/conductor/conductor/ui"
	"example.com/conductor/conductor/watch"
	"example.com/conductor/config"
	"example.com/conductor/events/tape"
	"example.com/conductor/events/zmq"
	"example.com/conductor/history"
	"example.com/conductor/history/file"
	"example.com/conductor/history/peer"
	"example.com/conductor/index/hash"
	"example.com/conductor/internal/memory"
	"example.com/conductor/store"
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
		loaded, err := flags.loadConfig()
		if err != nil {
			cmd.PrintErrln(errors.Join(append([]error{err}, refusals(loaded)...)...)) // one line per mistake, each with its place
			return cli.ErrReported
		}
		return runServer(cmd, loaded, flags)
	}
	return cmd
}

// runServer serves until a signal.
func runServer(cmd *cobra.Command, loaded *config.Loaded, flags *indexerFlags) error {
	log, flush := newLogger(loaded.Config.Log, cmd.ErrOrStderr())
	defer flush()
	log = log.Level(zerolog.TraceLevel)
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
	return serve(ctx, loaded, flags.loadConfig, log, nil)
}

// serve runs until ctx ends or a part fails, in five phases: it opens what can fail, wires the rooms, recovers what it served
// before, runs the listeners, and stops. load reads the settings again. The Conductor, the servers and the metrics are
// passed to show, just before the servers run.
func serve(ctx context.Context, loaded *config.Loaded, load func() (*config.Loaded, error), log zerolog.Logger,
	show func(*conductor.Conductor, *server.Servers, *prometheus.Registry)) error {
	return serveDuring(newLifecycle(ctx, log), loaded, load, show)
}

// serveDuring is serve with a lifecycle, which has the context and the log.
func serveDuring(life *lifecycle, loaded *config.Loaded, load func() (*config.Loaded, error),
	show func(*conductor.Conductor, *server.Servers, *prometheus.Registry)) error {
	s := &serving{
		loaded: loaded, cfg: loaded.Config, stamp: stampOf(loaded.File), load: load, log: life.log, life: life,
		gate: make(chan struct{}), recovered: make(chan struct{}), metrics: prometheus.NewRegistry(),
	}
	defer s.life.end()
	hangups := catchHangups(&s.cfg, loaded.File)
	defer signal.Stop(hangups)
	if ready, err := s.begin(); !ready {
		return err
	}
	s.life.follow("reloads", func(ctx context.Context) { s.obeyHangups(ctx, hangups) })
	s.runListeners(show)
	err := s.life.wait()
	if err == nil { // after a failure no client is waited for
		drainListeners(s.listeners, s.settings.copySettings().Shutdown.Drain, s.log)
	}
	s.log.Info().Msg("stopping")
	s.life.end()
	s.log.Info().Msg("stopped")
	return err
}

// begin runs the phases before the listeners, and reports whether the server is ready for them. A phase may hang, as on a file that
// cannot be opened: if the process is to end, begin leaves it behind.
func (s *serving) begin() (ready bool, err error) {
	begun := make(chan error, 1)
	go func() {
		for _, phase := range []func() error{s.openResources, s.wireRooms, s.recoverSources} {
			if err := phase(); err != nil {
				begun <- err
				return
			}
		}
		begun <- nil
	}()
	select {
	case err := <-begun:
		return err == nil, err
	case <-s.life.ctx.Done():
	}
	start := part{name: "the start", within: partTime}
	select {
	case err := <-begun:
		return err == nil, err
	case <-s.life.over(start):
		s.life.warnLate(start)
		return false, nil
	}
}

// serving is a server between its start and its end. Each phase fills in what the later ones use.
type serving struct {
	loaded  *config.Loaded
	cfg     config.Config // of loaded; a reload changes that of settings
	stamp   string        // of the settings file when it was read
	load    func() (*config.Loaded, error)
	log     zerolog.Logger
	metrics *prometheus.Registry
	life    *lifecycle // ends all that follows

	// Phase 1. A nil field means that its part is not configured.
	listeners *server.Servers
	entry     *gate
	asking    *http.Client // of peers
	timing    *telemetry.Watch
	accessLog *server.AccessLog
	sockets   *zmq.Sockets
	allowed   *reaching
	snapshots *file.Dir
	store     *store.Store
	memo      *hash.Memo
	tape      *tape.Tape

	// Phase 2. No batch is applied before the gate is closed, which is at the end of the recovery.
	gate      chan struct{}
	conductor *conductor.Conductor
	loader    *history.Loader
	peers     *peer.Peers
	asked     *cluster.Asked
	targets   *discovery.Manager
	keeper    *file.Keeper
	replicas  *replicas
	slots     *server.Admission
	budget    *server.Budget
	hub       *watch.Hub
	followed  *conductorhttp.Watches // of instances
	dynamo    *dynamo.Dialect
	calls     *rpc.Metrics
	watches   *rpc.Watches
	settings  *settingsInUse
	sources   *following
	folder    *folder // nil without discovery.sources_dir
	reloads   *reloader
	carried   *rpc.Server // for calls that other replicas send on; it has no listener

	// Phases 3 and 4.
	recovered chan struct{} // closed once the sources hold what they held, unless the process ends before
	settled   chan struct{} // closed once routers may be answered; nil if they may at once
}

// recovers reports whether this server has anywhere to get blocks from before engines publish them.
func (s *serving) recovers() bool {
	return s.snapshots != nil || len(s.cfg.Dynamo.Peers) > 0 || s.store != nil
}

// Phase 1: open

// openResources opens ports, files and connections: ports first, so that a taken one is known before any engine is
// bothered. No engine is followed yet.
func (s *serving) openResources() (err error) {
	cfg := &s.cfg
	s.listeners = server.NewServers(listeners(cfg.Listeners), listenerTimeouts(cfg.Limits), s.log)
	s.life.onEnd("the ports", s.listeners.Unbind)
	if err := errors.Join(append(refusals(s.loaded), s.listeners.Bind())...); err != nil {
		return err
	}
	s.listeners.Connections.SetBounds(connectionBounds(cfg.Limits))

	// Who may ask, and as whom this server asks others.
	if s.entry, err = newGate(s.loaded, s.log); err != nil {
		return err
	}
	s.entry.warnOfExpiry()
	s.entry.watchFiles(s.life)
	if s.entry.certificates != nil {
		s.listeners.TLS = s.entry.certificates.Config()
	}
	if s.asking, err = peerClient(s.loaded); err != nil {
		return err
	}

	// Traces and the access log.
	tracer, err := newTracer(s.loaded, s.log)
	if err != nil {
		return err
	}
	s.life.onEnd("tracing", func() { closeTracer(tracer, s.log) })
	s.timing = telemetry.New(tracer, s.log)
	s.timing.SetSlow(cfg.Log.SlowQuery)
	if s.accessLog, err = accessLog(cfg.Dynamo, s.log); err != nil {
		return err
	}
	s.life.onEnd("the access log", func() { closeAccessLog(s.accessLog, s.log) })

	// Where events come from, and where history is kept.
	s.sockets, s.allowed = newSockets(*cfg), newReaching(cfg)
	if s.snapshots, err = snapshotDir(s.loaded); err != nil {
		return err
	}
	if s.snapshots != nil {
		s.life.onEnd("the directory of snapshots", func() { s.snapshots.Close() })
	}
	if s.store, err = openStore(s.loaded); err != nil {
		return err
	}
	if s.memo, err = hash.NewMemo(memoBytes); err != nil {
		return err
	}
	s.life.onEnd("the memo of hashes", s.memo.Close)
	if s.tape, err = openTape(s.loaded, s.conductorOptions(), s.log); err != nil {
		return err
	}
	s.life.onEndWithin("the journal", journalTime, func() { s.tape.Close() })
	return nil
}

// conductorOptions returns the options of the Conductor but for the tape, which has to know them.
func (s *serving) conductorOptions() conductor.Options {
	options := conductorOptions(s.cfg, s.sockets, s.allowed, s.log)
	options.Gate, options.Memo = s.gate, s.memo
	return options
}

// Phase 2: wire

// wireRooms builds every room and hands each the others that it needs. Nothing runs yet but the Conductor, whose
// gate is closed where there is something to recover.
func (s *serving) wireRooms() (err error) {
	cfg := &s.cfg
	if !s.recovers() {
		close(s.gate)
	}
	options := s.conductorOptions()
	options.Tape = s.tape
	s.conductor = conductor.New(options)
	s.life.onEndWithin("the sources", sourcesTime, s.conductor.Close)
	s.conductor.Tune(tunables(cfg))
	s.loader = &history.Loader{Conductor: s.conductor, TTL: recoveredTTL, Log: s.log}
	s.peers = peer.New(peer.Config{
		Others: func(ctx context.Context) []string { return s.replicas.shelved.otherReplicas(ctx) },
		Peers:  cfg.Dynamo.Peers, Formats: []peer.Format{peer.OwnFormat(), dynamo.Dumps(s.log)}, Client: s.asking,
		Digests: peer.Digests{Path: admin.DigestPath, Read: admin.ReadDigests}, Log: s.log,
	})
	s.asked = cluster.NewAsked(s.conductor)
	s.targets = newTargets(cfg, s.asked, s.sockets, s.allowed, s.log)
	s.life.onEnd("discovery", s.targets.Close)
	s.conductor.Meter().AwaitUnfound(func() []status.Unfound { return s.targets.Unfound(cfg.Stream.StaleAfter) })
	s.keeper = file.NewKeeper(file.Config{
		Dir: s.snapshots, Conductor: s.conductor, Targets: s.targets, Interval: cfg.Snapshot.Interval, Keep: snapshotsKept, Log: s.log,
	})
	s.replicas, err = newReplicas(s)
	s.life.onEnd("the group of replicas", s.replicas.leaveGroup)
	if err != nil {
		return err
	}
	if s.snapshots != nil {
		s.conductor.KeepRegistrations(s.keeper.Registrations)
		if s.replicas.registry != nil {
			s.keeper.Registrations.Share(s.replicas.registry)
		}
	}

	// What limits requests, and what operators see of them.
	s.slots, s.budget = newAdmission(cfg.Limits), requestBudget(cfg.Limits)
	s.hub = watch.New(watching(s))
	s.life.onEnd("the hub of viewers", s.hub.Close)
	s.followed = conductorhttp.NewWatches(s.conductor, instanceWatches)
	s.calls, s.watches = rpc.NewMetrics(s.timing), rpc.NewWatches(fixed.Watches)
	s.dynamo = dynamo.New(dynamo.Config{
		Conductor: s.conductor, MaxTokens: cfg.Limits.MaxTokens, TestEndpoints: cfg.Dynamo.TestEndpoints, Admission: s.slots,
		Replica: s.peers, ReopenLogs: s.accessLog.Reopen, Log: s.log,
	})

	// What changes while the server runs: settings, and sources in files.
	s.settings = &settingsInUse{current: *cfg}
	s.sources = &following{conductor: s.conductor, targets: s.targets, shared: s.replicas.registry}
	if dir := cfg.Discovery.SourcesDir; dir != "" {
		s.folder = newFolder(dir, s.sources, s.settings.copySettings, s.log)
	}
	s.reloads = newReloader(&reloader{
		load: s.load, settings: s.settings, conductor: s.conductor, sources: s.sources, folder: s.folder, entry: s.entry,
		listeners: s.listeners, slots: s.slots, budget: s.budget, timing: s.timing, watches: s.watches, allowed: s.allowed, log: s.log,
	})
	s.registerMetrics()
	s.wireListeners()
	return nil
}

// registerMetrics lets /metrics ask every room.
func (s *serving) registerMetrics() {
	c := s.conductor
	s.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildInfo(),
		memory.Collector{Meter: c.Meter()}, unclaimedMessages(s.sockets), accessLogLosses(s.accessLog),
		c.Meter(), c.Meter().ExpectedCollector(), c.Meter().AgesCollector(), c.FeedbackTable(), s.targets,
		s.peers, s.keeper, s.hub, s.dynamo, s.reloads, s.entry, s.slots, s.budget,
		&s.listeners.Connections, s.timing, s.calls, s.watches, s.followed,
		sourcesRoom{&c.Sources().Places})
	s.metrics.MustRegister(s.replicas.collectors()...)
	if s.folder != nil {
		s.metrics.MustRegister(s.folder)
	}
	if s.entry.certificates != nil {
		s.metrics.MustRegister(s.entry.certificates.Expiry())
	}
}

// instanceWatches is how many watches of GET /instances may be open: one for each router of a large fleet.
const instanceWatches = 256

// wireListeners says what the listeners serve: each its dialect, over HTTP or gRPC.
func (s *serving) wireListeners() {
	cfg, c := &s.cfg, s.conductor
	opts := admin.Options{
		Dialect: conductorhttp.Options{
			Discovery: s.targets, Registry: s.replicas.registry, MaxBody: cfg.Limits.MaxBody, MaxTokens: cfg.Limits.MaxTokens,
			Admission: s.slots, Watches: s.followed, Again: s.entry.Again, Version: version,
		},
		Reload: s.reloads.Reload, Settings: settingsOf(s.loaded.File, s.settings), Watch: s.hub, Again: s.entry.Again,
		Cluster: s.replicas.shards, Snapshots: new(peer.Spool), OpenAPI: kvconductor.OpenAPI,
		Gatherer: printableLabels{s.metrics}, Log: s.log,
		Draining: s.listeners.Draining, Guard: s.entry.Check, Budget: s.budget, Lists: server.NewLists(),
		Progress: func() conductor.Progress {
			if p := s.loader.Progress(); p.From != "" {
				return p
			}
			return s.replicas.shelved.progress()
		},
	}
	if cfg.UI.Enabled {
		opts.Page, opts.Docs = ui.New(), docs.New(kvconductor.Documents)
	}
	called := rpc.Options{
		Conductor: c, MaxBody: cfg.Limits.MaxBody, MaxTokens: cfg.Limits.MaxTokens, Idle: cfg.Limits.IdleTimeout,
		Patience:  fixed.ReadTimeout,
		Admission: s.slots, Budget: s.budget, Watches: s.watches, Guard: s.entry.Guard, TLS: s.listeners.TLS,
		Ready: func() bool { return c.Ready().Ready && !s.listeners.Draining() }, Metrics: s.calls, Log: s.log,
	}
	s.carried = grpcServer(c, cfg, called)
	if s.replicas.shards != nil {
		opts.Calls = s.carried.Carried
	}
	s.listeners.Budget = s.budget
	s.listeners.Handler = func(root string) http.Handler {
		at := opts
		at.Use = append(s.replicas.forwardQueries(root), refuseOwn(s.peers.Me()), s.timing.Middleware)
		if root == config.Dynamo {
			at.Use = append(at.Use, s.accessLog.Middleware(cfg.Dynamo.TraceIDHeader, dynamo.ModelKey))
		}
		return dialectHandler(root, c, s.dynamo, at)
	}
	s.listeners.Special = func(root string) server.Server {
		if root != config.GRPC {
			return nil
		}
		return grpcServer(c, cfg, s.replicas.forwardCalls(called))
	}
}

// Phase 3: recover

// recoverSources registers the sources of the settings, of files and of the last run, those of other replicas too,
// and goes on following them. Blocks come back later, in recoverBlocks, so that /health answers meanwhile.
func (s *serving) recoverSources() error {
	for i, src := range s.cfg.Sources {
		if err := s.sources.registerSource(src, false); err != nil {
			path := fmt.Sprintf("sources[%d]", i)
			if errors.Is(err, ingest.ErrTooManySources) { // those before it are followed
				s.log.Error().Err(err).Str("source", src.Key().String()).Msg(path + " is left out")
				continue
			}
			return fmt.Errorf("%s: %s: %w", s.loaded.Place(path), path, err)
		}
	}
	if s.folder != nil {
		s.folder.readFiles()
	}
	s.targets.Settle(s.life.ctx, firstAnswers)
	if s.snapshots != nil {
		s.keeper.RestoreRegistrations()
	}
	s.replicas.joinGroup()

	s.life.follow("discovery", s.targets.Run)
	if s.folder != nil {
		s.life.follow("watching discovery.sources_dir", s.folder.watchFiles)
	}
	if s.cfg.Reload.Watch && s.loaded.File != "" {
		s.life.follow("watching the settings", func(ctx context.Context) { watchFile(ctx, s.loaded.File, s.stamp, s.reloads) })
	}
	return nil
}

// recoverBlocks fills the sources with what they held: from the newest snapshot, else from a peer, else from the
// store. Then it opens the gate, so that what engines sent meanwhile is applied behind it. It returns once routers may be
// answered, or when ctx ends.
func (s *serving) recoverBlocks(ctx context.Context) {
	shelved := s.replicas.shelved
	var own history.Place
	if s.snapshots != nil {
		own = s.keeper
	}
	history.Recover(ctx, s.loader, own, append([]history.Place{s.peers}, shelved.restores()...)...)
	if s.recovers() {
		close(s.gate)
	}
	if ctx.Err() != nil {
		return
	}
	close(s.recovered)
	if waitForWorkers(ctx, s.cfg.Dynamo, s.dynamo, s.log) && s.settled != nil {
		close(s.settled)
	}
}

// onceRecovered runs a task as soon as the blocks are recovered, unless ctx ends before: then it never does.
func (s *serving) onceRecovered(ctx context.Context, task func(context.Context)) {
	select {
	case <-s.recovered:
	case <-ctx.Done():
	}
	select {
	case <-s.recovered:
		task(ctx)
	default:
	}
}

// Phase 4: run

// runListeners begins to answer, the first clients while blocks are still being recovered.
func (s *serving) runListeners(show func(*conductor.Conductor, *server.Servers, *prometheus.Registry)) {
	s.life.onEnd("the limit of memory", memory.Keep(s.log))
	tellIndexBytes(s.cfg.Index, s.log)
	roomOf(s.cfg.Limits).tell(s.log)
	logStart(s.loaded.File, &s.cfg, s.listeners, s.log)
	if show != nil {
		show(s.conductor, s.listeners, s.metrics)
	}
	s.keepSnapshots()
	s.life.follow("comparing with peers", func(ctx context.Context) {
		s.onceRecovered(ctx, func(ctx context.Context) { s.peers.Compare(ctx, s.conductor, fixed.CompareEvery) })
	})
	s.life.onEndWithin("answering clients", shutdownTimeout+partTime, s.stopAnswering)
	if s.recovers() || s.cfg.Dynamo.MinInitialWorkers > 0 {
		s.settled = make(chan struct{})
	}
	s.life.run("a listener", func(ctx context.Context) error { return s.listeners.Run(ctx, s.settled) })
	s.life.follow("the recovery", s.recoverBlocks)
}

// keepSnapshots writes what changes to disk and to the store, until no client is answered any more.
func (s *serving) keepSnapshots() {
	stopped, stop := context.WithCancel(context.Background())
	var keeping sync.WaitGroup
	s.life.onEndWithin("writing the last snapshot", lastSnapshotTime, func() {
		stop()
		keeping.Wait()
	})
	if s.snapshots != nil {
		keeping.Go(func() { s.keeper.Registrations.Run(stopped) })
		keeping.Go(func() { s.onceRecovered(stopped, s.keeper.Run) })
	}
	if shelved := s.replicas.shelved; shelved != nil {
		keeping.Go(func() { s.onceRecovered(stopped, shelved.kept.Run) })
	}
}

// Phase 5: stop

// stopAnswering lets requests in flight end, and takes no more.
func (s *serving) stopAnswering() {
	s.hub.Close() // viewers have seen the drain, and look for another server
	s.followed.Close()
	s.carried.Close() // its watches end
	s.listeners.Shutdown(shutdownTimeout)
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
