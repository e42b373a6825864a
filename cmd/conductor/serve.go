package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"kvconductor"
	"kvconductor/cmd/internal/memory"
	"kvconductor/compat/dynamo"
	"kvconductor/compat/mooncake"
	"kvconductor/compat/sglang"
	"kvconductor/compat/smg"
	"kvconductor/conductor"
	"kvconductor/conductor/body"
	"kvconductor/conductor/cluster"
	conductorhttp "kvconductor/conductor/http"
	"kvconductor/conductor/replica"
	"kvconductor/conductor/rpc"
	"kvconductor/conductor/server"
	"kvconductor/conductor/snapshot"
	"kvconductor/conductor/telemetry"
	"kvconductor/conductor/ui"
	"kvconductor/conductor/watch"
	"kvconductor/config"
	"kvconductor/events"
	"kvconductor/events/journal"
	"kvconductor/events/objectkey"
	"kvconductor/events/payload"
	"kvconductor/events/stream"
	"kvconductor/events/wire"
	"kvconductor/events/zmq"
	"kvconductor/index"
	"kvconductor/index/hash"
	"kvconductor/keyfile"
)

func serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Follow the fleet's events and answer queries",
		Args:  cobra.NoArgs,
	}
	config.Flags(cmd.Flags())
	flags := addIndexerFlags(cmd.Flags(), 0)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		loaded, err := flags.load()
		if err != nil {
			cmd.PrintErrln(err) // one line per mistake, each with its place
			return errReported
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
	ctx, stop := untilSignal(cmd)
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
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: time.TimeOnly, NoColor: !coloured(w)}
	}
	return zerolog.New(w).Level(level).With().Timestamp().Logger()
}

// serve runs until ctx ends: ports first, so that a taken one is known before
// any engine is bothered, then sources, then HTTP. load reads the settings again. The Conductor, the servers and
// the metrics are passed to show, just before the servers run.
func serve(ctx context.Context, loaded *config.Loaded, load func() (*config.Loaded, error), log zerolog.Logger, show func(*conductor.Conductor, *server.Servers, *prometheus.Registry)) error {
	cfg, stamp := loaded.Config, stampOf(loaded.File)
	web := server.NewServers(listeners(cfg.Listeners), timeouts(cfg.Limits), log)
	if err := web.Bind(); err != nil {
		return err
	}
	defer web.Unbind()
	web.Connections.SetBounds(cfg.Limits.MaxConnections, cfg.Limits.ConnectionsPerAddress)
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
	logs := &logging{cfg: cfg.Store, engines: options.Transport}
	options.Transport = logs.transport
	options.LogBytes = func() int64 { return logs.log.Memory() }
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
	if options.Memo, err = memo(loaded); err != nil {
		return err
	}
	defer options.Memo.Close()
	if options.Journal, err = record(loaded, options, log); err != nil {
		return err
	}
	c := conductor.New(options)
	c.Tune(tunables(&cfg))
	peers := replica.New(replica.Config{
		Peers: cfg.Dynamo.Peers, Formats: []replica.Format{snapshot.Format(), dynamo.Dumps(log)},
		Client:  asking,
		Digests: replica.Digests{Path: conductorhttp.DigestPath, Read: conductorhttp.ReadDigests}, Log: log,
	})
	discovered := cluster.NewAsked(c)
	targets := newTargets(&cfg, discovered, sockets, allowed, log)
	keeper := snapshot.NewKeeper(snapshot.Config{
		Dir: kept, Conductor: c, Targets: targets, Interval: cfg.Snapshot.Interval, OnStop: cfg.Snapshot.OnStop, Keep: cfg.Snapshot.Keep, Log: log,
	})
	members := newFleet(&cfg, shared, web, log)
	hub := watch.New(watching(&cfg.UI, c, web, kept != nil, keeper, peers, targets, members))
	defer hub.Close()
	places, budget := admission(cfg.Limits), requestBudget(cfg.Limits)
	calls, watches := rpc.NewMetrics(timing), rpc.NewWatches(cfg.Limits.MaxWatches, cfg.Limits.ClientWatches)
	dialect := dynamo.New(dynamo.Config{
		Conductor: c, MaxTokens: cfg.Limits.MaxTokens, TestEndpoints: cfg.Dynamo.TestEndpoints, Admission: places, Replica: peers,
		ReopenLogs: access.Reopen, Log: log,
	})
	registry := prometheus.NewRegistry()
	registry.MustRegister(conductor.Collector{Conductor: c}, conductor.FeedbackCollector{Conductor: c}, conductor.LivesCollector{Conductor: c}, memory.Collector{Conductor: c}, dialect, peers, keeper, hub, places, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildInfo(), accessLogLosses(access), unclaimedMessages(sockets), entry, budget, &web.Connections, timing, calls, watches)
	if entry.certificates != nil {
		registry.MustRegister(entry.certificates.Expiry())
	}

	registry.MustRegister(targets)
	c.AwaitUnfound(func() []conductor.SourceState { return targets.Unfound(cfg.Stream.StaleAfter) })
	replicas := newReplicas(members, c, targets, registry, log)
	defer replicas.close()
	if members != nil {
		defer logs.start(shared, members, registry)()
	}
	shelved, err := newShelving(loaded, members, c, asking, replicas.keeps, registry, log)
	if shelved != nil {
		logs.healer = shelved.healer
		defer logs.healer.Close()
	}
	if err == nil {
		err = replicas.share(loaded, c, discovered, shelved, registry, log)
	}
	if err != nil {
		c.Close()
		options.Journal.Close()
		return err
	}
	sources := &following{conductor: c, targets: targets, shared: replicas.registry}
	for i, src := range cfg.Sources {
		if err := sources.register(src, false); err != nil {
			targets.Close()
			c.Close()
			options.Journal.Close()
			path := fmt.Sprintf("sources[%d]", i)
			return fmt.Errorf("%s: %s: %w", loaded.Place(path), path, err)
		}
	}

	var found *folder
	again := newReloader(&reloader{
		load: load, conductor: c, sources: sources, entry: entry, web: web, places: places, budget: budget, timing: timing, watches: watches, allowed: allowed, log: log, current: cfg,
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
		keeper.RestoreSources()
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
	opts := conductorhttp.Options{
		Reload: again.Reload, Watch: hub, Again: entry.Again, Discovery: targets, Fleet: replicas.registry, Cluster: replicas.shards,
		MaxBody: cfg.Limits.MaxBody, MaxTokens: cfg.Limits.MaxTokens, Admission: places,
		Snapshots: new(snapshot.Spool), Version: version, OpenAPI: kvconductor.OpenAPI, Gatherer: registry, Log: log,
		Draining: web.Draining, Guard: entry.Check, Budget: budget, Lists: server.NewLists(),
		Progress: func() conductor.Progress {
			for _, p := range []conductor.Progress{keeper.Progress(), shelved.progress()} {
				if p.From != "" {
					return p
				}
			}
			return peers.Progress()
		},
	}
	if cfg.UI.Enabled {
		opts.Page = ui.New()
	}
	web.Handler = func(root string) http.Handler {
		at := opts
		at.Use = append(replicas.forwards(root), timing.Middleware)
		if root == config.Dynamo {
			at.Use = append(at.Use, access.Middleware(cfg.Dynamo.TraceIDHeader, dynamo.ModelKey))
		}
		return handler(root, c, dialect, at)
	}
	web.Special = func(root string) server.Server {
		if root != config.GRPC {
			return nil
		}
		return grpcServer(c, &cfg, rpc.Options{
			Conductor: c, MaxBody: cfg.Limits.MaxBody, MaxTokens: cfg.Limits.MaxTokens, Idle: cfg.Limits.IdleTimeout,
			Admission: places, Budget: budget, Watches: watches, Guard: entry.Guard, TLS: web.TLS,
			Ready: func() bool { return c.Ready().Ready && !web.Draining() }, Metrics: calls, Log: log,
		})
	}
	defer memory.Keep(log, cfg.Memory.Limit == config.Off)()
	if show != nil {
		show(c, web, registry)
	}
	var keeping sync.WaitGroup
	stopped, stopKeeping := context.WithCancel(context.Background())
	defer stopKeeping()
	settle := func(settling context.Context) bool {
		if kept != nil {
			keeper.Restore(settling)
		}
		if c.Unfilled() > 0 {
			peers.Recover(settling, c, cfg.Dynamo.RecoveredTTL, shelved.others(settling)...)
		}
		if c.Unfilled() > 0 {
			shelved.restore(settling)
		}
		if recovers {
			close(gate) // what engines sent meanwhile is applied
		}
		if kept != nil && settling.Err() == nil {
			keeping.Go(func() { keeper.Keep(stopped) })
		}
		if shelved != nil && settling.Err() == nil {
			keeping.Go(func() { shelved.shelf.Keep(stopped) })
		}
		if every := cfg.Dynamo.CompareInterval; every > 0 {
			go peers.Compare(ctx, c, every)
		}
		return waitForWorkers(settling, cfg.Dynamo, dialect, log)
	}
	err = web.Run(ctx, settle, recovers || cfg.Dynamo.MinInitialWorkers > 0)
	hub.Close() // viewers look for another server
	if err == nil {
		drain(web, again.settings().Shutdown.Drain, log)
		log.Info().Msg("stopping")
	}
	web.Shutdown(cfg.Limits.ShutdownTimeout)
	stopKeeping()
	keeping.Wait() // the last snapshot has what the sources hold
	shutdown(c, options.Journal, log)
	return err
}

// firstAnswers is how long a start waits for the engines of the configuration to say where they
// publish, so that a snapshot finds their sources.
const firstAnswers = 5 * time.Second

// drain lets the servers answer on for a while. A further signal ends that.
func drain(web *server.Servers, d time.Duration, log zerolog.Logger) {
	if d <= 0 {
		return
	}
	log.Info().Dur("drain", d).Msg("draining: /ready is 503, a further signal stops at once")
	hurry, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	web.Drain(hurry, d)
}

// snapshotDir opens the directory of snapshots, if there is to be one.
func snapshotDir(loaded *config.Loaded) (*snapshot.Dir, error) {
	cfg := loaded.Config.Snapshot
	if cfg.Dir == "" {
		return nil, nil
	}
	key, err := snapshotKey(loaded)
	if err != nil {
		return nil, err
	}
	dir, err := snapshot.OpenDir(cfg.Dir, key)
	if err != nil {
		return nil, fmt.Errorf("%s: snapshot.dir: %w", loaded.Place("snapshot.dir"), err)
	}
	return dir, nil
}

// snapshotKey reads the key that seals salts in snapshots.
func snapshotKey(loaded *config.Loaded) (*snapshot.Key, error) {
	name := loaded.Config.Snapshot.KeyFile
	if name == "" {
		return snapshot.NoKey, nil
	}
	key, err := snapshot.ReadKey(name)
	if err != nil {
		return nil, fmt.Errorf("%s: snapshot.key_file: %w", loaded.Place("snapshot.key_file"), err)
	}
	return key, nil
}

// listeners returns the configured listeners. Those of the Dynamo dialect are late: to its
// clients a refused connection means "not ready".
func listeners(all []config.Listener) []server.Listener {
	out := make([]server.Listener, len(all))
	for i, l := range all {
		out[i] = server.Listener{Address: l.Address, Dialect: l.Dialect, Late: l.Dialect == config.Dynamo}
	}
	return out
}

// timeouts returns the configured timeouts of connections.
func timeouts(limits config.Limits) server.Timeouts {
	return server.Timeouts{Read: limits.ReadTimeout, Idle: limits.IdleTimeout}
}

// handler serves one dialect at the root, and the others under their prefixes. Where the
// published Conductor dialect is, requests may ask for that of the second server.
func handler(root string, c *conductor.Conductor, d *dynamo.Dialect, opts conductorhttp.Options) http.Handler {
	second := mooncake.Config{Conductor: c, MaxBody: opts.MaxBody, MaxTokens: opts.MaxTokens, Admission: opts.Admission, Version: opts.Version}
	inJSON := mooncake.New(second)
	second.Codec = body.Msgpack
	inMsgpack := mooncake.New(second)
	published := server.Dialects{conductorhttp.Dialect(c, opts), inMsgpack, inJSON}

	r := conductorhttp.New(c, opts)
	switch root {
	case config.Dynamo:
		d.MountRoot(r)
	case config.ConductorMsgpack:
		server.Dialects{inMsgpack}.MountRoot(r)
	case config.ConductorJSONV2:
		server.Dialects{inJSON}.MountRoot(r)
	default:
		published.MountRoot(r)
		r.RedirectTrailingSlash = true
	}
	published.Mount(r.Group("/conductor/v1"))
	d.Mount(r.Group("/dynamo/v1"))
	return r
}

// grpcServer returns the server of a listener of gRPC, with the services of all dialects.
func grpcServer(c *conductor.Conductor, cfg *config.Config, opts rpc.Options) *rpc.Server {
	s := rpc.NewServer(opts)
	s.Register(sglang.Desc, sglang.New(sglang.Config{Conductor: c, MaxTokens: opts.MaxTokens, Model: cfg.SGLang.Model}), sglang.Crash)
	if cfg.Experimental.RadixIndex {
		smg.Register(s, smg.Config{MaxTokens: opts.MaxTokens})
	}
	return s
}

// shutdown closes the sources and the journal. It returns in time, whatever engines do.
func shutdown(c *conductor.Conductor, j *journal.Writer, log zerolog.Logger) {
	if !within(500*time.Millisecond, c.Close) {
		log.Warn().Msg("sources did not stop in time")
	}
	// Longer than a full queue takes to a disk that works.
	if !within(time.Second, func() { j.Close() }) {
		log.Warn().Msg("the journal was not written to its end")
	}
	log.Info().Msg("stopped")
}

// within reports whether f returned in time.
func within(limit time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() {
		f()
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-time.After(limit):
		return false
	}
}

// memo begins the memo of engine digests, if there is to be one.
func memo(loaded *config.Loaded) (*hash.Memo, error) {
	if loaded.Config.Hash.MemoBytes == 0 {
		return nil, nil
	}
	m, err := hash.NewMemo(loaded.Config.Hash.MemoBytes)
	if err != nil {
		return nil, fmt.Errorf("%s: hash.memo_bytes: %w", loaded.Place("hash.memo_bytes"), err)
	}
	return m, nil
}

// journalDelay is how much of the journal the end of the process may cost.
const journalDelay = 10 * time.Millisecond

// record begins the journal, if one is configured.
func record(loaded *config.Loaded, opts conductor.Options, log zerolog.Logger) (*journal.Writer, error) {
	cfg := loaded.Config.Journal
	if cfg.Dir == "" {
		return nil, nil
	}
	var key *keyfile.Key
	if cfg.KeyFile != "" {
		var err error
		if key, err = keyfile.Read(cfg.KeyFile); err != nil {
			return nil, fmt.Errorf("%s: journal.key_file: %w", loaded.Place("journal.key_file"), err)
		}
	}
	w, err := journal.Create(journal.Options{
		Dir: cfg.Dir, MaxBytes: cfg.MaxBytes, Key: key, Settings: opts.JournalSettings(), Delay: journalDelay,
		Report: func(err error) {
			if err != nil {
				log.Error().Err(err).Str("dir", cfg.Dir).Msg("the journal cannot be written, trying again")
				return
			}
			log.Info().Str("dir", cfg.Dir).Msg("the journal is written again")
		},
	})
	if err != nil {
		return nil, fmt.Errorf("%s: journal.dir: %w", loaded.Place("journal.dir"), err)
	}
	log.Info().Str("dir", cfg.Dir).Int64("max_bytes", cfg.MaxBytes).Bool("sealed", key != nil).Msg("recording the events of all sources, tokens included")
	return w, nil
}

// engineSnapshots is how many engines are asked for a snapshot at once. Each reply may take
// stream.snapshot_bytes of memory, and costs the engine a second.
const engineSnapshots = 4

// frameRoom is what topic and sequence frames may take next to the payload.
const frameRoom = 64 << 10

// newSockets returns the sockets of all sources. They and the queues of the streams
// share one bound of memory.
func newSockets(cfg config.Config) *zmq.Sockets {
	waiting := cfg.Stream.QueueBytesTotal
	if cfg.Memory.Limit != config.Off {
		waiting = memory.Bound(waiting)
	}
	return &zmq.Sockets{Rank: wire.Rank, Transport: zmq.Transport{
		MaxMessage: int(cfg.Limits.MaxPayload) + frameRoom,
		Heartbeat:  heartbeat(cfg.Stream.Heartbeat),
		Memory:     payload.NewMemory(waiting),
	}}
}

// conductorOptions translates the configuration.
func conductorOptions(cfg config.Config, sockets *zmq.Sockets, allowed *reaching, log zerolog.Logger) conductor.Options {
	copies := index.CopyCount
	if cfg.Stream.Copies == config.Set {
		copies = index.CopySet
	}
	completeness := objectkey.All
	if cfg.Pool.Completeness == config.Any {
		completeness = objectkey.Any
	}
	limits := wire.DefaultLimits
	limits.MaxPayload = int(cfg.Limits.MaxPayload)
	parts := limits
	parts.MaxPayload = int(cfg.Stream.SnapshotBytes)
	return conductor.Options{
		HashSeed:         cfg.Hash.Seed,
		Copies:           copies,
		MaxSources:       cfg.Limits.MaxSources,
		MaxOrphans:       cfg.Limits.MaxOrphans,
		TTL:              cfg.Index.TTL,
		MaxBytes:         int(indexBytes(cfg.Index.MaxBytes)),
		MaxBytesTotal:    indexBytes(cfg.Index.MaxBytesTotal),
		MaxTokenID:       maxTokenID(cfg.Limits),
		SaltedOnly:       cfg.Privacy.SaltedOnly,
		MaxContexts:      cfg.Limits.MaxContexts,
		KeepClientHashes: cfg.Index.LocalHashes,
		SmallPages:       !cfg.Index.HugePages,
		Completeness:     completeness,
		RecallBytes:      cfg.Index.RecallBytes,
		RemovalsBytes:    int(cfg.Index.RemovalsBytes),
		PoolBytes:        cfg.Pool.MaxBytes,
		RingBytes:        int(cfg.Journal.RingBytes),
		SilentAfter:      cfg.Doctor.SilentAfter,
		MinSynced:        cfg.Ready.MinSources,
		Log:              log,
		Transport: func(r conductor.Registration, static bool) stream.Transport {
			rules := allowed.get()
			if static {
				rules = nil // who writes the configuration may read the network
			}
			return sockets.For(zmq.Claim{Pod: r.Instance, Model: r.Model, Rank: r.Rank}, rules)
		},
		Reaches: func(endpoint string) error { return zmq.Reaches(allowed.get(), endpoint) },
		Stream: stream.Config{
			ReplayTimeout: cfg.Stream.ReplayTimeout,
			StaleAfter:    cfg.Stream.StaleAfter,
			Queue:         cfg.Stream.Queue,
			QueueBytes:    int(cfg.Stream.QueueBytes),
			Memory:        sockets.Memory,
			// The policies have the same names in both rooms.
			OnUnrecoverableGap: cfg.Stream.OnUnrecoverableGap,
			Decode:             func(batch []byte) (events.Batch, error) { return wire.Decode(batch, limits) },
			Replays:            stream.NewLimiter(cfg.Stream.ReplayConcurrency),
			SnapshotTimeout:    cfg.Stream.SnapshotTimeout,
			SnapshotBytes:      int(cfg.Stream.SnapshotBytes),
			DecodePart:         func(part []byte) (events.Batch, error) { return wire.Decode(part, parts) },
			Requests:           stream.NewLimiter(engineSnapshots),
		},
	}
}

// onLoopback reports whether all listeners are for this machine alone.
func onLoopback(all []config.Listener) bool {
	for _, l := range all {
		host, _, _ := net.SplitHostPort(l.Address)
		if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
			return false
		}
	}
	return true
}

// indexBytes is the bound of one index, or of all, that a setting says, 0 for none.
func indexBytes(setting int64) int64 {
	if setting == config.AutoSize {
		return memory.Fraction(2, 0)
	}
	return setting
}

// mostRequestBytes is the bound of bodies and answers in flight, unless the settings or a cgroup
// say otherwise: sixteen of the largest bodies, with the numbers in them.
const mostRequestBytes = 512 << 20

// requestBudget is the bound of bodies and answers in flight.
func requestBudget(limits config.Limits) *server.Budget {
	return server.NewBudget(requestBytes(limits))
}

// requestBytes is that bound in bytes, 0 for none.
func requestBytes(limits config.Limits) int64 {
	if limits.Memory == config.AutoSize {
		return min(memory.Fraction(8, mostRequestBytes), mostRequestBytes)
	}
	return limits.Memory
}

// maxTokenID is the largest token id, 0 for no bound.
func maxTokenID(limits config.Limits) uint32 { return uint32(min(limits.MaxTokenID, math.MaxUint32)) }

// queriesPerProcessor is how many queries are worked on at once for each processor. In
// its place a query waits for nothing but a processor, so that more of them only share
// it; several, because a short one shall pass those of a million tokens.
const queriesPerProcessor = 4

// admission is the bound of queries as configured.
func admission(limits config.Limits) *server.Admission {
	return server.NewAdmission(maxQueries(limits), limits.QueryWait)
}

// maxQueries is how many queries are worked on at once.
func maxQueries(limits config.Limits) int {
	if limits.MaxQueries > 0 {
		return limits.MaxQueries
	}
	return queriesPerProcessor * runtime.GOMAXPROCS(0)
}

// heartbeat is the configured pause between heartbeats as the transport takes it,
// for which 0 is its default.
func heartbeat(pause time.Duration) time.Duration {
	if pause == 0 {
		return -1
	}
	return pause
}

// registration is a configured source as the registry takes it.
func registration(s config.Source) conductor.Registration {
	return conductor.Registration{
		Endpoint: s.Endpoint, ReplayEndpoint: s.ReplayEndpoint, SnapshotEndpoint: s.SnapshotEndpoint, Type: s.Type, Model: s.ModelName, Lora: s.LoraName,
		Tenant: s.TenantID, Instance: s.InstanceID, BlockSize: max(s.BlockSize, 0), Rank: s.DPRank, Salt: s.AdditionalSalt, TTL: s.TTL, MediaTTL: s.MediaTTL,
		Serves: s.Serves, Copies: s.Copies, Owned: s.Owned, Clear: s.Clear, MayAnnounce: s.MayAnnounce,
		Profile: conductor.HashProfile(s.HashProfile), Sequence: s.Sequence,
	}
}

// buildInfo tells which build is running.
func buildInfo() prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "conductor_build_info", Help: "1, labelled with the version.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	g.Set(1)
	return g
}

// unclaimedMessages counts the messages that no source takes.
func unclaimedMessages(s *zmq.Sockets) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "conductor_unclaimed_messages_total", Help: "Messages on bound sockets whose topic and rank no source claims.",
	}, func() float64 {
		messages, _ := s.Strays()
		return float64(messages)
	})
}
