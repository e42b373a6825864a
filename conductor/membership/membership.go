// Package membership knows which replicas share a store, and which sources they follow together. Such replicas are
// called a group; fleet is said of engines only.
//
//	beat, each second --script--> store: version, run, leases of replicas, revision of the registry
//	                  <----------        who is alive, and whether the store lost what it was told
//
// A beat renews the lease of this replica, by the clock of the store: the clocks of replicas may
// differ. It tells three accidents of the store apart: it cannot be reached (Status.Up), it is
// empty (Status.Run changes), or it took over from another one that had received more (the beat
// before is unknown to it). In the last two, Lost grows: each replica writes its part again.
//
// Concurrency: all methods are safe for concurrent use. One goroutine calls Run.
package membership

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"

	"example.com/conductor/redact"
	"example.com/conductor/store"
)

const (
	// Pause is the time between two beats, Lease how long a replica counts as alive after one.
	Pause = time.Second
	Lease = 4 * Pause
	// hurry is the least time between a beat and one that is asked for.
	hurry = Pause / 5
	// longestLeases is how many of its own leases a replica lets one of others last: a longer one is forged, or of before the store's
	// clock was set back.
	longestLeases = 4
	// maxSaid bounds what a replica says of itself, in bytes: a shard takes some 200, and there may be 20,000.
	maxSaid = 4 << 20
	// maxAddress bounds the id, URL and version in it. They are shown and logged.
	maxAddress = 4 << 10
	// mostLines is how many replicas that come or go at once have a line of the log each.
	mostLines = 10
	// refusedFor is how long an error that the store answers to another command is shown.
	refusedFor = time.Minute
)

// Replica is what a replica says of itself.
type Replica struct {
	ID      string    `json:"id"`      // another one at each start
	URL     string    `json:"url"`     // where other replicas reach it
	Started time.Time `json:"started"` // by its clock
	Version string    `json:"version"`
	// Weight is its share of the work, against those of others.
	Weight float64 `json:"weight"`
	// Facts are what parts of the server add, by their name.
	Facts map[string]json.RawMessage `json:"facts,omitempty"`
	// Signed is when it proved that it knows the token of the replicas, in ms since 1970, by the clock of the store; 0 for
	// a replica without a token. See proof.go.
	Signed int64 `json:"signed,omitempty"`
	// Expires is the end of its lease, by the clock of the server that reads it.
	Expires time.Time `json:"-"`
}

// Status is what this replica knows of the store and of the others.
type Status struct {
	Up       bool
	Since    time.Time // of Up, by the clock of this replica
	Error    string    // of the last beat; or while Up, that of another command within refusedFor; "" for none
	Refused  bool      // the store has a layout that this program does not know: it is left alone
	Run      string    // id of the contents of the store
	Lost     uint64    // how often the store had lost what it was told
	Replicas []Replica // alive, this one included, ordered by ID; with a token only those that prove that they know it
	Unproven []Replica // the others, which are asked nothing
	Revision int64     // of the registry: it grows with each change
	Beats    uint64    // that were answered
	Due      uint64    // of Beats, those that were not hastened: one in each Pause

	clock   storeClock
	origins map[Origin]bool // of Replicas
}

// Config is what a Group is made of.
type Config struct {
	Store *store.Store
	// Replica is this one; ID is drawn where it is "".
	Replica Replica
	Log     zerolog.Logger
	// Tokens returns the token of the replicas, and behind it others that prove as much while it is replaced. Without one,
	// or if it is nil, whatever the store says of replicas is believed.
	Tokens func() []string
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Lease is how long this replica counts as alive after a beat; 0 is Lease. Tests have longer ones.
	Lease time.Duration
}

// Group is the membership of one replica.
type Group struct {
	cfg      Config
	beat     uint64                            // number of the last beat; owned by Run
	answered uint64                            // number of the last one that was answered; owned by Run
	extra    bool                              // the beat under way is hastened; owned by Run
	awaited  []Replica                         // that are to beat again after a loss; owned by Run
	parts    map[string]func() json.RawMessage // set before the first beat
	soon     chan struct{}                     // has a value once a beat is asked for
	pause    time.Duration                     // Pause, but in tests

	complained time.Time // when logUnproven logged; owned by Run

	mu      sync.Mutex
	status  Status        // guarded by mu
	changed chan struct{} // closed with each answered or failed beat; guarded by mu
}

// New returns a Group. It asks nothing before Run.
func New(cfg Config) *Group {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.Lease = cmp.Or(cfg.Lease, Lease)
	if cfg.Replica.ID == "" {
		var id [8]byte
		rand.Read(id[:])
		cfg.Replica.ID = hex.EncodeToString(id[:])
	}
	return &Group{cfg: cfg, parts: make(map[string]func() json.RawMessage), soon: make(chan struct{}, 1), pause: Pause,
		status: Status{Since: cfg.Now()}, changed: make(chan struct{})}
}

// ID is the name of this replica.
func (g *Group) ID() string { return g.cfg.Replica.ID }

// AddFacts lets a part of the server add facts of a name to each beat. Call it before the first beat.
func (g *Group) AddFacts(name string, facts func() json.RawMessage) {
	g.parts[name] = facts
}

// Store returns the store that the replicas of the group share.
func (g *Group) Store() *store.Store { return g.cfg.Store }

// Status returns the state after the last beat. The slice is not to be changed.
func (g *Group) Status() Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.status
}

// Changed returns a channel that is closed by the next beat.
func (g *Group) Changed() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed
}

// BeatSoon asks for a beat before the next one is due: this replica has news, or needs those of others.
func (g *Group) BeatSoon() {
	select {
	case g.soon <- struct{}{}:
	default: // it is asked for
	}
}

// Run beats until ctx ends, then gives the lease back.
func (g *Group) Run(ctx context.Context) {
	next, soonest := time.NewTimer(0), time.NewTimer(0)
	defer next.Stop()
	defer soonest.Stop()
	var last time.Time // of those that were due
	for {
		now := time.Now()
		if g.extra = now.Sub(last) < g.pause*3/4; !g.extra {
			last = now
		}
		g.Beat(ctx)
		next.Reset(g.pause)
		soonest.Reset(hurry)
		var soon chan struct{} // nil until a beat may be asked for
		for due := false; !due; {
			select {
			case <-soonest.C:
				soon = g.soon
			case <-soon:
				due = true
			case <-next.C:
				due = true
			case <-ctx.Done():
				g.giveBackLease(context.WithoutCancel(ctx))
				return
			}
		}
	}
}

// beating renews a lease, and removes leases without a text and texts without a lease: no replica has written these. KEYS are
// the version, the run id, the leases of replicas by the time of their end, what they say of themselves, their beats, and the
// revision of the registry.
//
//	ARGV: layout, id for a new run, replica, lease in ms, what it says, number of the beat, bytes of a text at most, ms that a
//	lease lasts at most
//
// The answer has the version alone if it is none that this program knows.
var beating = redis.NewScript(revising + `
local version = redis.call('GET', KEYS[1])
local layout = tonumber(version or ARGV[1])
if not (layout and layout >= 1 and layout <= tonumber(ARGV[1])) then return {version} end
if not version then redis.call('SET', KEYS[1], ARGV[1]) end
if redis.call('SET', KEYS[2], ARGV[2], 'NX') then redis.call('DEL', KEYS[5]) end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now)) do
	redis.call('ZREM', KEYS[3], gone)
	redis.call('HDEL', KEYS[4], gone)
	redis.call('HDEL', KEYS[5], gone)
end
local latest = now + ARGV[8]
for _, long in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], string.format('(%.0f', latest), '+inf')) do
	redis.call('ZADD', KEYS[3], latest, long)
end
local before = redis.call('HGET', KEYS[5], ARGV[3]) or ''
redis.call('ZADD', KEYS[3], now + ARGV[4], ARGV[3])
redis.call('HSET', KEYS[4], ARGV[3], ARGV[5])
redis.call('HSET', KEYS[5], ARGV[3], ARGV[6])
local leases, says = redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES'), redis.call('HGETALL', KEYS[4])
local ends, alive = {}, {}
for i = 1, #leases, 2 do ends[leases[i]] = leases[i+1] end
for i = 1, #says, 2 do
	local id, text = says[i], says[i+1]
	if ends[id] and #text <= tonumber(ARGV[7]) then
		alive[#alive + 1] = {id, text, ends[id]}
		ends[id] = nil
	else
		redis.call('HDEL', KEYS[4], id)
	end
end
for id in pairs(ends) do
	redis.call('ZREM', KEYS[3], id)
	redis.call('HDEL', KEYS[5], id)
end
return {ARGV[1], redis.call('GET', KEYS[2]), before, revisionOf(KEYS[6]), alive, clock[1] * 1000000 + clock[2]}
`)

// readingClock returns the time of the store, in microseconds since 1970. Its key leads to the node that has the others.
var readingClock = redis.NewScript(`
local clock = redis.call('TIME')
return clock[1] * 1000000 + clock[2]
`)

// leaving gives a lease back. KEYS are the leases, what replicas say and their beats; ARGV is the replica.
var leaving = redis.NewScript(`
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[3], ARGV[1])
return 1
`)

// errLayout is a store that a newer program has written to, or whose version is damaged.
var errLayout = errors.New("the layout of this store is not known")

// explainLayout returns the error of a store whose layout is in a key, and is none that this program knows.
func explainLayout(key, layout string) error {
	if n, err := strconv.ParseInt(layout, 10, 64); err == nil && n > store.Layout {
		return fmt.Errorf("%w: %s is %d, and this version of Conductor knows %d: a newer version writes to this store", errLayout, key, n,
			store.Layout)
	}
	return fmt.Errorf("%w: %s is %q, which is no layout: something else has written it; set it to %d if only this version of Conductor "+
		"uses the store", errLayout, key, shortened(layout), store.Layout)
}

// Beat beats once.
func (g *Group) Beat(ctx context.Context) {
	status, err := g.sendBeat(ctx)
	if ctx.Err() != nil && err != nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.status
	if err != nil {
		status = before
		status.Up, status.Error, status.Refused = false, g.cfg.Store.Explain(err), errors.Is(err, errLayout)
	}
	now := g.cfg.Now()
	if status.Since = before.Since; status.Up != before.Up {
		status.Since = now
	}
	if status.Up {
		status.Error = g.cfg.Store.Refusal(slices.MaxFunc([]time.Time{status.Since, now.Add(-refusedFor)}, time.Time.Compare))
	}
	g.logChanges(&before, &status)
	g.logUnproven(&status)
	g.status = status
	close(g.changed)
	g.changed = make(chan struct{})
}

// logChanges logs how a beat has changed the state of the store, and which replicas have come and gone.
func (g *Group) logChanges(before, now *Status) {
	log := &g.cfg.Log
	switch {
	case !now.Up && (before.Up || before.Error == ""):
		log.Error().Str("error", now.Error).Msg("the store cannot be used: answers go on, registrations wait")
	case now.Up && !before.Up:
		log.Info().Str("run", now.Run).Int("replicas", len(now.Replicas)).Msg("the store is there")
	}
	if now.Up && now.Error != "" && (before.Error == "" || !before.Up) {
		log.Error().Str("error", now.Error).Msg("the store refuses commands: look at the rights of its user, and at its memory")
	}
	if now.Lost > before.Lost {
		log.Warn().Str("run", now.Run).Uint64("lost",
			now.Lost).Msg("the store has lost what it was told, this replica writes its part again")
	}
	g.logReplicas(zerolog.InfoLevel, otherReplicas(now.Replicas, before.Replicas), "a replica is there", "many replicas are there")
	g.logReplicas(zerolog.WarnLevel, otherReplicas(before.Replicas, now.Replicas), "a replica is gone", "many replicas are gone")
}

// otherReplicas returns the replicas of all that are not among some.
func otherReplicas(all, some []Replica) (others []Replica) {
	among := make(map[string]bool, len(some))
	for i := range some {
		among[some[i].ID] = true
	}
	for i := range all {
		if !among[all[i].ID] {
			others = append(others, all[i])
		}
	}
	return others
}

// logReplicas logs a line for each of some replicas but this one, or a line for all of them if they are more than mostLines:
// a client of a store without a token can write many.
func (g *Group) logReplicas(level zerolog.Level, all []Replica, one, many string) {
	all = slices.DeleteFunc(all, func(r Replica) bool { return r.ID == g.ID() })
	line := func(r *Replica) *zerolog.Event {
		return g.cfg.Log.WithLevel(level).Str("replica", shortened(r.ID)).Str("url", shortened(redact.URL(r.URL)))
	}
	if len(all) > mostLines {
		line(&all[0]).Int("replicas", len(all)).Msg(many)
		return
	}
	for i := range all {
		line(&all[i]).Msg(one)
	}
}

// sendBeat sends a beat, and returns what the store answers.
func (g *Group) sendBeat(ctx context.Context) (Status, error) {
	me := g.cfg.Replica
	me.Facts = make(map[string]json.RawMessage, len(g.parts))
	for name, facts := range g.parts {
		me.Facts[name] = facts()
	}
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Store.Timeout())
	defer cancel()
	key, before := g.cfg.Store.Key, g.Status()
	tokens, clock := g.tokens(), before.clock
	if len(tokens) > 0 {
		if !before.Up { // no beat has read this clock
			micros, err := readingClock.Run(ctx, g.cfg.Store.Client(), []string{key("run")}).Int64()
			if err != nil {
				return Status{}, err
			}
			clock = storeClock{here: g.cfg.Now(), there: time.UnixMicro(micros)}
		}
		me.Signed = clock.timeOf(g.cfg.Now()).UnixMilli()
	}
	text, err := json.Marshal(me)
	if err != nil {
		return Status{}, err
	}
	says := string(text)
	if len(tokens) > 0 {
		says = sign(tokens[0], key("says"), says)
	}
	if len(says) > maxSaid {
		return Status{}, fmt.Errorf("this replica has %d bytes to say of itself and its shards, and others read %d", len(says), maxSaid)
	}
	g.beat++
	sent := g.cfg.Now()
	answer, err := beating.Run(ctx, g.cfg.Store.Client(), []string{key("version"), key("run"), key("replicas"), key("says"), key("beats"),
		key("revision")},
		store.Layout, rand.Text(), me.ID, g.cfg.Lease.Milliseconds(), says, g.beat, maxSaid,
		longestLeases*g.cfg.Lease.Milliseconds()).Slice()
	if err != nil {
		return Status{}, err
	}
	if len(answer) == 1 {
		return Status{}, explainLayout(key("version"), fmt.Sprint(answer[0]))
	}
	answered := g.cfg.Now()
	now := Status{Up: true, Beats: before.Beats + 1, Due: before.Due, Lost: before.Lost}
	if before.Up { // else another node may answer now, with a clock of its own
		now.clock = before.clock
	}
	if !g.extra {
		now.Due++
	}
	var last uint64
	var all []said
	var there time.Time
	if now.Run, last, now.Revision, all, there, err = parseAnswer(answer, answered); err != nil {
		return Status{}, err
	}
	now.clock = now.clock.read(sent, answered, there)
	now.Replicas, now.Unproven = g.splitProven(all, says, there)
	if before.Run != "" && (now.Run != before.Run || last != 0 && last < g.answered || now.Revision < before.Revision) {
		now.Lost++
	}
	g.answered = g.beat
	set := wasSet(before.clock, now.clock)
	if set {
		g.BeatSoon() // what this one has signed is too old or too new for the others
	}
	g.awaitReplicas(&before, &now, set)
	now.origins = make(map[Origin]bool, len(now.Replicas))
	for i := range now.Replicas {
		now.origins[OriginOf(now.Replicas[i].URL)] = true
	}
	return now, nil
}

// awaitReplicas adds the replicas that were there before the store was emptied or away, or its clock was set, and have not
// beaten since. Each has a lease, as the first beat finds the others in no store, or by a clock that has ended their leases
// and proofs: they are not gone.
func (g *Group) awaitReplicas(before, now *Status, set bool) {
	at := g.cfg.Now()
	if now.Lost > before.Lost || !before.Up || set {
		for _, r := range before.Replicas {
			if !slices.ContainsFunc(g.awaited, r.same) {
				r.Expires = at.Add(g.cfg.Lease)
				g.awaited = append(g.awaited, r)
			}
		}
	}
	g.awaited = slices.DeleteFunc(g.awaited, func(r Replica) bool {
		return !at.Before(r.Expires) || slices.ContainsFunc(now.Replicas, r.same)
	})
	now.Unproven = slices.DeleteFunc(now.Unproven, func(r Replica) bool { return slices.ContainsFunc(g.awaited, r.same) })
	now.Replicas = append(now.Replicas, g.awaited...)
	slices.SortFunc(now.Replicas, byID)
}

// said is what a replica says of itself, and its text in the store.
type said struct {
	Replica
	text string
}

// same reports whether two states are of one replica.
func (r Replica) same(as Replica) bool { return r.ID == as.ID }

func byID(a, b Replica) int { return strings.Compare(a.ID, b.ID) }

// parseAnswer reads the answer of a beat: the layout, the run, the beat of this replica that the store
// beat before (0 for none), the revision, the id, text and end of the lease of each replica, and the time of the store.
func parseAnswer(answer []any, at time.Time) (run string, last uint64, revision int64, all []said, clock time.Time, err error) {
	if len(answer) != 6 {
		return "", 0, 0, nil, clock, fmt.Errorf("a beat is answered by %d values", len(answer))
	}
	run, _ = answer[1].(string)
	last, _ = strconv.ParseUint(fmt.Sprint(answer[2]), 10, 64)
	revision, _ = strconv.ParseInt(fmt.Sprint(answer[3]), 10, 64)
	alive, _ := answer[4].([]any)
	micros, _ := answer[5].(int64)
	clock = time.UnixMicro(micros)
	for _, row := range alive {
		row, _ := row.([]any)
		if len(row) != 3 {
			continue
		}
		id, text := fmt.Sprint(row[0]), fmt.Sprint(row[1])
		end, _ := strconv.ParseFloat(fmt.Sprint(row[2]), 64)
		var r Replica
		if err := json.Unmarshal([]byte(text), &r); err != nil || r.ID == "" || r.ID != id ||
			len(r.ID)+len(r.URL)+len(r.Version) > maxAddress {
			continue // of a replica of another version, or of none: it is nothing to this one
		}
		r.Expires = at.Add(time.Duration(int64(end)-clock.UnixMilli()) * time.Millisecond)
		all = append(all, said{r, text})
	}
	slices.SortFunc(all, func(a, b said) int { return byID(a.Replica, b.Replica) })
	return run, last, revision, all, clock, nil
}

// giveBackLease gives the lease back.
func (g *Group) giveBackLease(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Store.Timeout())
	defer cancel()
	key := g.cfg.Store.Key
	if err := leaving.Run(ctx, g.cfg.Store.Client(), []string{key("replicas"), key("says"), key("beats")}, g.ID()).Err(); err != nil {
		g.cfg.Log.Debug().Err(err).Msg("the lease of this replica ends by itself")
	}
}
