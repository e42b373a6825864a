package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/telemetry"
	"example.com/conductor/config"
	"example.com/conductor/keyfile"
)

// refusals checks the files and folders that the settings name, and returns an error for each one that stops a server from
// starting. serve and config check both call it, so they print the same errors. It also works on settings that have mistakes of
// their own and checks whatever could be read, so that users see all errors in one run.
//
// It leaves no files behind, opens no port and takes no lock, so it can run while the server does. It checks with the rights of
// the user who runs it.
func refusals(loaded *config.Loaded) (all []error) {
	cfg, r := &loaded.Config, &refusing{loaded: loaded}
	if _, err := policyOf(cfg); err != nil {
		r.refuse("auth.file", err)
	}
	tls, peer, shared := serverFiles(cfg.TLS), peerFiles(cfg.Peer), storeFiles(cfg.Store)
	r.refuseFaults("tls", tls.Check())
	r.refuseFaults("peer", peer.Check())
	if cfg.Store.URL != "" || loaded.Unread("store.url") {
		r.refuseFaults("store", shared.Check())
		at := storeConfig(cfg.Store)
		for _, err := range at.Check() {
			field, rest, _ := strings.Cut(err.Error(), ": ")
			r.refuse("store."+field, errors.New(rest))
		}
	}
	if cfg.Snapshot.Dir != "" || cfg.Store.URL != "" || loaded.Unread("snapshot.dir") || loaded.Unread("store.url") {
		_, err := readSnapshotKey(cfg.Snapshot.KeyFile)
		r.refuse("snapshot.key_file", err)
	}
	if file := cfg.Journal.KeyFile; file != "" && (cfg.Journal.Dir != "" || loaded.Unread("journal.dir")) {
		_, err := keyfile.Read(file)
		r.refuse("journal.key_file", err)
	}
	r.refuse("snapshot.dir", checkFolder(cfg.Snapshot.Dir))
	r.refuse("journal.dir", checkFolder(cfg.Journal.Dir))
	if dir := cfg.Snapshot.Dir; dir != "" && cfg.Journal.Dir != "" && filepath.Clean(dir) == filepath.Clean(cfg.Journal.Dir) {
		r.refuse("journal.dir", fmt.Errorf("%s is the folder of snapshots too: the journal needs one of its own", dir))
	}
	if err := checkAccessLog(cfg.Dynamo); err != nil {
		r.all = append(r.all, err) // worded as in Dynamo's indexer, without place and setting
	}
	if file := cfg.Tracing.HeadersFile; file != "" && (cfg.Tracing.Endpoint != "" || loaded.Unread("tracing.endpoint")) {
		_, err := readHeaders(file)
		r.refuse("tracing.headers_file", err)
	}
	r.refuse("tracing.endpoint", checkTracer(cfg.Tracing))
	return r.all
}

// refusing collects the errors that refusals returns. Each is one line.
type refusing struct {
	loaded *config.Loaded
	all    []error
}

// refuse adds an error about the setting at path, one for each line of err. A nil err adds nothing.
func (r *refusing) refuse(path string, err error) {
	if err == nil {
		return
	}
	for line := range strings.SplitSeq(err.Error(), "\n") {
		r.all = append(r.all, fmt.Errorf("%s: %s: %s", r.loaded.Place(path), path, line))
	}
}

// refuseFaults adds the faults of the files that a section of the settings names. It leaves out faults that concern several files
// if a setting of the section could not be read, because such a fault may disappear once that setting is corrected.
func (r *refusing) refuseFaults(section string, faults []access.Fault) {
	for _, f := range faults {
		if !f.Joint || !r.loaded.Unread(section) {
			r.refuse(section+"."+f.Field, f.Err)
		}
	}
}

// checkTracer reports why traces cannot be sent to an endpoint.
func checkTracer(c config.Tracing) error {
	if c.Endpoint == "" {
		return nil
	}
	t, err := telemetry.NewTracer(telemetry.TracerConfig{Endpoint: c.Endpoint, Sample: c.Sample, Version: version, Log: zerolog.Nop()})
	if err != nil {
		return err
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel() // so that Close does not wait: there are no traces to send
	t.Close(ended)
	return nil
}

// doubts returns the warnings of config check: settings that serve accepts but that were probably not meant.
func doubts(loaded *config.Loaded) (all []error) {
	cfg := &loaded.Config
	if len(cfg.Sources) == 0 && cfg.Discovery.SourcesDir == "" && cfg.Store.URL == "" {
		all = append(all, errors.New("no source is configured: every answer is empty until engines are registered over HTTP"))
	}
	for _, pair := range sharedPorts(cfg.Listeners) {
		path := fmt.Sprintf("listeners[%d]", pair[0])
		all = append(all, fmt.Errorf("%s: %s: the port of %s is also that of listeners[%d], and one of the two listens at every address: "+
			"give them different ports",
			loaded.Place(path), path, cfg.Listeners[pair[0]].Address, pair[1]))
	}
	if dir := cfg.Discovery.SourcesDir; dir != "" {
		names, err := sourceFiles(dir)
		if err != nil {
			all = append(all, fmt.Errorf("%s: discovery.sources_dir: %w; no source comes from there until it can be read",
				loaded.Place("discovery.sources_dir"), err))
		}
		for _, name := range names {
			if _, err := config.ReadSources(filepath.Join(dir, name)); err != nil {
				all = append(all, fmt.Errorf("the server would not use all of this file of discovery.sources_dir: %w", err))
			}
		}
	}
	if file := cfg.Discovery.TokenFile; file != "" {
		if err := unix.Access(file, unix.R_OK); err != nil {
			all = append(all, fmt.Errorf("%s: discovery.token_file: %w", loaded.Place("discovery.token_file"),
				&fs.PathError{Op: "open", Path: file, Err: err}))
		}
	}
	return all
}

// checkFolder returns an error if the server could not keep files in a folder. If the folder does not exist, the server will make
// it, so checkFolder checks the nearest folder above that exists.
func checkFolder(path string) error {
	if path == "" {
		return nil
	}
	for at := filepath.Clean(path); ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		if errors.Is(err, fs.ErrNotExist) && filepath.Dir(at) != at {
			continue // the server will make it in the folder above
		}
		switch {
		case err != nil:
			return err
		case !info.IsDir():
			return fmt.Errorf("%s is a file, and a folder is needed", at)
		}
		if err := unix.Access(at, unix.W_OK|unix.X_OK); err != nil {
			return fmt.Errorf("cannot write to the folder %s: %w", at, err)
		}
		if isOfKernel(at) {
			return fmt.Errorf("cannot write to %s: it shows the state of the system, and keeps no files", at)
		}
		return nil
	}
}

// isOfKernel reports whether a folder is in /proc, /sys or a cgroup file system. Root has every right there, and cannot write a
// file nevertheless.
func isOfKernel(folder string) bool {
	const proc, sys, cgroup, cgroup2 = 0x9fa0, 0x62656572, 0x27e0eb, 0x63677270 // as linux/magic.h has them
	var in unix.Statfs_t
	if unix.Statfs(folder, &in) != nil {
		return false
	}
	switch int64(in.Type) {
	case proc, sys, cgroup, cgroup2:
		return true
	}
	return false
}

// checkAccessLog returns an error if the access log of the Dynamo dialect cannot be opened. To find out it opens the file, and
// removes it again if it did not exist before.
func checkAccessLog(cfg config.DynamoDialect) error {
	if cfg.AccessLog == "" {
		return nil
	}
	_, err := os.Lstat(cfg.AccessLog)
	fresh := errors.Is(err, fs.ErrNotExist)
	log, err := accessLog(cfg, zerolog.Nop())
	if err != nil {
		return err
	}
	log.Close()
	if fresh {
		os.Remove(cfg.AccessLog)
	}
	return nil
}
