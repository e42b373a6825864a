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
	newer      = ".newer"   // behind the name of a file that this program cannot read
	damaged    = ".damaged" // and of one that has a part it cannot read
)

// Dir is a directory of snapshots. Files are named by ascending numbers, whatever the clock
// says. One server has a directory.
type Dir struct {
	// Targets are those of discovery, which snapshots have too; nil is none.
	Targets Table

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
	// is reports whether the file of a name is this one, with so many bytes.
	is(path string, file writable, size int64) bool
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

func (system) is(path string, file writable, size int64) bool {
	open, ok := file.(*os.File)
	if !ok {
		return false
	}
	mine, err := open.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(path)
	return err == nil && os.SameFile(mine, named) && named.Size() == size
}

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

// SaveRegistrations writes registrations to which nothing is appended.
func (d *Dir) SaveRegistrations(all history.Registrations, now time.Time) (history.Summary, error) {
	return d.writeFile(registrationsFile, nameOf(0, unfinished), func(to io.Writer) (history.Summary, error) {
		return history.WriteRegistrations(to, all, now, d.key.Seal)
	})
}

// setAside gives a file a name under which it stays.
func (d *Dir) setAside(name string) error {
	path := filepath.Join(d.path, name)
	if err := d.disk.rename(path, path+newer); err != nil {
		return err
	}
	return d.disk.syncDir(d.path)
}

// copyAside copies a file, which goes on to be the one of its name, to a name that stays.
func (d *Dir) copyAside(name, as string) error {
	_, err := d.writeFile(as, nameOf(0, unfinished), func(to io.Writer) (sum history.Summary, err error) {
		from, _, err := d.openFile(name)
		if err == nil {
			_, err = io.Copy(to, from)
			err = errors.Join(err, from.Close())
		}
		return sum, err
	})
	return err
}

// openLog is a file of registrations to which changes are appended.
type openLog struct {
	file     writable
	log      *history.RegistrationsLog
	whole    int64 // bytes as it was written first
	appended int64 // bytes since
}

// beginLog writes registrations to which changes can be appended.
func (d *Dir) beginLog(all history.Registrations, now time.Time) (l *openLog, sum history.Summary, err error) {
	l = new(openLog)
	l.file, sum, err = d.createFile(registrationsFile, nameOf(0, unfinished), func(to io.Writer) (sum history.Summary, err error) {
		l.log, sum, err = history.BeginRegistrationsLog(to, all, now, d.key.Seal)
		return sum, err
	})
	l.whole = sum.Bytes
	return l, sum, err
}

// appendChanges appends changes, and returns once they are on the disk. After an error the file must be written again.
func (l *openLog) appendChanges(changed history.Registrations) (history.Summary, error) {
	sum, err := l.log.Append(changed)
	if err == nil {
		err = l.file.Sync()
	}
	l.appended = sum.Bytes - l.whole
	return sum, err
}

// holds reports whether the directory still has a file to which changes are appended, as it was written.
func (d *Dir) holds(l *openLog) bool {
	return d.disk.is(filepath.Join(d.path, registrationsFile), l.file, l.whole+l.appended)
}

// fieldsOf returns the fields of the parts of a table, which may be nil.
func fieldsOf(t Table) (all [][]tape.Field) {
	if t == nil {
		return nil
	}
	for _, p := range t.Saved() {
		all = append(all, p.Fields)
	}
	return all
}

// writeFile writes a file. It has its name only once all of it is on the disk.
func (d *Dir) writeFile(name, temporary string, content func(io.Writer) (history.Summary, error)) (history.Summary, error) {
	file, sum, err := d.createFile(name, temporary, content)
	if err == nil {
		err = file.Close()
	}
	return sum, err
}

// createFile is writeFile for a file that stays open.
func (d *Dir) createFile(name, temporary string, content func(io.Writer) (history.Summary, error)) (
	file writable, sum history.Summary, err error,
) {
	temporary = filepath.Join(d.path, temporary)
	if file, err = d.disk.create(temporary); err != nil {
		return nil, sum, err
	}
	if sum, err = content(file); err == nil {
		err = file.Sync()
	}
	if err == nil {
		err = d.disk.rename(temporary, filepath.Join(d.path, name))
	}
	if err != nil {
		return nil, sum, errors.Join(err, file.Close(), ignore(d.disk.remove(temporary), fs.ErrNotExist))
	}
	if err = d.disk.syncDir(d.path); err != nil {
		return nil, sum, errors.Join(err, file.Close())
	}
	return file, sum, nil
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
