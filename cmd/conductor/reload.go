package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/admin"
	"example.com/conductor/conductor/rpc"
	"example.com/conductor/conductor/server"
	"example.com/conductor/conductor/telemetry"
	"example.com/conductor/config"
	"example.com/conductor/events/reach"
)

// settingsInUse are those of the start until a reload replaces them.
type settingsInUse struct {
	mu      sync.Mutex
	current config.Config // guarded by mu
}

// copySettings returns the settings in use. It waits for a reload to end.
func (s *settingsInUse) copySettings() config.Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// reloader takes over settings that change while the server runs. A change that needs a restart
// refuses all of them, so that no half of a file counts.
type reloader struct {
	load      func() (*config.Loaded, error) // as at the start
	settings  *settingsInUse                 // locked as long as a reload takes
	conductor *conductor.Conductor
	sources   *following
	folder    *folder // nil without discovery.sources_dir
	entry     *gate
	listeners *server.Servers
	slots     *server.Admission
	budget    *server.Budget
	timing    *telemetry.Watch
	watches   *rpc.Watches
	allowed   *reaching
	log       zerolog.Logger

	results *prometheus.CounterVec
	last    prometheus.Gauge
}

func newReloader(r *reloader) *reloader {
	r.results = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "conductor_reloads_total", Help: "Reloads of the settings, by result: applied, unchanged, refused or invalid.",
	}, []string{"result"})
	r.last = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "conductor_reload_time_seconds", Help: "Time at which the settings in use were read, in seconds since 1970.",
	})
	r.last.SetToCurrentTime()
	return r
}

// Describe implements prometheus.Collector.
func (r *reloader) Describe(ch chan<- *prometheus.Desc) {
	r.results.Describe(ch)
	r.last.Describe(ch)
}

// Collect implements prometheus.Collector.
func (r *reloader) Collect(ch chan<- prometheus.Metric) {
	r.results.Collect(ch)
	r.last.Collect(ch)
}

// Reload reads the settings again and applies what has changed. A dry run changes nothing.
func (r *reloader) Reload(dry bool) admin.Reload {
	r.settings.mu.Lock()
	defer r.settings.mu.Unlock()
	out := r.applySettings(dry)
	if dry {
		return out
	}
	if r.folder != nil {
		// The folder asks for the settings.
		r.settings.mu.Unlock()
		out.Files = r.folder.readFiles()
		r.settings.mu.Lock()
	}
	r.results.WithLabelValues(out.Result).Inc()
	line := r.log.Info()
	if len(out.Errors) > 0 {
		line = r.log.Error().Strs("errors", out.Errors)
	}
	for _, c := range out.Changes {
		line = line.Str(c.Path, c.Is)
	}
	line.Strs("added", out.Added).Strs("changed", out.Changed).Strs("removed", out.Removed).Msg("reload: " + out.Result)
	return out
}

func (r *reloader) applySettings(dry bool) (out admin.Reload) {
	loaded, err := r.load()
	next := loaded.Config
	policy, wrong := policyOf(&next) // files may have changed without a setting
	if wrong != nil {
		err = errors.Join(err, errors.New("auth.file: "+strings.ReplaceAll(wrong.Error(), "\n", "\nauth.file: ")))
	}
	if err != nil {
		out.Result, out.Errors = admin.ReloadInvalid, strings.Split(err.Error(), "\n")
		return out
	}
	added, changed, removed := config.DiffSources(&r.settings.current, &next)
	for _, c := range config.Diff(&r.settings.current, &next) {
		out.Changes = append(out.Changes, admin.Change(c))
		if !c.Live {
			out.Errors = append(out.Errors, fmt.Sprintf("%s: needs a restart (%s is in use, %s is set)", c.Path, c.Was, c.Is))
		}
	}
	for _, s := range added {
		if r.folder == nil {
			break
		}
		if file := r.folder.ownerOf(s.Key()); file != "" {
			out.Errors = append(out.Errors, fmt.Sprintf("source %s: is a source of %s in discovery.sources_dir", s.Key(), file))
		}
	}
	out.Added, out.Changed, out.Removed = keysOf(added), keysOf(changed), keysOf(removed)
	if len(out.Errors) > 0 {
		out.Result = admin.ReloadRefused
		return out
	}
	if out.Result = admin.ReloadApplied; len(out.Changes)+len(added)+len(changed)+len(removed) == 0 {
		out.Result = admin.ReloadUnchanged
	}
	if dry {
		return out
	}
	r.conductor.Tune(tunables(&next)) // new sources may need the new bounds
	if err := r.replaceSources(added, changed, removed); err != nil {
		r.conductor.Tune(tunables(&r.settings.current))
		out.Result, out.Errors = admin.ReloadRefused, strings.Split(err.Error(), "\n")
		return out
	}
	r.entry.replacePolicy(&next, policy)
	r.applyLiveSettings(&next)
	r.settings.current = next
	r.last.Set(float64(time.Now().Unix()))
	return out
}

// replaceSources replaces sources. If one cannot be registered, those before it are put back.
func (r *reloader) replaceSources(added, changed, removed []config.Source) error {
	var undo []func()
	register := r.sources.registerSource
	before := func(s config.Source) config.Source {
		for _, old := range r.settings.current.Sources {
			if old.Key() == s.Key() {
				return old
			}
		}
		panic("BUG: a changed source was not there before: " + s.Key().String())
	}
	for _, s := range removed {
		if err := r.sources.unregisterSource(s); err != nil {
			return r.undoChanges(undo, s, err)
		}
		undo = append(undo, func() { register(s, true) })
	}
	for _, s := range changed {
		was := before(s)
		if err := r.sources.changeSource(was, s); err != nil {
			return r.undoChanges(undo, s, err)
		}
		undo = append(undo, func() { r.sources.changeSource(s, was) })
	}
	for _, s := range added {
		if err := register(s, false); err != nil {
			return r.undoChanges(undo, s, err)
		}
		undo = append(undo, func() { r.sources.unregisterSource(s) })
	}
	return nil
}

// undoChanges takes back what was done before an error.
func (r *reloader) undoChanges(undo []func(), s config.Source, err error) error {
	for i := len(undo) - 1; i >= 0; i-- {
		undo[i]()
	}
	return fmt.Errorf("source %s: %w", s.Key(), err)
}

func keysOf(all []config.Source) (keys []string) {
	for _, s := range all {
		keys = append(keys, s.Key().String())
	}
	return keys
}

// applyLiveSettings takes over the settings whose tag is reload, but those of the Conductor. Nothing here can fail.
func (r *reloader) applyLiveSettings(c *config.Config) {
	setLevel(c.Log.Level)
	r.slots.SetBound(maxQueries(), c.Limits.QueryWait)
	r.listeners.Connections.SetBounds(connectionBounds(c.Limits))
	r.budget.SetBound(requestBytes(c.Limits))
	r.timing.SetSlow(c.Log.SlowQuery)
	r.allowed.set(c)
}

// reaching are the rules for endpoints that clients name.
type reaching struct {
	mu    sync.RWMutex
	rules *reach.Rules // guarded by mu
}

func newReaching(c *config.Config) *reaching {
	r := new(reaching)
	r.set(c)
	return r
}

func (r *reaching) set(c *config.Config) {
	rules, err := reach.Parse(c.Register.Allow, onLoopback(c.Listeners))
	if err != nil {
		panic("BUG: a checked rule does not parse: " + err.Error())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rules = rules
}

func (r *reaching) currentRules() *reach.Rules {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.rules
}

// tunables are the settings of the Conductor that may change.
func tunables(c *config.Config) conductor.Tunables {
	room := roomOf(c.Limits)
	return conductor.Tunables{
		MaxSources: room.sources, MaxSourcesBy: room.by, MaxTenantSources: c.Limits.MaxTenantSources, MinSynced: c.Ready.MinSources,
		SaltedOnly: c.Privacy.SaltedOnly, MaxTokenID: maxTokenID(c.Limits), MaxError: float64(c.Feedback.MaxError) / 100,
	}
}

// catchHangups catches SIGHUP, if there is a file of settings to read again, or an access log to open again. Else the signal
// keeps its usual effect. The signal may come before the server can act on it.
func catchHangups(c *config.Config, file string) chan os.Signal {
	hangups := make(chan os.Signal, 1)
	if file != "" || c.Dynamo.AccessLog != "" {
		signal.Notify(hangups, syscall.SIGHUP)
	}
	return hangups
}

// obeyHangups reads the settings again for each signal, and opens the access log again, as log rotation asks for, until ctx ends.
func (s *serving) obeyHangups(ctx context.Context, hangups <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
		}
		if s.loaded.File != "" {
			s.reloads.Reload(false)
			s.reloads.entry.readAll()
		}
		if s.accessLog == nil {
			continue
		}
		if err := s.accessLog.Reopen(); err != nil {
			s.log.Error().Err(err).Msg("the access log was not reopened")
			continue
		}
		s.log.Info().Msg("the access log was reopened")
	}
}

// watchFile reads the settings again when their file changes, until ctx ends. before is its stamp
// when it was read.
func watchFile(ctx context.Context, file, before string, r *reloader) {
	access.Watch(ctx, before, func() []string { return []string{file} }, func() { r.Reload(false) })
}

// stampOf returns the stamp of the file of the settings.
func stampOf(file string) string { return access.Stamp(file) }
