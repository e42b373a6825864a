package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"example.com/conductor/config"
)

// refusals returns why a server refuses to start with settings that have no mistake in themselves: files and
// folders that they name cannot be used. serve and config check both ask it, so that they say the same.
//
// It leaves nothing behind, opens no port and takes no lock, so it may run next to the server. Rights are those
// of the user that runs it.
func refusals(loaded *config.Loaded) (all []error) {
	cfg := &loaded.Config
	check := func(err error) {
		if err != nil {
			all = append(all, err)
		}
	}
	if _, err := policyOf(cfg); err != nil {
		check(fmt.Errorf("%s: auth.file: %w", loaded.Place("auth.file"), err))
	}
	_, err := certificatesOf(loaded)
	check(err)
	_, err = peerClient(loaded)
	check(err)
	shared, err := openStore(loaded)
	check(err)
	if shared != nil {
		shared.Close()
	}
	if cfg.Snapshot.Dir != "" || shared != nil {
		_, err = snapshotKey(loaded)
		check(err)
	}
	_, err = journalKey(loaded)
	check(err)
	for _, f := range []struct{ name, path string }{{"snapshot.dir", cfg.Snapshot.Dir}, {"journal.dir", cfg.Journal.Dir}} {
		if f.path == "" {
			continue
		}
		if err := checkFolder(f.path); err != nil {
			check(fmt.Errorf("%s: %s: %w", loaded.Place(f.name), f.name, err))
		}
	}
	if dir := cfg.Snapshot.Dir; dir != "" && cfg.Journal.Dir != "" && filepath.Clean(dir) == filepath.Clean(cfg.Journal.Dir) {
		check(fmt.Errorf("%s: journal.dir: %s is the folder of snapshots too: the journal needs one of its own",
			loaded.Place("journal.dir"), dir))
	}
	check(checkAccessLog(cfg.Dynamo))
	tracer, err := newTracer(loaded, zerolog.Nop())
	check(err)
	if tracer != nil {
		ended, cancel := context.WithCancel(context.Background())
		cancel() // it has no trace to send
		tracer.Close(ended)
	}
	return all
}

// doubts returns what config check warns of, and serve starts with all the same.
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

// checkFolder reports why a server cannot keep files in a folder, which it makes if it does not exist.
func checkFolder(path string) error {
	for at := filepath.Clean(path); ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		if errors.Is(err, fs.ErrNotExist) && filepath.Dir(at) != at {
			continue // it is made in the folder above
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
		return nil
	}
}

// checkAccessLog reports why the access log of the Dynamo dialect cannot be opened. A file that it had to make
// for that is gone again.
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
