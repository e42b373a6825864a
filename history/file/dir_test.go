package file

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/history"
	"example.com/conductor/history/historytest"
	"example.com/conductor/internal/must"
)

// openDir opens a directory of snapshots.
func openDir(t testing.TB, path string) *Dir {
	t.Helper()
	d, err := OpenDir(path, history.NoKey)
	must.Succeed(t, err)
	t.Cleanup(func() { d.Close() })
	return d
}

// files returns the names in a directory.
func files(t testing.TB, path string) (names []string) {
	t.Helper()
	all, err := os.ReadDir(path)
	must.Succeed(t, err)
	for _, f := range all {
		names = append(names, f.Name())
	}
	return names
}

// load reads the first snapshot that can be read, and returns the errors of those before.
func load(t testing.TB, d *Dir, c *conductor.Conductor) (errs []string, loaded bool) {
	t.Helper()
	names, err := d.snapshots()
	must.Succeed(t, err)
	loader := &history.Loader{Conductor: c, Log: zerolog.Nop()}
	for _, name := range names {
		file, _, err := d.openFile(name)
		must.Succeed(t, err)
		_, err = loader.Load(history.Snapshot{Name: name}, func(l *history.Loading) error {
			_, err := history.Read(file, history.Reading{Into: l.Into, Open: d.key.Open})
			return err
		})
		must.Succeed(t, file.Close())
		if err == nil {
			return errs, true
		}
		errs = append(errs, name+": "+err.Error())
	}
	return errs, false
}

// A directory keeps some snapshots. One that cannot be read makes room for the one before.
func TestDir(t *testing.T) {
	path := filepath.Join(t.TempDir(), "snapshots")
	d := openDir(t, path)
	a := historytest.Server(t, nil)
	if errs, loaded := load(t, d, a); loaded || errs != nil {
		t.Errorf("an empty directory: %v, %t", errs, loaded)
	}
	historytest.Fill(t, a, 2, 100)
	for range 4 {
		_, err := d.SaveSnapshot(a, historytest.At, 2)
		must.Succeed(t, err)
	}
	if got := files(t, path); !slices.Equal(got, []string{"00000003.snapshot", "00000004.snapshot", "lock"}) {
		t.Errorf("%q", got)
	}
	must.Succeed(t, os.Truncate(filepath.Join(path, "00000004.snapshot"), 1000))
	b := historytest.Server(t, nil)
	if errs, loaded := load(t, d, b); !loaded || !slices.Equal(errs, []string{"00000004.snapshot: it ends in the middle"}) ||
		historytest.Held(b)["a"] != 100 {
		t.Errorf("%v, %t, %v", errs, loaded, historytest.Held(b))
	}
	if info, err := os.Stat(filepath.Join(path, "00000003.snapshot")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

// A directory belongs to one server, and what a killed one has not finished goes.
func TestDirIsClaimed(t *testing.T) {
	path := t.TempDir()
	must.Succeed(t, os.WriteFile(filepath.Join(path, "00000001.snapshot.tmp"), []byte("half"), 0o600))
	must.Succeed(t, os.WriteFile(filepath.Join(path, "notes.tmp"), nil, 0o600))
	d := openDir(t, path)
	if got := files(t, path); !slices.Equal(got, []string{"lock", "notes.tmp"}) {
		t.Errorf("%q", got)
	}
	if _, err := OpenDir(path, history.NoKey); err == nil {
		t.Error("two servers have a directory")
	}
	must.Succeed(t, d.Close())
	openDir(t, path)
}

// A disk that refuses costs the snapshot, and leaves those before.
func TestDirFull(t *testing.T) {
	path := t.TempDir()
	d := openDir(t, path)
	a := historytest.Server(t, nil)
	historytest.Fill(t, a, 1, 10)
	_, err := d.SaveSnapshot(a, historytest.At, 1)
	must.Succeed(t, err)
	must.Succeed(t, os.Mkdir(filepath.Join(path, "00000002.snapshot.tmp"), 0o700)) // no file can be made there
	if _, err := d.SaveSnapshot(a, historytest.At, 1); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if got := files(t, path); !slices.Contains(got, "00000001.snapshot") {
		t.Errorf("%q", got)
	}
}
