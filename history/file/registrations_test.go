package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/history"
	"example.com/conductor/history/historytest"
	"example.com/conductor/internal/must"
	"example.com/conductor/keyfile"
)

// errEnded is what a process that has ended gets of the disk.
var errEnded = errors.New("the process has ended")

// faultyDisk is a disk in memory. It knows what a process that is killed leaves, and what a machine that
// loses its power leaves.
type faultyDisk struct {
	// before is called before each step; an error is that of the step.
	before func(step, path string) error

	mu    sync.Mutex
	steps int
	bytes int                    // that were written
	syncs int                    // of the registrations
	names map[string]*faultyFile // guarded by mu
	kept  map[string]*faultyFile // names that are on the disk; guarded by mu
	ended bool                   // the process has; guarded by mu
}

type faultyFile struct {
	disk *faultyDisk
	path string
	all  []byte // guarded by disk.mu
	kept []byte // that is on the disk; guarded by disk.mu
}

func newFaultyDisk() *faultyDisk {
	return &faultyDisk{names: make(map[string]*faultyFile), kept: make(map[string]*faultyFile)}
}

// step is a step of the disk: done is what it does.
func (d *faultyDisk) step(name, path string, done func()) error {
	if d.before != nil {
		if err := d.before(name, path); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.steps++; d.ended {
		return errEnded
	}
	done()
	return nil
}

func (d *faultyDisk) create(path string) (writable, error) {
	f := &faultyFile{disk: d, path: path}
	return f, d.step("create", path, func() { d.names[path] = f })
}

func (d *faultyDisk) rename(from, to string) error {
	return d.step("rename", to, func() {
		d.names[to] = d.names[from]
		delete(d.names, from)
	})
}

func (d *faultyDisk) remove(path string) error {
	return d.step("remove", path, func() { delete(d.names, path) })
}

func (d *faultyDisk) is(path string, file writable, size int64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.names[path]
	return writable(f) == file && int64(len(f.all)) == size
}

func (d *faultyDisk) syncDir(path string) error {
	return d.step("syncDir", path, func() {
		clear(d.kept)
		for name, f := range d.names {
			d.kept[name] = f
		}
	})
}

func (f *faultyFile) Write(p []byte) (int, error) {
	n := 0
	err := f.disk.step("write", f.path, func() {
		f.all, n = append(f.all, p...), len(p)
		f.disk.bytes += n
	})
	if errors.Is(err, errEnded) {
		f.disk.mu.Lock()
		f.all = append(f.all, p[:len(p)/2]...) // torn
		f.disk.mu.Unlock()
	}
	return n, err
}

func (f *faultyFile) Sync() error {
	return f.disk.step("sync", f.path, func() {
		if f.kept = slices.Clone(f.all); filepath.Base(f.path) == nameOf(0, unfinished) {
			f.disk.syncs++
		}
	})
}

func (f *faultyFile) Close() error { return f.disk.step("close", f.path, func() {}) }

// What may end a server besides itself.
const (
	killed       = "killed"
	powerLost    = "power lost"
	powerTorn    = "power lost, after the disk had half of what was not synced"
	powerGarbled = "power lost, after the disk had the size of what was not synced"
)

// folder returns a folder with the files that are left.
func (d *faultyDisk) folder(t testing.TB, by string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	path := t.TempDir()
	names := d.names
	if by != killed {
		names = d.kept
	}
	for name, f := range names {
		content, rest := f.kept, f.all[len(f.kept):]
		switch by {
		case killed:
			content = f.all
		case powerTorn:
			content = append(slices.Clone(content), rest[:len(rest)/2]...)
		case powerGarbled:
			content = append(slices.Clone(content), make([]byte, len(rest))...)
		}
		must.Succeed(t, os.WriteFile(filepath.Join(path, filepath.Base(name)), content, 0o600))
	}
	return path
}

// keeperOn returns a Keeper of an empty directory on a disk, for a Conductor whose clients wait for it.
func keeperOn(t testing.TB, d disk, key *history.SealingKey) (*conductor.Conductor, *Keeper) {
	t.Helper()
	dir, err := OpenDir(t.TempDir(), key)
	must.Succeed(t, err)
	t.Cleanup(func() { dir.Close() })
	dir.disk = d
	c := historytest.Server(t, nil)
	k := keep(t, c, dir)
	c.KeepRegistrations(k.Registrations)
	k.RestoreRegistrations()
	k.Restore(t.Context(), loaderOf(c))
	return c, k
}

// register and unregister are calls of a client.
func register(ctx context.Context, c *conductor.Conductor, instance string) error {
	v, r := c.For(conductor.Reader{}), historytest.Registration(instance)
	return v.Commit(ctx, r.Key(), v.Register(r, ingest.RegisterOptions{AnyEndpoint: true}))
}

func unregister(ctx context.Context, c *conductor.Conductor, instance string) error {
	v := c.For(conductor.Reader{})
	key, err := v.Unregister(historytest.Registration(instance).Key())
	return v.Commit(ctx, key, err)
}

// instances returns what a restart finds.
func instances(t testing.TB, path string) (all []string) {
	t.Helper()
	d := openDir(t, path)
	defer d.Close()
	c, _ := restart(t, d, nil)
	for _, r := range c.Registrations() {
		all = append(all, r.Instance)
	}
	c.Close()
	slices.Sort(all)
	return all
}

// What a client was told is there at the next start, whichever step of the disk fails, and wherever the
// process or the machine ends.
func TestAnsweredRegistrationsLast(t *testing.T) {
	// Calls of one line run at the same time.
	script := []string{"+a", "+b", "-a", "+c -b", "+a", "-a +d +e", "-x", "+f"}
	type fault struct {
		step int
		ends bool
	}
	run := func(f fault) (steps int) {
		disk := newFaultyDisk()
		n := 0
		var mu sync.Mutex
		disk.before = func(string, string) error {
			mu.Lock()
			defer mu.Unlock()
			if n++; n != f.step {
				return nil
			}
			if f.ends {
				disk.mu.Lock()
				disk.ended = true
				disk.mu.Unlock()
				return nil
			}
			return syscall.ENOSPC
		}
		c, k := keeperOn(t, disk, history.NoKey)
		sure := map[string]bool{}           // as a client was told
		since := map[string]map[bool]bool{} // what it may be after calls that failed
		failed := false                     // a call of the last line has
		for _, line := range script {
			failed = false
			var calls sync.WaitGroup
			for _, call := range strings.Fields(line) {
				calls.Go(func() {
					there, instance := call[0] == '+', call[1:]
					ask := unregister
					if there {
						ask = register
					}
					err := ask(t.Context(), c, instance)
					mu.Lock()
					defer mu.Unlock()
					switch {
					case err == nil, errors.Is(err, ingest.ErrNotFound):
						sure[instance] = there
						delete(since, instance)
					case errors.Is(err, conductor.ErrNotDurable):
						if since[instance] == nil {
							since[instance] = map[bool]bool{}
						}
						since[instance][there] = true
						failed = true
					default:
						t.Errorf("%+v: %s: %v", f, call, err)
					}
				})
			}
			calls.Wait()
		}
		if err := k.Registrations.commit(t.Context(), true); err != nil && f.step == 0 {
			t.Error(err)
		}
		for _, by := range []string{killed, powerLost, powerTorn, powerGarbled} {
			found := instances(t, disk.folder(t, by))
			for _, instance := range []string{"a", "b", "c", "d", "e", "f", "x"} {
				there := slices.Contains(found, instance)
				if there != sure[instance] && !since[instance][there] {
					t.Errorf("%+v, %s: %s is there: %t; a client was told %t, then failed %v", f, by, instance, there,
						sure[instance], since[instance])
				}
			}
			if want := []string{"c", "d", "e", "f"}; !failed && !slices.Equal(found, want) {
				t.Errorf("%+v, %s: %q at the end, want %q", f, by, found, want)
			}
		}
		c.Close()
		return n
	}
	defer func(bytes int64) { appendable = bytes }(appendable)
	for _, appendable = range []int64{1 << 20, 0} { // with a file that is written again and again
		run(fault{})
		// How many steps there are differs from run to run: calls of one line share a write, or do not.
		step := 1
		for run(fault{step, true}) >= step && run(fault{step, false}) >= step {
			step++
		}
		if changes := 7; step <= 2*changes { // each line that changes something writes and syncs
			t.Errorf("%d steps", step-1)
		}
	}
}

// A registration costs the same however many there are: a server that is filled one by one writes each of them a few times.
func TestRegistrationsCostTheSame(t *testing.T) {
	defer func(bytes int64) { appendable = bytes }(appendable)
	appendable = 0
	disk := newFaultyDisk()
	c, k := keeperOn(t, disk, history.NoKey)
	const n = 500
	for i := range n {
		must.Succeed(t, register(t.Context(), c, fmt.Sprint("i", i)))
	}
	must.Succeed(t, k.Registrations.commit(t.Context(), true))
	path := disk.folder(t, powerLost)
	whole, err := os.Stat(filepath.Join(path, registrationsFile))
	must.Succeed(t, err)
	if most := 8 * int(whole.Size()); disk.bytes > most {
		t.Errorf("%d registrations took %d bytes, more than %d", n, disk.bytes, most)
	}
	if got := instances(t, path); len(got) != n {
		t.Errorf("%d sources last", len(got))
	}
	before := disk.bytes
	for range n { // of one source, which comes and goes
		must.Succeed(t, unregister(t.Context(), c, "i7"))
		must.Succeed(t, register(t.Context(), c, "i7"))
	}
	if most := 16 * int(whole.Size()); disk.bytes-before > most {
		t.Errorf("%d changes took %d bytes, more than %d", 2*n, disk.bytes-before, most)
	}
	if got := instances(t, disk.folder(t, killed)); len(got) != n {
		t.Errorf("%d sources last", len(got))
	}
}

// Clients that wait at the same time share a write.
func TestRegistrationsShareWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk, slow := newFaultyDisk(), make(chan struct{})
		disk.before = func(step, _ string) error {
			if step == "sync" {
				<-slow
			}
			return nil
		}
		c, _ := keeperOn(t, disk, history.NoKey)
		const clients = 100
		var calls sync.WaitGroup
		for i := range clients {
			calls.Go(func() { must.Report(t, register(t.Context(), c, fmt.Sprint("i", i))) })
		}
		synctest.Wait() // all wait, one of them for a write that is under way
		close(slow)
		calls.Wait()
		if disk.syncs > 2 {
			t.Errorf("%d clients took %d writes", clients, disk.syncs)
		}
		if got := instances(t, disk.folder(t, powerLost)); len(got) != clients {
			t.Errorf("%d sources last", len(got))
		}
		must.Succeed(t, register(t.Context(), c, "i7")) // it changes nothing
		if disk.syncs > 2 {
			t.Errorf("a registration that was there takes %d writes", disk.syncs-2)
		}
		c.Close()
	})
}

// A registration waits neither for a snapshot that is being written, nor for one that is being loaded
// once its own file was read.
func TestRegistrationsDoNotWaitForSnapshots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk, stuck := newFaultyDisk(), make(chan struct{})
		disk.before = func(_, path string) error {
			if filepath.Base(path) == nameOf(1, unfinished) {
				<-stuck
			}
			return nil
		}
		c, k := keeperOn(t, disk, history.NoKey)
		historytest.Fill(t, c, 2, 100)
		ended := make(chan struct{})
		go func() {
			k.writeSnapshot()
			close(ended)
		}()
		synctest.Wait()
		must.Succeed(t, register(t.Context(), c, "x"))
		must.Succeed(t, unregister(t.Context(), c, "x"))
		select {
		case <-ended:
			t.Error("the snapshot was not under way")
		default:
		}
		close(stuck)
		<-ended
		c.Close()
	})
}

// A client may go away, and a server stop, while the disk hangs.
func TestRegistrationsOnHungDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk, stuck := newFaultyDisk(), make(chan struct{})
		disk.before = func(string, string) error { <-stuck; return nil }
		c, k := keeperOn(t, disk, history.NoKey)
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		if err := register(ctx, c, "a"); !errors.Is(err, conductor.ErrNotDurable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		if s := c.Services(); len(s) != 1 || len(s[0].Findings) > 0 {
			t.Errorf("a client that went away leaves %+v", s)
		}
		k.Registrations.Run(ctx) // returns
		close(stuck)
		must.Succeed(t, register(t.Context(), c, "a"))
		c.Close()
	})
}

// A disk that refuses fails calls, and shows. The change counts, and lasts once the disk takes it.
func TestRegistrationsOnFailingDisk(t *testing.T) {
	disk := newFaultyDisk()
	full := true
	disk.before = func(step, path string) error {
		if step == "create" && full {
			return &fs.PathError{Op: "open", Path: path, Err: syscall.ENOSPC}
		}
		return nil
	}
	c, k := keeperOn(t, disk, history.NoKey)
	f := func(call func(context.Context, *conductor.Conductor, string) error, instance, want string) {
		t.Helper()
		text := ""
		if err := call(t.Context(), c, instance); err != nil {
			text = err.Error()
		}
		if text != want {
			t.Errorf("%s: %q, want %q", instance, text, want)
		}
	}
	const refused = "the change counts, but a restart would lose it: no space left on device"
	f(register, "a", refused)
	f(register, "a", refused) // again
	f(register, "b", refused)
	f(unregister, "b", refused)
	f(unregister, "b", refused) // not ErrNotFound: it would come back if the disk had had it
	s := c.Services()
	if len(s) != 1 || len(s[0].Findings) != 1 || s[0].Findings[0].Code != doctor.FindingNotDurable || k.Status().Unkept == nil {
		t.Errorf("%+v, %v", s, k.Status().Unkept)
	}
	full = false
	f(register, "a", "")
	f(unregister, "b", "service not found: b|default|0")
	for deadline := time.Now().Add(time.Minute); len(c.Services()[0].Findings) > 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if s := c.Services(); len(s[0].Findings) > 0 || k.Status().Unkept != nil {
		t.Errorf("%+v, %v", s, k.Status().Unkept)
	}
	if got := instances(t, disk.folder(t, powerLost)); !slices.Equal(got, []string{"a"}) {
		t.Errorf("%q", got)
	}
}

// The file of the last run is not replaced before its sources are here, and not at all if the start is
// given up.
func TestRegistrationsWaitForTheirStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := t.TempDir()
		d := openDir(t, path)
		a := historytest.Server(t, nil)
		historytest.Fill(t, a, 2, 10)
		must.Succeed(t, a.Register(historytest.Registration("a"), ingest.RegisterOptions{AnyEndpoint: true}))
		_, err := d.SaveSnapshot(a, historytest.At, 2) // without a file of registrations
		must.Succeed(t, err)
		start := func() (*conductor.Conductor, *Keeper, chan error) {
			c := historytest.Server(t, nil)
			k := keep(t, c, d)
			c.KeepRegistrations(k.Registrations)
			k.RestoreRegistrations()
			answered := make(chan error, 1)
			go func() { answered <- register(t.Context(), c, "z") }()
			synctest.Wait()
			select {
			case err := <-answered:
				t.Errorf("answered before the sources are known: %v", err)
			default:
			}
			return c, k, answered
		}
		c, k, answered := start()
		stopped, stop := context.WithCancel(t.Context())
		stop()
		k.Restore(stopped, loaderOf(c))
		if err := <-answered; !errors.Is(err, conductor.ErrNotDurable) {
			t.Errorf("%v", err)
		}
		c.Close()
		c, k, answered = start()
		k.Restore(t.Context(), loaderOf(c))
		must.Succeed(t, <-answered)
		c.Close()
		a.Close()
		must.Succeed(t, d.Close())
		if got := instances(t, path); !slices.Equal(got, []string{"a", "b", "z"}) {
			t.Errorf("%q", got)
		}
	})
}

// What changes just before a server ends is on the disk once Keep has returned.
func TestKeepEndsWithTheLastChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newFaultyDisk()
		c, k := keeperOn(t, disk, history.NoKey)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			k.Registrations.Run(ctx)
			close(ended)
		}()
		synctest.Wait()
		must.Succeed(t, c.Register(historytest.Registration("a"), ingest.RegisterOptions{AnyEndpoint: true}))
		stop()
		<-ended
		if got := instances(t, disk.folder(t, powerLost)); !slices.Equal(got, []string{"a"}) {
			t.Errorf("%q", got)
		}
		c.Close()
	})
}

// A salt is on the disk only under a key. The answer says so.
func TestDurable(t *testing.T) {
	key, err := history.NewSealingKey(&keyfile.Key{1})
	must.Succeed(t, err)
	f := func(key *history.SealingKey, salt string, want bool) {
		t.Helper()
		c, _ := keeperOn(t, newFaultyDisk(), key)
		r := historytest.Registration("a")
		r.Salt = salt
		if got := c.For(conductor.Reader{}).Durable(&r); got != want {
			t.Errorf("salt %q: %t", salt, got)
		}
	}
	f(history.NoKey, "", true)
	f(history.NoKey, "pepper", false)
	f(key, "pepper", true)
	r := historytest.Registration("a")
	if historytest.Server(t, nil).For(conductor.Reader{}).Durable(&r) {
		t.Error("memory is durable")
	}
}

// The metric tells of a disk that refuses.
func TestRegistrationsMetric(t *testing.T) {
	disk := newFaultyDisk()
	disk.before = func(string, string) error { return syscall.EROFS }
	c, k := keeperOn(t, disk, history.NoKey)
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(k)
	want := func(value float64) {
		t.Helper()
		all, err := metrics.Gather()
		must.Succeed(t, err)
		for _, m := range all {
			if m.GetName() == "conductor_registrations_failing" && m.GetMetric()[0].GetGauge().GetValue() == value {
				return
			}
		}
		t.Errorf("conductor_registrations_failing is not %v", value)
	}
	want(0)
	register(t.Context(), c, "a")
	want(1)
}

// A file of registrations that somebody removes, replaces, empties or restores under a running server is written again by the
// next change, so that what a client was told lasts.
func TestRegistrationsFileIsTakenAway(t *testing.T) {
	path := t.TempDir()
	d := openDir(t, path)
	c := historytest.Server(t, nil)
	k := keep(t, c, d)
	c.KeepRegistrations(k.Registrations)
	k.RestoreRegistrations()
	k.Restore(t.Context(), loaderOf(c))
	file := filepath.Join(path, registrationsFile)
	must.Succeed(t, register(t.Context(), c, "a"))
	backup, err := os.ReadFile(file)
	must.Succeed(t, err)
	want := []string{"a"}
	for i, spoil := range []func() error{
		func() error { return os.Remove(file) },
		func() error { return os.Rename(file, file+".away") },
		func() error { return os.Truncate(file, 0) },
		func() error { return os.WriteFile(file, backup, 0o600) },
		func() error {
			return errors.Join(os.WriteFile(file+".back", backup, 0o600), os.Rename(file+".back", file))
		},
	} {
		must.Succeed(t, spoil())
		next := fmt.Sprint("b", i)
		must.Succeed(t, register(t.Context(), c, next))
		want = append(want, next)
		copied := t.TempDir() // as a kill would leave it
		data, err := os.ReadFile(file)
		must.Succeed(t, err)
		must.Succeed(t, os.WriteFile(filepath.Join(copied, registrationsFile), data, 0o600))
		if got := instances(t, copied); !slices.Equal(got, want) {
			t.Errorf("after fault %d: %q, want %q", i, got, want)
		}
	}
}

// Without a key, the log has the number of sources with a salt once it grows, however often they come and go.
func TestSaltedSourcesAreCounted(t *testing.T) {
	c, k := keeperOn(t, newFaultyDisk(), history.NoKey)
	var log strings.Builder
	k.Registrations.cfg.Log = zerolog.New(&log)
	for range 3 {
		for _, instance := range []string{"a", "b", "plain"} {
			v, r := c.For(conductor.Reader{}), historytest.Registration(instance)
			if instance != "plain" {
				r.Salt = "pepper"
			}
			must.Succeed(t, v.Commit(t.Context(), r.Key(), v.Register(r, ingest.RegisterOptions{AnyEndpoint: true})))
			if instance == "a" {
				must.Succeed(t, unregister(t.Context(), c, instance))
				must.Succeed(t, v.Commit(t.Context(), r.Key(), v.Register(r, ingest.RegisterOptions{AnyEndpoint: true})))
			}
		}
		for _, instance := range []string{"a", "b", "plain"} {
			must.Succeed(t, unregister(t.Context(), c, instance))
		}
	}
	var got []string
	for line := range strings.Lines(log.String()) {
		_, number, _ := strings.Cut(line, `"sources":`)
		number, _, _ = strings.Cut(number, ",")
		got = append(got, number)
	}
	if want := []string{"1", "2"}; !slices.Equal(got, want) {
		t.Errorf("the log has %q, want %q", got, want)
	}
}
