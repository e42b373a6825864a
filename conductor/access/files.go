package access

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"
)

// watchEvery is the pause between two looks at watched files. We look, because a secret that an orchestrator mounts is a
// chain of links whose change the events of its directory do not show.
const watchEvery = time.Second

// Stamp returns a text that changes when one of some files does. A file that cannot be read has
// a stamp too.
func Stamp(paths ...string) string {
	var b strings.Builder
	for _, p := range paths {
		var info os.FileInfo
		err := os.ErrNotExist
		if p != "" { // else there is nothing to ask the system
			info, err = os.Stat(p)
		}
		if err != nil {
			b.WriteString("-;")
			continue
		}
		fmt.Fprintf(&b, "%d,%d;", info.Size(), info.ModTime().UnixNano())
	}
	return b.String()
}

// Watch calls changed each time some files have changed, until ctx ends. paths returns their current names. before is the
// Stamp of the files from when they were read. Taken later, it would hide what changed in between.
func Watch(ctx context.Context, before string, paths func() []string, changed func()) {
	t := time.NewTicker(watchEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if now := Stamp(paths()...); now != before {
			before = now
			changed()
		}
	}
}

// LoadCredentials reads a file of credentials, with the errors of ParseCredentials. Other users must not be able to write it.
func LoadCredentials(path string) (*Credentials, error) {
	f, mode, err := openWatched(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if mode.Perm()&0o002 != 0 {
		return nil, fmt.Errorf("every user may write %s: chmod o-w it", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	return ParseCredentials(path, text)
}

// openWatched opens a file that is read again whenever it changes. A pipe is refused, because it would be waited for, and nothing
// read again meanwhile.
func openWatched(path string) (f *os.File, mode os.FileMode, err error) {
	if f, err = os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0); err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", path)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Mode(), nil
}

// readWatched reads a file that openWatched opens.
func readWatched(path string) ([]byte, error) {
	f, _, err := openWatched(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}
