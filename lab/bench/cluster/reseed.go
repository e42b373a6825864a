package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"time"

	"example.com/conductor/store"
)

// ReseedReport tells how long replicas take to fill a store that was emptied.
type ReseedReport struct {
	Sources  int     `json:"sources"` // in the registry
	Blocks   int     `json:"blocks"`  // on the shelf
	Bytes    int     `json:"bytes"`   // of them
	Registry float64 `json:"registry_seconds"`
	Shelf    float64 `json:"shelf_seconds"`
}

func (r *ReseedReport) writeTable(w io.Writer) {
	fmt.Fprintf(w, "store emptied: %d sources are in the registry after %.2f s, %d blocks (%.1f MB) on the shelf after %.2f s\n",
		r.Sources, r.Registry, r.Blocks, float64(r.Bytes)/1e6, r.Shelf)
}

// measureReseed empties a store of its own under two replicas that follow all sources.
func (c *Config) measureReseed() (*ReseedReport, error) {
	url, stop, err := startStore()
	if err != nil {
		return nil, err
	}
	defer stop()
	own := *c
	own.Store = url
	// The shelf is not due for a minute: replicas write it only because the store was emptied.
	g, err := own.startServers(2, "--snapshot-interval", "1m")
	defer g.close()
	if err == nil {
		err = own.startEngines(g)
	}
	if err != nil {
		return nil, err
	}
	for _, s := range g.servers {
		if err := g.engines.Fill(s, own.batchesPerEngine()); err != nil {
			return nil, err
		}
	}
	c.Progress.Say("registering %d sources without an engine", c.Registrations)
	for i := range c.Registrations {
		err := g.registerSource(fmt.Sprintf("tcp://127.1.%d.%d:1", i/256, i%256), "", "silent", fmt.Sprintf("silent-%d", i), 0)
		if err != nil {
			return nil, err
		}
	}
	shared, err := store.Open(store.Config{URL: url, Name: g.name, Timeout: 5 * time.Second})
	if err != nil {
		return nil, err
	}
	defer shared.Close()
	return own.emptyStore(shared)
}

// contents are what the store has of the registry and the shelf.
type contents struct {
	sources       map[string]bool
	blocks, bytes int
}

// emptyStore empties the store, and waits until all is there again.
func (c *Config) emptyStore(shared *store.Store) (*ReseedReport, error) {
	ctx := context.Background()
	var before contents
	sources, blocks := c.Load.Sources+c.Registrations, c.shardLoad().Hold*c.Load.Sources
	err := awaitSuccess(func() (err error) {
		if before, err = readContents(ctx, shared); err == nil && (len(before.sources) != sources || before.bytes == 0) {
			err = fmt.Errorf("the store has %d of %d sources and %d of %d blocks", len(before.sources), sources, before.blocks, blocks)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	c.Progress.Say("emptying the store")
	if err := shared.Client().FlushAll(ctx).Err(); err != nil {
		return nil, fmt.Errorf("cannot empty the store: %w", err)
	}
	r := &ReseedReport{Sources: sources, Blocks: blocks}
	begun := time.Now()
	err = awaitSuccess(func() error {
		now, err := readContents(ctx, shared)
		if err != nil {
			return err
		}
		if r.Registry == 0 && maps.Equal(now.sources, before.sources) {
			r.Registry = time.Since(begun).Seconds()
		}
		if r.Shelf == 0 && now.blocks == blocks {
			r.Shelf, r.Bytes = time.Since(begun).Seconds(), now.bytes
		}
		if r.Registry == 0 || r.Shelf == 0 {
			err = fmt.Errorf("the store has %d of %d sources and %d of %d blocks", len(now.sources), sources, now.blocks, blocks)
		}
		return err
	})
	return r, err
}

// readContents reads the names in the registry, and the sums of the shelf's manifests.
func readContents(ctx context.Context, shared *store.Store) (now contents, err error) {
	names, err := shared.Client().HKeys(ctx, shared.Key("sources")).Result()
	if err != nil {
		return now, fmt.Errorf("cannot read the registry: %w", err)
	}
	now.sources = make(map[string]bool, len(names))
	for _, name := range names {
		now.sources[name] = true
	}
	manifests, err := shared.Client().HVals(ctx, shared.Key("shelf")).Result()
	if err != nil {
		return now, fmt.Errorf("cannot read the shelf: %w", err)
	}
	for _, text := range manifests {
		var m struct{ Blocks, Bytes int }
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			return now, fmt.Errorf("cannot read a manifest: %w", err)
		}
		now.blocks, now.bytes = now.blocks+m.Blocks, now.bytes+m.Bytes
	}
	return now, nil
}
