package shelf

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"kvconductor/conductor"
	"kvconductor/conductor/replica"
	"kvconductor/conductor/scope"
	"kvconductor/conductor/snapshot"
)

const (
	// calm is the pause between two searches for one deployment.
	calm = 10 * time.Second
	// asking is how many marks are looked up at once.
	asking = 32
)

// errUnfit is the error of a snapshot that no source can go on behind.
var errUnfit = errors.New("no source can go on behind it")

// Gap is what the log of a source that runs does not have any more. log.Gap is one.
type Gap interface {
	// Tail is the replica that follows the engine, "" for none.
	Tail() string
	// Fits reports whether the source still misses it, and can go on behind a mark.
	Fits(context.Context, conductor.Mark) bool
	// Done ends the search.
	Done(found bool)
}

// Healer brings snapshots to sources that run, and miss what their log does not have.
//
//	gaps of a deployment --> replicas, the tail first --+--> conductor.Heal --> Replace
//	                         the shelf -----------------+
//
// The sources come first in a snapshot. Without one that can go on behind its mark, the snapshot is
// given up before its blocks come. Other sources of the deployment go on as they are.
//
// Concurrency: all methods are safe for concurrent use. One goroutine searches, for one deployment
// at a time, while there are gaps.
type Healer struct {
	*Takeover
	// Peers returns the URLs of other replicas, that of a tail first.
	Peers func(tail string) []string

	ctx   context.Context
	stop  context.CancelFunc
	tasks sync.WaitGroup
	calm  time.Duration

	mu      sync.Mutex
	gaps    map[scope.Deployment]map[conductor.Key]Gap // guarded by mu
	last    map[scope.Deployment]time.Time             // end of the search before; guarded by mu
	running bool                                       // guarded by mu
}

// NewHealer returns one that takes blocks as a Takeover does.
func NewHealer(t *Takeover, peers func(tail string) []string) *Healer {
	h := &Healer{Takeover: t, Peers: peers, calm: calm, gaps: make(map[scope.Deployment]map[conductor.Key]Gap), last: make(map[scope.Deployment]time.Time)}
	h.ctx, h.stop = context.WithCancel(context.Background())
	return h
}

// Close ends the search under way. Gaps that wait are not told.
func (h *Healer) Close() {
	h.mu.Lock()
	h.stop()
	h.mu.Unlock()
	h.tasks.Wait()
}

// Ask searches for a snapshot for a source. It does not wait.
func (h *Healer) Ask(r conductor.Registration, g Gap) {
	d, key := r.Deployment(), r.Key()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return
	}
	if h.gaps[d] == nil {
		h.gaps[d] = make(map[conductor.Key]Gap)
	}
	h.gaps[d][key] = g
	if !h.running {
		h.running = true
		h.tasks.Go(h.run)
	}
}

// run searches until there is no gap.
func (h *Healer) run() {
	for {
		d, gaps, wait := h.next(time.Now())
		switch {
		case gaps != nil:
			h.heal(h.ctx, d, gaps)
			h.mu.Lock()
			h.last[d] = time.Now()
			h.mu.Unlock()
		case wait > 0:
			select {
			case <-time.After(wait):
			case <-h.ctx.Done():
			}
		default:
			return
		}
	}
}

// next takes the gaps of the deployment that has waited longest since its last search. It returns none
// and a pause before one is due, no pause if there is none.
func (h *Healer) next(now time.Time) (d scope.Deployment, gaps map[conductor.Key]Gap, wait time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for at, t := range h.last {
		if now.Sub(t) > h.calm {
			delete(h.last, at)
		}
	}
	found := false
	for at := range h.gaps {
		if !found || h.last[at].Before(h.last[d]) {
			d, found = at, true
		}
	}
	if h.running = found && h.ctx.Err() == nil; !h.running {
		return d, nil, 0
	}
	if t, recent := h.last[d]; recent {
		return d, nil, max(t.Add(h.calm).Sub(now), 1)
	}
	gaps = h.gaps[d]
	delete(h.gaps, d)
	return d, gaps, 0
}

// heal searches for snapshots until no source of a deployment has a gap, and tells the gaps.
func (h *Healer) heal(ctx context.Context, d scope.Deployment, gaps map[conductor.Key]Gap) {
	began, all := time.Now(), len(gaps)
	err := ErrUnderWay
	if h.begin(d) {
		err = h.search(ctx, d, gaps)
		h.end(d)
	}
	for _, g := range gaps {
		g.Done(false)
	}
	line := h.Log.Info()
	if len(gaps) > 0 {
		line = h.Log.Warn().Err(err)
	}
	line.Str("tenant", d.Tenant).Str("model", d.Model).Int("block_size", d.BlockSize).Int("sources", all).Int("healed", all-len(gaps)).Dur("took", time.Since(began)).
		Msg("looked for a snapshot for sources that miss what their logs do not have")
}

// search takes the gaps out that a snapshot heals.
func (h *Healer) search(ctx context.Context, d scope.Deployment, gaps map[conductor.Key]Gap) error {
	tail := ""
	for _, g := range gaps {
		tail = max(tail, g.Tail())
	}
	choose := func(all []conductor.SourceMark) error { return choose(ctx, d, gaps, all) }
	begin := func(origin string) *conductor.Recovery {
		keys := make([]conductor.Key, 0, len(gaps))
		for key := range gaps {
			keys = append(keys, key)
		}
		r := h.Conductor.Heal(keys)
		r.Origin = origin
		return r
	}
	replace := func(r *conductor.Recovery) {
		for _, key := range r.Replace(func(key conductor.Key, m conductor.Mark) bool { return gaps[key].Fits(ctx, m) }) {
			gaps[key].Done(true)
			delete(gaps, key)
		}
	}
	var errs []error
	for _, url := range h.Peers(tail) {
		if len(gaps) == 0 {
			return nil
		}
		r := begin(conductor.FromPeer)
		if err := replica.Fetch(ctx, h.Client, url, snapshot.FormatOf(d, choose), r); err != nil {
			r.Undo()
			errs = append(errs, fmt.Errorf("%s: %w", url, err))
			continue
		}
		replace(r)
	}
	if h.Shelf == nil || len(gaps) == 0 {
		return errors.Join(errs...)
	}
	r, err := h.Shelf.bring(ctx, d, choose, func() *conductor.Recovery { return begin(conductor.FromShelf) })
	if err != nil {
		errs = append(errs, fmt.Errorf("the shelf: %w", err))
	}
	if r != nil {
		replace(r)
	}
	return errors.Join(errs...)
}

// choose leaves out the sources without a gap that ends at their mark.
func choose(ctx context.Context, d scope.Deployment, gaps map[conductor.Key]Gap, all []conductor.SourceMark) error {
	if err := snapshot.Only(d)(all); err != nil {
		return err
	}
	places := make(chan struct{}, asking)
	var work sync.WaitGroup
	for i := range all {
		m := &all[i]
		g := gaps[m.Key()]
		if g == nil || m.Mark == nil || m.Mark.Missing != "" {
			*m = conductor.SourceMark{}
			continue
		}
		places <- struct{}{}
		work.Go(func() {
			defer func() { <-places }()
			if !g.Fits(ctx, *m.Mark) {
				*m = conductor.SourceMark{}
			}
		})
	}
	work.Wait()
	for i := range all {
		if all[i].Mark != nil {
			return nil
		}
	}
	return errUnfit
}
