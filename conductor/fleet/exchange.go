package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// perScript is how many entries a script changes: others wait for it meanwhile.
const perScript = 256

// forgotten is the answer to an entry that was unregistered longer ago than such entries stay.
const forgotten = -1

// run runs a script of the registry.
func (g *Registry) run(ctx context.Context, script *redis.Script, keys []string, args ...any) ([]any, error) {
	shared := g.cfg.Fleet.Store()
	ctx, cancel := context.WithTimeout(ctx, shared.Timeout())
	defer cancel()
	for i := range keys {
		keys[i] = shared.Key(keys[i])
	}
	answer, err := script.Run(ctx, shared.Client(), keys, args...).Result()
	if errors.Is(err, redis.Nil) {
		return nil, errOther
	}
	all, _ := answer.([]any)
	return all, err
}

// flush writes what waits.
func (g *Registry) flush(ctx context.Context, st *Status) error {
	g.mu.Lock()
	waiting := maps.Clone(g.pending)
	g.mu.Unlock()
	for part := range slices.Chunk(slices.Collect(maps.Keys(waiting)), perScript) {
		if err := g.write(ctx, st, part, waiting); err != nil {
			return err
		}
	}
	return nil
}

// write writes some changes.
func (g *Registry) write(ctx context.Context, st *Status, names []Name, waiting map[Name]*change) error {
	args := []any{st.Run}
	written := make([]*entry, len(names))
	g.mu.Lock()
	now := g.cfg.Now()
	for i, n := range names {
		c := waiting[n]
		e, seen, age := &entry{}, c.seen, max(now.Sub(c.since).Milliseconds(), 0)
		switch {
		case c.again != nil:
			e.record, e.at = c.again.record, c.again.at
		case c.source == nil:
			e.record = record{Gone: true, By: g.cfg.Fleet.ID()}
		default:
			wire := wireSource(c.source.Registration)
			e.record = record{By: g.cfg.Fleet.ID(), Configured: c.configured, Discover: c.source.Discover, Wire: &wire}
		}
		if c.oldest {
			e.at = 1
		}
		if was := g.known[n]; was != nil && was.By == g.cfg.Fleet.ID() {
			seen = was.at // changes of this replica follow each other
		}
		lasts := time.Duration(0)
		switch {
		case e.Gone:
			lasts = graveFor
		case e.Configured:
			lasts = keptFor
		}
		written[i] = e
		args = append(args, n.field(), e.tail(), seen, e.at, age, lasts.Milliseconds())
	}
	g.mu.Unlock()
	answer, err := g.run(ctx, writing, []string{"run", "revision", "sources", "ends"}, args...)
	if err != nil {
		return err
	}
	if len(answer) != len(names) {
		return fmt.Errorf("%d changes are answered by %d times", len(names), len(answer))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, n := range names {
		if g.pending[n] == waiting[n] {
			delete(g.pending, n)
			g.noteKept(waiting[n])
		}
		at, _ := strconv.ParseInt(fmt.Sprint(answer[i]), 10, 64)
		switch at {
		case 0:
			g.revision = -1 // another replica came first: its change counts
			g.ring()
			continue
		case forgotten:
			delete(g.known, n)
			continue
		}
		e := written[i]
		e.at, e.text = at, fmt.Sprintf(`{"at":%d,%s`, at, e.tail())
		if was := g.known[n]; was != nil && was.text == e.text {
			continue
		}
		g.known[n] = e
	}
	return nil
}

// confirm tells the store what the configuration has, and ends what no configuration has.
func (g *Registry) confirm(ctx context.Context, st *Status) error {
	var has, lost []any
	g.mu.Lock()
	for n, s := range g.configured {
		if e := g.known[n]; (e == nil || e.Gone && e.Swept) && g.pending[n] == nil {
			g.pending[n] = &change{source: &s, configured: true, since: g.cfg.Now()}
		}
		has = append(has, n.field())
	}
	for n, at := range g.lostNames {
		if lost = append(lost, n.field()); g.cfg.Now().Sub(at) < droppedFor+confirmEvery {
			continue
		}
		if delete(g.lostNames, n); g.known[n] != nil {
			g.known[n].done = false // another replica may have it
		}
	}
	for _, e := range g.known {
		if e.why != nil {
			e.done = false // limits may have changed
		}
	}
	g.mu.Unlock()
	for _, x := range []struct {
		fields []any
		lasts  time.Duration
		lost   int
	}{{has, keptFor, 0}, {lost, droppedFor, 1}} {
		for part := range slices.Chunk(x.fields, 4*perScript) {
			args := append([]any{st.Run, x.lasts.Milliseconds(), x.lost}, part...)
			if _, err := g.run(ctx, confirming, []string{"run", "ends"}, args...); err != nil {
				return err
			}
		}
	}
	_, err := g.run(ctx, sweeping, []string{"run", "revision", "sources", "ends", "says", "follows"}, st.Run, graveFor.Milliseconds())
	return err
}

// read reads the registry. Entries that are new wait to be taken over.
func (g *Registry) read(ctx context.Context, st *Status) error {
	answer, err := g.run(ctx, reading, []string{"run", "revision", "sources"})
	if err != nil {
		return err
	}
	if len(answer) != 3 {
		return fmt.Errorf("the registry is answered by %d values", len(answer))
	}
	fields, _ := answer[2].([]any)
	revision, _ := strconv.ParseInt(fmt.Sprint(answer[1]), 10, 64)
	if answer[0] != st.Run || revision < st.Revision {
		return errOther
	}
	texts := make(map[string]parsed, len(fields)/2)
	for i := 0; i+1 < len(fields); i += 2 {
		field, text := fmt.Sprint(fields[i]), fmt.Sprint(fields[i+1])
		p, known := g.texts[field]
		if !known || p.text != text {
			p = parsed{text: text}
			p.name, p.at, p.record, p.reason = parseRecord(field, text)
			if p.reason != "" {
				g.mu.Lock()
				g.refused[p.reason]++
				g.mu.Unlock()
				g.cfg.Log.Warn().Str("entry", shortened(field)).Str("reason", p.reason).Msg("an entry of the registry cannot be read")
			}
		}
		texts[field] = p
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	seen := make(map[Name]int64, len(texts)) // times
	g.unreadable = 0
	for _, p := range texts {
		if p.reason != "" {
			g.unreadable++
			continue
		}
		seen[p.name] = p.at
		if e := g.known[p.name]; e == nil || e.text != p.text && e.at <= p.at {
			g.known[p.name] = &entry{record: p.record, at: p.at, text: p.text, fresh: true}
		}
	}
	for n, e := range g.known {
		if seen[n] < e.at && g.pending[n] == nil {
			g.pending[n] = &change{again: e} // the store has lost it
		}
	}
	g.texts, g.revision = texts, revision
	return nil
}

// parsed is an entry as it was read last, so that only changes are parsed.
type parsed struct {
	text   string
	name   Name
	at     int64
	record record
	reason string
}

// shortened returns the beginning of a text that anybody may have written.
func shortened(text string) string {
	if len(text) > 200 {
		return text[:200] + "…"
	}
	return text
}
