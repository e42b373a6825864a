package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/config"
)

const (
	maxSourceFiles = 10_000
	folderEvery    = time.Second
)

// folder follows discovery.sources_dir: files come, change and go, and their sources with them.
// A mistake costs the source that has it, or the changes of its file if it is in none. No source leaves because of a
// mistake: what a file had and does not name any more stays until the file has none.
type folder struct {
	dir    string
	follow *following
	// taken returns the sources of the settings, whose names no file may have.
	taken func() []config.Source
	log   zerolog.Logger

	mu    sync.Mutex
	files map[string]*sourceFile // by name; guarded by mu
	// fault is why the folder cannot be read.
	fault string

	// owners names the file of each source that the folder has or is about to register. A reload
	// reads it without mu, as the folder asks the reloader for the settings under mu.
	owners atomic.Pointer[map[registration.Key]string]
}

// sourceFile is one file of the folder.
type sourceFile struct {
	stamp   string
	sources []config.Source // in use
	fault   string          // why some or all of what it says is not in use
}

func newFolder(dir string, follow *following, settings func() config.Config, log zerolog.Logger) *folder {
	return &folder{
		dir: dir, follow: follow, log: log, files: make(map[string]*sourceFile),
		taken: func() []config.Source { return settings().Sources },
	}
}

// watchFiles looks at the folder until ctx ends.
func (f *folder) watchFiles(ctx context.Context) {
	tick := time.NewTicker(folderEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f.readFiles()
		}
	}
}

// ownerOf returns the file that has a source, "" if none has.
func (f *folder) ownerOf(key registration.Key) string {
	if owners := f.owners.Load(); owners != nil {
		return (*owners)[key]
	}
	return ""
}

// publishOwners shows reloads the sources in use, and those that a file is about to have. mu is held.
func (f *folder) publishOwners(name string, about []config.Source) {
	owners := make(map[registration.Key]string)
	for other, file := range f.files {
		for _, s := range file.sources {
			owners[s.Key()] = other
		}
	}
	for _, s := range about {
		if owners[s.Key()] == "" {
			owners[s.Key()] = name
		}
	}
	f.owners.Store(&owners)
}

// readFiles reads the folder and brings the sources in line with its files. It returns the faults by file.
func (f *folder) readFiles() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	names, err := sourceFiles(f.dir)
	if f.logFault(&f.fault, f.dir, err); err != nil {
		return f.faults()
	}
	for name, file := range f.files {
		if !slices.Contains(names, name) {
			f.replaceSources(name, file, nil)
			delete(f.files, name)
			f.publishOwners("", nil)
			f.log.Info().Str("file", name).Int("sources", len(file.sources)).Msg("file of sources gone")
		}
	}
	for _, name := range names {
		path := filepath.Join(f.dir, name)
		stamp := access.Stamp(path)
		file := f.files[name]
		if file == nil {
			file = new(sourceFile)
			f.files[name] = file
		}
		if file.stamp == stamp && file.fault == "" {
			continue
		}
		changed := file.stamp != stamp
		file.stamp = stamp
		sources, err := config.ReadSources(path)
		if err != nil { // what cannot be read may be about any source that the file had
			_, _, missing := config.DiffSources(&config.Config{Sources: file.sources}, &config.Config{Sources: sources})
			sources = append(sources, missing...)
		}
		f.publishOwners(name, sources) // before the settings are read: a reload sees it, or is seen
		if clash := f.findClash(name, sources); clash != nil {
			err = errors.Join(err, clash)
		} else {
			err = errors.Join(err, f.replaceSources(name, file, sources))
		}
		f.publishOwners("", nil)
		if f.logFault(&file.fault, path, err); err == nil && changed {
			f.log.Info().Str("file", name).Int("sources", len(file.sources)).Msg("file of sources read")
		}
	}
	return f.faults()
}

// logFault keeps a fault in at, and logs it if it is new.
func (f *folder) logFault(at *string, path string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != *at {
		f.log.Error().Str("file", path).Err(err).Msg("sources not used")
	}
	*at = text
}

// faults returns the faults of the folder and its files. mu is held.
func (f *folder) faults() map[string]string {
	all := make(map[string]string)
	if f.fault != "" {
		all[f.dir] = f.fault
	}
	for name, file := range f.files {
		if file.fault != "" {
			all[name] = file.fault
		}
	}
	return all
}

// sourceFiles returns the names of the files of a folder, sorted.
func sourceFiles(dir string) (names []string, err error) {
	all, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range all {
		name := e.Name()
		if ext := filepath.Ext(name); strings.HasPrefix(name, ".") || ext != ".yaml" && ext != ".yml" {
			continue
		}
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.Mode().IsRegular() {
			names = append(names, name)
		}
	}
	if len(names) > maxSourceFiles {
		return nil, fmt.Errorf("%d files are more than the %d that are read", len(names), maxSourceFiles)
	}
	return names, nil
}

// findClash returns an error if a source has the name of one of the settings or another file.
func (f *folder) findClash(name string, sources []config.Source) error {
	owners := make(map[registration.Key]string)
	for _, s := range f.taken() {
		owners[s.Key()] = "the settings"
	}
	for other, file := range f.files {
		if other == name {
			continue
		}
		for _, s := range file.sources {
			owners[s.Key()] = other
		}
	}
	for _, s := range sources {
		if owner, taken := owners[s.Key()]; taken {
			return fmt.Errorf("%s is a source of %s", s.Key(), owner)
		}
	}
	return nil
}

// replaceSources replaces the sources of a file. A source that cannot be registered costs itself.
func (f *folder) replaceSources(name string, file *sourceFile, next []config.Source) error {
	was, is := &config.Config{Sources: file.sources}, &config.Config{Sources: next}
	added, changed, removed := config.DiffSources(was, is)
	var errs []error
	var refused []registration.Key
	try := func(s config.Source, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("source %s: %w", s.Key(), err))
			refused = append(refused, s.Key())
		}
	}
	for _, s := range removed {
		try(s, f.follow.unregisterSource(s))
	}
	for _, s := range changed {
		i := slices.IndexFunc(file.sources, func(old config.Source) bool { return old.Key() == s.Key() })
		try(s, f.follow.changeSource(file.sources[i], s))
	}
	for _, s := range added {
		try(s, f.follow.registerSource(s, false))
	}
	file.sources = slices.DeleteFunc(slices.Clone(next), func(s config.Source) bool { return slices.Contains(refused, s.Key()) })
	return errors.Join(errs...)
}

var descFiles = prometheus.NewDesc("conductor_source_files", "Files of discovery.sources_dir by state: used, or bad.", []string{"state"},
	nil)

// Describe implements prometheus.Collector.
func (f *folder) Describe(ch chan<- *prometheus.Desc) { ch <- descFiles }

// Collect implements prometheus.Collector.
func (f *folder) Collect(ch chan<- prometheus.Metric) {
	f.mu.Lock()
	defer f.mu.Unlock()
	bad := len(f.faults())
	used := len(f.files) - bad
	if f.fault != "" {
		used++
	}
	ch <- prometheus.MustNewConstMetric(descFiles, prometheus.GaugeValue, float64(used), "used")
	ch <- prometheus.MustNewConstMetric(descFiles, prometheus.GaugeValue, float64(bad), "bad")
}
