package membership

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// perScript is how many entries a script changes: others wait for it meanwhile.
const perScript = 256

// mostSwept is how many entries a script ends.
const mostSwept = 1000

// forgotten is the answer to an entry that was unregistered longer ago than such entries stay, or that no replica needs.
const forgotten = -1

// runScript runs a script of the registry. It returns errOther if the store is not the one that the last beat met.
func (g *Registry) runScript(ctx context.Context, script *redis.Script, keys []string, args ...any) ([]any, error) {
	shared := g.cfg.Group.Store()
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

// writePending writes all changes that wait.
func (g *Registry) writePending(ctx context.Context, st *Status) error {
	g.mu.Lock()
	waiting := maps.Clone(g.pending)
	g.mu.Unlock()
	for part := range slices.Chunk(slices.Collect(maps.Keys(waiting)), perScript) {
		if err := g.writeChanges(ctx, st, part, waiting); err != nil {
			return err
		}
	}
	return nil
}

// writeChanges writes the changes of some names, in one call of a script.
func (g *Registry) writeChanges(ctx context.Context, st *Status, names []Name, waiting map[Name]*change) error {
	args := []any{st.Run, isAlone(g.cfg.Group, st), graveFor.Milliseconds()}
	written := make([]*entry, len(names))
	g.mu.Lock()
	for i, n := range names {
		c, was := waiting[n], g.known[n]
		e, seen, made, same := &entry{}, c.seen, int64(0), ""
		if !c.since.IsZero() {
			made = st.clock.stamp(c.since)
		}
		switch {
		case c.again != nil:
			e.record, e.at, e.text = c.again.record, c.again.at, c.again.text
		case c.source == nil:
			e.record = record{Gone: true, Unheard: c.unheard && (was == nil || was.Unheard), By: g.cfg.Group.ID()}
		default:
			wire := c.source.Registration
			e.record = record{By: g.cfg.Group.ID(), Configured: c.configured, Discover: c.source.Discover, Wire: &wire}
		}
		if c.oldest {
			e.at = 1
		}
		if was != nil {
			seen = max(seen, was.ours) // changes of this replica follow each other
		}
		if c.same != nil {
			same = c.same.tail()
		}
		lasts := time.Duration(0)
		switch {
		case e.Unheard:
			lasts = unheardFor
		case e.Gone:
			lasts = graveFor
		case e.Configured:
			lasts = keptFor
		}
		written[i] = e
		args = append(args, n.field(), e.tail(), same, seen, e.at, made, lasts.Milliseconds())
	}
	g.mu.Unlock()
	answer, err := g.runScript(ctx, writing, []string{"run", "revision", "sources", "ends", "replicas"}, args...)
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
			noteKept(&g.kept, n, waiting[n])
		}
		said, same := strings.CutPrefix(fmt.Sprint(answer[i]), "=")
		at, _ := strconv.ParseInt(said, 10, 64)
		switch at {
		case 0:
			g.revision = -1 // a later change by another replica counts: it is read, and taken over even if it is no news
			if was := g.known[n]; was != nil {
				was.done = false
			}
			g.wakeRun()
			continue
		case forgotten:
			delete(g.known, n)
			continue
		}
		e := written[i]
		if same {
			was := waiting[n].same
			e.record, e.at, e.text = was.record, was.at, was.text
		}
		e.text = timed(at) + e.tail()
		e.at, e.ours = at, at
		setEntry(g.known, n, e)
	}
	return nil
}

// confirmConfigured tells the store what the configuration of this replica has, so that it stays. It unregisters what no
// configuration has confirmed for a while.
func (g *Registry) confirmConfigured(ctx context.Context, st *Status) error {
	var has, lost []any
	follows := g.registeredNames()
	g.mu.Lock()
	for n, s := range g.configured {
		if e := g.known[n]; (e == nil || e.Gone && e.Swept) && g.pending[n] == nil {
			g.pending[n] = &change{source: &s, configured: true, since: g.cfg.Group.cfg.Now()}
		}
		has = append(has, n.field())
	}
	for n, at := range g.lostNames {
		if lost = append(lost, n.field()); g.cfg.Group.cfg.Now().Sub(at) < droppedFor+confirmEvery {
			continue
		}
		if delete(g.lostNames, n); g.known[n] != nil {
			g.known[n].done = false // another replica may have it
		}
	}
	for n, e := range g.known {
		if e.why != nil || !g.trusts(e) && !follows[n] {
			e.done = false // limits may have changed, and it may have given way
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
			if _, err := g.runScript(ctx, confirming, []string{"run", "ends"}, args...); err != nil {
				return err
			}
		}
	}
	for {
		swept, err := g.runScript(ctx, sweeping, []string{"run", "revision", "sources", "ends", "says", "follows"}, st.Run,
			graveFor.Milliseconds(), mostSwept)
		if err != nil || len(swept) != 1 || swept[0] != int64(mostSwept) {
			return err
		}
	}
}

// readStore returns what reading answers.
func readStore(ctx context.Context, g *Registry) ([]any, error) {
	return g.runScript(ctx, reading, []string{"run", "revision", "sources"}, maxRecord)
}

// readEntries reads the registry. takeEntries takes over what is new. What the store has lost waits to be written again.
func (g *Registry) readEntries(ctx context.Context, st *Status) error {
	answer, err := readStore(ctx, g)
	if err != nil {
		return err
	}
	if len(answer) != 4 {
		return fmt.Errorf("the registry is answered by %d values", len(answer))
	}
	fields, _ := answer[2].([]any)
	revision, _ := strconv.ParseInt(fmt.Sprint(answer[1]), 10, 64)
	if answer[0] != st.Run || revision < st.Revision {
		return errOther
	}
	now, _ := answer[3].(int64)
	latest := now + farAhead.Milliseconds()
	texts := make(map[uint64]parsed, len(fields)/2)
	for i := 0; i+1 < len(fields); i += 2 {
		field, text := fmt.Sprint(fields[i]), fmt.Sprint(fields[i+1])
		place, print := maphash.String(prints, field), maphash.String(prints, text)
		p, known := g.texts[place]
		if !known || p.print != print {
			p = parsed{print: print}
			var e entry
			if p.name, e.at, e.record, p.reason = parseRecord(field, text); p.reason == "" {
				e.text, e.fresh, p.entry = text, true, &e
			}
			if reason := p.refusal(latest); reason != "" {
				g.countRefusal(reason, field, "", nil)
			}
		}
		texts[place] = p
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	seen := make(map[Name]int64, len(texts)) // times
	g.unreadable = 0
	for _, p := range texts {
		if p.refusal(latest) != "" {
			g.unreadable++
			continue
		}
		seen[p.name] = p.entry.at
		if e := g.known[p.name]; e == nil || e.text != p.entry.text && (e.at <= p.entry.at || e.at > latest) {
			e := *p.entry
			setEntry(g.known, p.name, &e)
		}
	}
	for n, e := range g.known {
		if seen[n] < e.at && g.pending[n] == nil {
			g.pending[n] = &change{again: e} // the store has lost it, or has a text that no replica can have written
		}
	}
	g.texts, g.revision = texts, st.Revision // the store may have had a later one meanwhile, or a damaged one
	return nil
}

// setEntry sets the entry of a name among the known ones. If it says what it said before, at another time, it stays as
// this replica has taken it over.
func setEntry(known map[Name]*entry, n Name, e *entry) {
	if was := known[n]; was != nil && afterTime(was.text) == afterTime(e.text) {
		was.at, was.ours, was.text = e.at, max(was.ours, e.ours), e.text
		return
	}
	known[n] = e
}

// afterTime returns the text of an entry behind its time.
func afterTime(text string) string {
	_, tail, _ := strings.Cut(text, ",")
	return tail
}

// prints is the seed of what stands for texts that anybody may have written.
var prints = maphash.MakeSeed()

// parsed is an entry as it was read last, so that only changes are parsed.
type parsed struct {
	print  uint64 // of its text
	name   Name
	entry  *entry // nil if it cannot be read; not to be changed
	reason string // why it cannot be read
}

// refusal returns why the entry is not taken over, "" if it is. latest is the latest time of a change.
func (p *parsed) refusal(latest int64) string {
	if p.reason == "" && p.entry.at > latest {
		return reasonTime
	}
	return p.reason
}
