package file

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/discovery"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/reach"
	"example.com/conductor/history"
	"example.com/conductor/history/historytest"
	"example.com/conductor/internal/must"
)

// keep makes a Keeper of a directory, and what it needs.
func keep(t testing.TB, c *conductor.Conductor, d *Dir) *Keeper {
	t.Helper()
	return NewKeeper(Config{Dir: d, Conductor: c, Interval: time.Minute, Keep: 2, Log: zerolog.Nop()})
}

// restart loads what a directory has into a fresh Conductor.
func restart(t testing.TB, d *Dir, change func(*conductor.Options), register ...registration.Registration) (*conductor.Conductor, Status) {
	t.Helper()
	c := historytest.Server(t, change)
	for _, r := range register {
		must.Succeed(t, c.Register(r, ingest.RegisterOptions{Static: true, AnyEndpoint: true}))
	}
	k := keep(t, c, d)
	k.RestoreRegistrations()
	k.Restore(t.Context(), loaderOf(c))
	return c, k.Status()
}

// registrationsOf returns the registrations of a Conductor as the disk has them.
func registrationsOf(c *conductor.Conductor) history.Registrations {
	saved := c.Sources().Snapshots().KeptSources()
	return history.Registrations{HashSeed: saved.Seed(), Sources: saved.Saved()}
}

// loaderOf loads snapshots into a Conductor.
func loaderOf(c *conductor.Conductor) *history.Loader {
	return &history.Loader{Conductor: c, Log: zerolog.Nop()}
}

// A server writes a snapshot at an interval and at its end, also when the clock steps back.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := openDir(t, t.TempDir())
		a := historytest.Server(t, nil)
		historytest.Fill(t, a, 1, 10)
		var back atomic.Int64
		k := NewKeeper(Config{Dir: d, Conductor: a, Interval: time.Minute, Keep: 2, Log: zerolog.Nop(),
			Now: func() time.Time { return time.Now().Add(time.Duration(-back.Load())) }})
		ended := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			k.Run(ctx)
			close(ended)
		}()
		f := func(wait time.Duration, want int) {
			t.Helper()
			time.Sleep(wait)
			synctest.Wait()
			if got := k.Status().Written; got != want {
				t.Errorf("%d snapshots, want %d", got, want)
			}
		}
		f(59*time.Second, 0)
		f(2*time.Second, 1)
		f(time.Minute, 2)
		back.Store(int64(time.Hour))
		f(time.Second, 3)
		f(time.Minute, 4)
		cancel()
		<-ended
		f(0, 5)
		a.Close()
	})
}

// What the configuration and clients say today wins over a snapshot.
func TestRestore(t *testing.T) {
	d := openDir(t, t.TempDir())
	a := historytest.Server(t, nil)
	for _, instance := range []string{"a", "b", "c"} {
		must.Succeed(t, a.Register(historytest.Registration(instance), ingest.RegisterOptions{AnyEndpoint: true,
			Static: instance == "c"}))
	}
	historytest.Fill(t, a, 3, 100)
	_, err := d.SaveSnapshot(a, historytest.At, 2)
	must.Succeed(t, err)

	// The configuration has another block size for a, and does not name c.
	other := historytest.Registration("a")
	other.BlockSize = 32
	c, st := restart(t, d, nil, other)
	if got := historytest.Held(c); got["a"] != 0 || got["b"] != 100 || len(got) != 2 || st.LeftOut[reasonChanged] != 2 || st.Blocks != 100 {
		t.Errorf("%v, %+v", got, st)
	}
	for _, s := range c.Services() {
		if want := map[string]string{"a": ingest.FromLive, "b": ingest.FromSnapshot}[s.Instance]; s.HistoryFrom != want {
			t.Errorf("%s: from %s", s.Instance, s.HistoryFrom)
		}
	}

	// A client has unregistered b since.
	_, err = a.Unregister(registration.Key{Instance: "b", Tenant: "default"})
	must.Succeed(t, err)
	_, err = d.SaveRegistrations(registrationsOf(a), historytest.At)
	must.Succeed(t, err)
	c, st = restart(t, d, nil)
	if got := historytest.Held(c); got["a"] != 100 || len(got) != 1 || st.LeftOut[reasonChanged] != 3 { // c in both files
		t.Errorf("%v, %+v", got, st)
	}
}

// A snapshot larger than the bound of an index costs the blocks beyond it.
func TestRestoreBeyondTheBudget(t *testing.T) {
	d := openDir(t, t.TempDir())
	a := historytest.Server(t, nil)
	historytest.Fill(t, a, 20, 2000)
	_, err := d.SaveSnapshot(a, historytest.At, 2)
	must.Succeed(t, err)
	c, st := restart(t, d, func(o *conductor.Options) { o.MaxBytes = 300_000 })
	if st.Blocks == 0 || st.LeftOut[reasonBudget] == 0 || st.Blocks+st.LeftOut[reasonBudget] != 40_000 { // as many have a salt
		t.Errorf("%+v", st)
	}
	for _, err := range c.Check() {
		t.Error(err)
	}
}

// A server starts with whatever the directory holds, and says what it could not use.
func TestRestoreBadFiles(t *testing.T) {
	f := func(spoil func(path string), change func(*conductor.Options), blocks int, reasons ...string) {
		t.Helper()
		path := t.TempDir()
		d := openDir(t, path)
		defer d.Close()
		a := historytest.Server(t, nil)
		historytest.Fill(t, a, 1, 10)
		for range 2 {
			_, err := d.SaveSnapshot(a, historytest.At, 2)
			must.Succeed(t, err)
		}
		spoil(filepath.Join(path, "00000002.snapshot"))
		c, st := restart(t, d, change)
		var got []string
		for reason, n := range st.LeftOut {
			if n > 0 && reason != reasonSealed {
				got = append(got, reason)
			}
		}
		if !slices.Equal(got, reasons) || historytest.Held(c)["a"] != blocks {
			t.Errorf("%q, %v, want %q, %d", got, historytest.Held(c), reasons, blocks)
		}
	}
	change := func(at int64, to byte) func(string) {
		return func(path string) {
			file, err := os.OpenFile(path, os.O_RDWR, 0)
			must.Succeed(t, err)
			_, err = file.WriteAt([]byte{to}, at)
			must.Succeed(t, err)
			must.Succeed(t, file.Close())
		}
	}
	f(func(string) {}, nil, 10)
	f(func(path string) { must.Succeed(t, os.Truncate(path, 0)) }, nil, 10, history.ReasonForeign)
	f(func(path string) { must.Succeed(t, os.Truncate(path, 200)) }, nil, 10, history.ReasonTorn)
	f(change(0, 'X'), nil, 10, history.ReasonForeign)
	f(change(8, 9), nil, 10, history.ReasonVersion)
	f(change(100, 255), nil, 10, history.ReasonDamaged)
	f(func(path string) { must.Succeed(t, os.Remove(path)); must.Succeed(t, os.Mkdir(path, 0o700)) }, nil, 10)
	f(func(string) {}, func(o *conductor.Options) { o.HashSeed = 1 }, 0, history.ReasonSeed)
}

// targetsFor follows engines that do not answer.
func targetsFor(t *testing.T, c *conductor.Conductor) *discovery.Manager {
	m := discovery.New(discovery.Options{Registry: c.Sources(), Rules: func() *reach.Rules { return nil }, Log: zerolog.Nop()})
	t.Cleanup(m.Close)
	return m
}

// Targets of clients are kept with the registrations, and in a snapshot for a server without those.
// One with a salt needs a key.
func TestTargetsAreKept(t *testing.T) {
	path := t.TempDir()
	d := openDir(t, path)
	a := historytest.Server(t, nil)
	m := targetsFor(t, a)
	k := NewKeeper(Config{Dir: d, Conductor: a, Targets: m, Keep: 2, Log: zerolog.Nop()})
	target := func(instance, salt string) discovery.Target {
		return discovery.Target{URL: "http://127.0.0.1:1", Registration: registration.Registration{Instance: instance, Tenant: "blue",
			BlockSize: 16, Salt: salt}}
	}
	before := k.Registrations.revision()
	must.Succeed(t, m.Add(target("open", ""), false))
	must.Succeed(t, m.Add(target("salted", "pepper"), false))
	if k.Registrations.revision() == before {
		t.Error("a target changes nothing")
	}
	k.writeSnapshot()
	k.Registrations.allowWrites(nil)
	if err := k.Registrations.Commit(t.Context()); err != nil || k.Registrations.salted != 1 {
		t.Errorf("%v, %d were left out", err, k.Registrations.salted)
	}
	f := func(want string, leftOut int, begin func(*discovery.Manager)) {
		t.Helper()
		c := historytest.Server(t, nil)
		m := targetsFor(t, c)
		begin(m)
		k := NewKeeper(Config{Dir: d, Conductor: c, Targets: m, Log: zerolog.Nop()})
		k.RestoreRegistrations()
		k.Restore(t.Context(), loaderOf(c))
		var got []string
		for _, s := range m.List() {
			got = append(got, s.Tenant+"/"+s.Instance+" "+s.URL)
		}
		if text := strings.Join(got, ", "); text != want || k.Status().LeftOut[reasonChanged] != leftOut {
			t.Errorf("%s, want %s; %v", text, want, k.Status().LeftOut)
		}
	}
	const restored = "blue/open http://127.0.0.1:1"
	f(restored, 0, func(*discovery.Manager) {})
	f("blue/open http://127.0.0.2:1", 1, func(m *discovery.Manager) { // the settings win
		must.Succeed(t, m.Add(discovery.Target{URL: "http://127.0.0.2:1", Static: true,
			Registration: registration.Registration{Instance: "open", Tenant: "blue"}}, false))
	})
	must.Succeed(t, os.Remove(filepath.Join(path, registrationsFile)))
	f(restored, 0, func(*discovery.Manager) {})
}

// Registrations that a newer program wrote are kept when this one writes its own: to go forward again needs them.
func TestNewerRegistrationsAreKept(t *testing.T) {
	path := t.TempDir()
	d := openDir(t, path)
	a := historytest.Server(t, nil)
	must.Succeed(t, a.Register(historytest.Registration("a"), ingest.RegisterOptions{AnyEndpoint: true}))
	_, err := d.SaveRegistrations(registrationsOf(a), historytest.At)
	must.Succeed(t, err)
	file := filepath.Join(path, registrationsFile)
	data, err := os.ReadFile(file)
	must.Succeed(t, err)
	data[8] += 3
	must.Succeed(t, os.WriteFile(file, data, 0o600))

	c := historytest.Server(t, nil)
	k := keep(t, c, d)
	c.KeepRegistrations(k.Registrations)
	k.RestoreRegistrations()
	k.Restore(t.Context(), loaderOf(c))
	if st := k.Status(); st.LeftOut[history.ReasonVersion] != 1 || len(c.Registrations()) != 0 {
		t.Errorf("%+v, %v", st, c.Registrations())
	}
	must.Succeed(t, register(t.Context(), c, "b"))
	c.Close()
	if kept, err := os.ReadFile(file + newer); err != nil || string(kept) != string(data) {
		t.Errorf("%v, %d bytes of %d are kept", err, len(kept), len(data))
	}
	must.Succeed(t, d.Close())
	if got := instances(t, path); !slices.Equal(got, []string{"b"}) {
		t.Errorf("%q", got)
	}
}

// Registrations with a damaged part may have been answered: the log says so, and the file is kept when this one is written. An
// end that was merely cut off is a write that nobody was told of.
func TestDamagedRegistrationsAreKept(t *testing.T) {
	f := func(what string, spoil func(data []byte) []byte, found []string, level string, kept bool) {
		t.Helper()
		disk := newFaultyDisk()
		a, _ := keeperOn(t, disk, history.NoKey)
		for _, instance := range []string{"a", "b", "c"} {
			must.Succeed(t, register(t.Context(), a, instance))
		}
		path := disk.folder(t, killed)
		file := filepath.Join(path, registrationsFile)
		data, err := os.ReadFile(file)
		must.Succeed(t, err)
		data = spoil(data)
		must.Succeed(t, os.WriteFile(file, data, 0o600))
		d := openDir(t, path)
		defer d.Close()
		c := historytest.Server(t, nil)
		k := keep(t, c, d)
		var log strings.Builder
		k.cfg.Log = zerolog.New(&log)
		c.KeepRegistrations(k.Registrations)
		k.RestoreRegistrations()
		k.Restore(t.Context(), loaderOf(c))
		var got []string
		for _, r := range c.Registrations() {
			got = append(got, r.Instance)
		}
		slices.Sort(got)
		if has := strings.Contains(log.String(), `"level":"`+level+`"`); !slices.Equal(got, found) || !has ||
			(k.Status().LeftOut[history.ReasonDamaged] > 0) != kept {
			t.Errorf("%s: %q, %v, %s", what, got, k.Status().LeftOut, log.String())
		}
		must.Succeed(t, register(t.Context(), c, "z"))
		c.Close()
		if aside, err := os.ReadFile(file + damaged); kept && string(aside) != string(data) || kept != (err == nil) {
			t.Errorf("%s: %v, %d bytes of %d are kept", what, err, len(aside), len(data))
		}
	}
	flip := func(at int) func([]byte) []byte {
		return func(data []byte) []byte { data[(len(data)+at)%len(data)] ^= 1; return data }
	}
	f("cut off", func(data []byte) []byte { return data[:len(data)-1] }, []string{"a", "b"}, "warn", false)
	f("a bit at the end", flip(-1), []string{"a", "b"}, "error", true)
	f("a bit at the beginning", flip(40), nil, "error", true)
}
