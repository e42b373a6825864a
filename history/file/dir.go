package file

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/conductor/conductor"
	"example.com/conductor/events/tape"
	"example.com/conductor/history"
)

const (
	suffix     = ".snapshot"
	unfinished = suffix + ".tmp"
)

// Dir is a directory of snapshots. Files are named by ascending numbers, whatever the clock
// says. One server has a directory.
type Dir struct {
	// Targets returns the fields of the targets of discovery that files have, Changes those of the changes
	// that wait for the store, which are with the registrations alone; nil is none.
	Targets, Changes func() [][]tape.Field

	path string
	key  *history.SealingKey
	lock *os.File
	disk disk
}

// disk is what a Dir needs to write a file so that it lasts.
type disk interface {
	// create makes an empty file, in place of one that is there.
	create(path string) (writable, error)
	rename(from, to string) error
	remove(path string) error
	// syncDir makes the names in a directory last.
	syncDir(path string) error
}

// writable is a file that is being written.
type writable interface {
	io.WriteCloser
	Sync() error
}

// system is the disk of the machine.
type system struct{}

func (system) create(path string) (writable, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
}

func (system) rename(from, to string) error { return os.Rename(from, to) }
func (system) remove(path string) error     { return os.Remove(path) }

func (system) syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// OpenDir makes a directory if it is missing, and claims it for this process. It removes what a
// server that was killed had not finished.
func OpenDir(path string, key *history.SealingKey) (*Dir, error) {
	lock, err := tape.Claim(path, "snapshot directory")
	if err != nil {
		return nil, err
	}
	d := &Dir{path: path, key: key, lock: lock, disk: system{}}
	files, err := os.ReadDir(path)
	for _, f := range files {
		if _, ok := numberOf(f.Name(), unfinished); ok && f.Type().IsRegular() {
			err = errors.Join(err, os.Remove(filepath.Join(path, f.Name())))
		}
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	return d, nil
}

// Close gives the directory up.
func (d *Dir) Close() error { return d.lock.Close() }

// numberOf reads the name of a file.
func numberOf(name, suffix string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, suffix)
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, ok && err == nil && nameOf(n, suffix) == name
}

func nameOf(n uint64, suffix string) string { return fmt.Sprintf("%08d%s", n, suffix) }

// numbers returns the numbers of the snapshots, the newest first.
func (d *Dir) numbers() (all []uint64, err error) {
	files, err := os.ReadDir(d.path)
	for _, f := range files {
		if n, ok := numberOf(f.Name(), suffix); ok && f.Type().IsRegular() {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	slices.Reverse(all)
	return all, err
}

// SaveSnapshot writes what a Conductor holds now, and removes snapshots but for the newest keep.
func (d *Dir) SaveSnapshot(c *conductor.Conductor, now time.Time, keep int) (sum history.Summary, err error) {
	numbers, err := d.numbers()
	if err != nil {
		return sum, err
	}
	next := uint64(1)
	if len(numbers) > 0 {
		next = numbers[0] + 1
	}
	sum, err = d.writeFile(nameOf(next, suffix), nameOf(next, unfinished), func(to io.Writer) (history.Summary, error) {
		return history.Write(to, c, nil, now, d.key.Seal, fieldsOf(d.Targets)...)
	})
	if err != nil {
		return sum, err
	}
	for i, n := range numbers {
		if i+1 >= keep {
			err = errors.Join(err, ignore(d.disk.remove(filepath.Join(d.path, nameOf(n, suffix))), fs.ErrNotExist))
		}
	}
	return sum, err
}

// registrationsFile is the file of the registrations, which is newer than the snapshots.
const registrationsFile = "registrations"

// SaveRegistrations writes the registrations of a Conductor.
func (d *Dir) SaveRegistrations(c *conductor.Conductor, now time.Time) (history.Summary, error) {
	return d.writeFile(registrationsFile, nameOf(0, unfinished), func(to io.Writer) (history.Summary, error) {
		return history.WriteRegistrations(to, c, now, d.key.Seal, fieldsOf(d.Targets), fieldsOf(d.Changes))
	})
}

func fieldsOf(saved func() [][]tape.Field) [][]tape.Field {
	if saved == nil {
		return nil
	}
	return saved()
}

// writeFile writes a file. It has its name only once all of it is on the disk.
func (d *Dir) writeFile(name, temporary string, content func(io.Writer) (history.Summary, error)) (sum history.Summary, err error) {
	temporary = filepath.Join(d.path, temporary)
	file, err := d.disk.create(temporary)
	if err != nil {
		return sum, err
	}
	sum, err = content(file)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = d.disk.rename(temporary, filepath.Join(d.path, name))
	}
	if err != nil {
		return sum, errors.Join(err, ignore(d.disk.remove(temporary), fs.ErrNotExist))
	}
	return sum, d.disk.syncDir(d.path)
}

// ignore returns nil for an error that does not matter.
func ignore(err, meaningless error) error {
	if errors.Is(err, meaningless) {
		return nil
	}
	return err
}

// snapshots returns the names of the snapshots, the newest first.
func (d *Dir) snapshots() (names []string, err error) {
	numbers, err := d.numbers()
	for _, n := range numbers {
		names = append(names, nameOf(n, suffix))
	}
	return names, err
}

// openFile opens a file, and returns its size, 0 if the disk does not tell it.
func (d *Dir) openFile(name string) (file *os.File, size int64, err error) {
	file, err = os.Open(filepath.Join(d.path, name))
	if err != nil {
		return nil, 0, err
	}
	if info, err := file.Stat(); err == nil {
		size = info.Size()
	}
	return file, size, nil
}
