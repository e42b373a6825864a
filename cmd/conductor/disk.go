package main

import (
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/replay"
	"example.com/conductor/config"
	"example.com/conductor/events/tape"
	"example.com/conductor/history"
	"example.com/conductor/history/file"
	"example.com/conductor/keyfile"
)

// snapshotDir opens the directory of snapshots, if there is to be one.
func snapshotDir(loaded *config.Loaded) (*file.Dir, error) {
	cfg := loaded.Config.Snapshot
	if cfg.Dir == "" {
		return nil, nil
	}
	key, err := snapshotKey(loaded)
	if err != nil {
		return nil, err
	}
	dir, err := file.OpenDir(cfg.Dir, key)
	if err != nil {
		return nil, fmt.Errorf("%s: snapshot.dir: %w", loaded.Place("snapshot.dir"), err)
	}
	return dir, nil
}

// snapshotKey reads the key that seals salts in snapshots.
func snapshotKey(loaded *config.Loaded) (*history.SealingKey, error) {
	key, err := readSnapshotKey(loaded.Config.Snapshot.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("%s: snapshot.key_file: %w", loaded.Place("snapshot.key_file"), err)
	}
	return key, nil
}

func readSnapshotKey(file string) (*history.SealingKey, error) {
	if file == "" {
		return history.NoKey, nil
	}
	return history.ReadSealingKey(file)
}

// journalKey reads the key that seals the journal, nil without one.
func journalKey(loaded *config.Loaded) (*keyfile.Key, error) {
	cfg := loaded.Config.Journal
	if cfg.Dir == "" || cfg.KeyFile == "" {
		return nil, nil
	}
	key, err := keyfile.Read(cfg.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("%s: journal.key_file: %w", loaded.Place("journal.key_file"), err)
	}
	return key, nil
}

// journalDelay is how much of the journal the end of the process may cost.
const journalDelay = 10 * time.Millisecond

// openTape begins the journal, if one is configured, on the disk or in memory alone.
func openTape(loaded *config.Loaded, opts conductor.Options, log zerolog.Logger) (*tape.Tape, error) {
	cfg := loaded.Config.Journal
	if cfg.Dir == "" && cfg.RingBytes == 0 {
		return nil, nil
	}
	key, err := journalKey(loaded)
	if err != nil {
		return nil, err
	}
	w, err := tape.Create(tape.Options{
		Dir: cfg.Dir, MaxBytes: cfg.MaxBytes, Memory: int(cfg.RingBytes), Key: key, Settings: replay.Settings(&opts), Delay: journalDelay,
		Report: func(err error) {
			if err != nil {
				log.Error().Err(err).Str("dir", cfg.Dir).Msg("the journal cannot be written, trying again")
				return
			}
			log.Info().Str("dir", cfg.Dir).Msg("the journal is written again")
		},
	})
	if err != nil {
		return nil, fmt.Errorf("%s: journal.dir: %w", loaded.Place("journal.dir"), err)
	}
	if cfg.Dir != "" {
		log.Info().Str("dir", cfg.Dir).Int64("max_bytes", cfg.MaxBytes).Bool("sealed",
			key != nil).Msg("recording the events of all sources, tokens included")
	}
	return w, nil
}
