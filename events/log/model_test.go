package log

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"kvconductor/events/stream"
	"kvconductor/internal/must"
	"kvconductor/internal/redistest"
	"kvconductor/store"
)

// model is one engine, its log, and replicas whose every command may reach the store late, and
// whose every answer may come late or never. Time is the model's: of replicas by the arguments of
// their methods, of the store by the ends of leases.
type model struct {
	t      *testing.T
	rng    *rand.Rand
	client redis.UniversalClient
	now    time.Time
	all    []*modelled
	life   int
	next   []uint64 // of each life: batches published

	// What the store accepted since it last lost anything.
	token, gen string
	last       int64
	lossless   bool
	saved      map[string]string // an older state of the keys
	history    []string
}

// modelled is one replica: its source, and a stream as far as the log needs one.
type modelled struct {
	id     string
	source *Source
	epoch  uint64
	life   int // of what it handed out last
	at     int64
	gen    string // followed, "" for none
	tail   bool   // as the stream knows: the open subscription is to the engine
	flight []func()
}

func batch(life int, seq uint64) []byte { return fmt.Appendf(nil, "life %d batch %d", life, seq) }

func fingerprint(payload []byte) uint64 {
	h := fnv.New64a()
	h.Write(payload)
	return h.Sum64()
}

func newModel(t *testing.T, shared *store.Store, seed uint64) *model {
	m := &model{t: t, rng: rand.New(rand.NewPCG(seed, 7)), client: shared.Client(), now: time.Unix(1000, 0), next: []uint64{0}, last: -1, lossless: true}
	must.Succeed(t, m.client.FlushAll(t.Context()).Err())
	ended, end := context.WithCancel(t.Context())
	end() // no goroutine of a Log runs
	for i := range 3 {
		l := &Log{ctx: ended, kick: make(chan struct{}, 1), sources: make(map[*Source]bool)}
		l.cfg = Config{Store: shared, ID: "r" + strconv.Itoa(i), Alone: time.Hour, Bytes: 1 << 20, Age: time.Hour, Buffer: 1 << 20, Replicas: func() []Replica { return []Replica{{"r1", 1}} }}
		for j := range l.buckets {
			l.buckets[j].init(l)
		}
		r := &modelled{id: l.cfg.ID, source: l.Source(SourceConfig{Key: "s", Replays: true}), epoch: 1, at: -1}
		r.source.link, l.alive = t.Context(), l.cfg.Replicas()
		m.all = append(m.all, r)
	}
	return m
}

func (m *model) note(format string, args ...any) {
	m.history = append(m.history, fmt.Sprintf(format, args...))
}

func (m *model) fail(format string, args ...any) {
	m.t.Helper()
	for _, line := range m.history[max(0, len(m.history)-60):] {
		m.t.Log(line)
	}
	m.t.Fatalf(format, args...)
}

// later runs a command at the store some time, and its answer some time after that.
func (m *model) later(r *modelled, command func() *redis.Cmd, answer func(*redis.Cmd)) {
	r.flight = append(r.flight, func() {
		cmd := command()
		if m.rng.IntN(8) == 0 {
			cmd = redis.NewCmd(m.t.Context())
			cmd.SetErr(context.DeadlineExceeded)
		}
		if m.rng.IntN(4) > 0 {
			answer(cmd)
			return
		}
		r.flight = append(r.flight, func() { answer(cmd) })
	})
}

// tend asks for the lease.
func (m *model) tend(r *modelled) {
	s := r.source
	s.mu.Lock()
	s.log.hands = handedOver
	wish, token, sent := s.wish(m.now), s.token, m.now
	s.mu.Unlock()
	m.later(r, func() *redis.Cmd {
		cmd := tending.Run(m.t.Context(), m.client, s.keys[:2], r.id, Lease.Milliseconds(), 0, wish, token, "1")
		m.note("%s %s with %q: %v", r.id, wish, token, cmd.Val())
		return cmd
	}, func(cmd *redis.Cmd) {
		if cmd.Err() != nil {
			s.unseen(sent)
			return
		}
		all, err := views(cmd.Val(), 1)
		must.Succeed(m.t, err)
		s.hear(all[0], token, sent)
	})
}

// send appends what waits.
func (m *model) send(r *modelled) {
	d, args := r.source.draft()
	if d == nil {
		return
	}
	m.later(r, func() *redis.Cmd {
		cmd := appending.Run(m.t.Context(), m.client, r.source.keys[:], args...)
		m.note("%s appends with %q behind %v up to %d (%d): %v %v", r.id, d.token, d.at, d.to, d.n, cmd.Val(), cmd.Err())
		if answer, at, _, err := appended(cmd); err == nil && answer == answerOK {
			m.accepted(r, d, at.gen, args)
		} else if err != nil {
			m.fail("append: %v", err)
		}
		return cmd
	}, func(cmd *redis.Cmd) { d.settle(cmd) })
}

// accepted checks an append that the store took: no older token after a newer one, no sequence
// twice, and no hole unless something was lost.
func (m *model) accepted(r *modelled, d *draft, gen string, args []any) {
	if d.token < m.token {
		m.fail("%s appended with token %s after %s", r.id, d.token, m.token)
	}
	if gen != m.gen {
		m.gen, m.last = gen, -1
	}
	m.token = d.token
	for i := 10; i < len(args); i += 4 {
		seq, _ := strconv.ParseInt(args[i].(string), 10, 64)
		if seq <= m.last || m.lossless && m.last >= 0 && seq != m.last+1 {
			m.fail("%s appended %d after %d in generation %s", r.id, seq, m.last, gen)
		}
		m.last = seq
	}
}

// hand lets the source observe the next batch of a life.
func (r *modelled) hand(life int, seq uint64) {
	body := batch(life, seq)
	r.source.Observe(&stream.Step{Kind: stream.Apply, Seq: seq, Print: fingerprint(body), Payload: body, Epoch: r.epoch})
	r.life, r.at = life, int64(seq)
}

// reset drops everything, as a stream does that finds another lifetime.
func (r *modelled) reset(life int) {
	r.epoch++
	r.source.Observe(&stream.Step{Kind: stream.Reset, Epoch: r.epoch})
	r.life, r.at = life, -1
}

// stream lets the stream of a replica reconnect if its role has changed, or hand out a batch.
func (m *model) stream(r *modelled) {
	s := r.source
	s.mu.Lock()
	tail := s.token != ""
	s.mu.Unlock()
	if tail != r.tail {
		r.tail, r.gen = tail, ""
		m.note("%s reconnects, tail: %v", r.id, tail)
		return
	}
	if tail {
		if r.life != m.life {
			r.reset(m.life)
		}
		if next := uint64(r.at + 1); next < m.next[m.life] {
			r.hand(m.life, next)
		}
		return
	}
	meta, err := m.client.HMGet(m.t.Context(), s.keys[1], "gen").Result()
	must.Succeed(m.t, err)
	gen := text(meta[0])
	if gen == "" {
		return
	}
	from := r.at + 1
	if gen != r.gen { // a new connection verifies the watermark
		r.gen, from = gen, max(r.at, 0)
	}
	page, err := m.client.XRangeN(m.t.Context(), s.keys[2], gen+"-"+strconv.FormatInt(from, 10), gen+"-9223372036854775807", 1).Result()
	must.Succeed(m.t, err)
	if len(page) == 0 {
		if from == r.at {
			r.gen = "" // the entry may come yet: the engine would be asked
		}
		return
	}
	var life int
	var seq uint64
	_, err = fmt.Sscanf(text(page[0].Values["p"]), "life %d batch %d", &life, &seq)
	must.Succeed(m.t, err)
	switch {
	case int64(seq) == r.at && life == r.life:
	case int64(seq) <= r.at || life != r.life:
		r.reset(life)
		r.gen = gen
	default:
		r.hand(life, seq)
	}
}

// step does one thing.
func (m *model) step(losses bool) {
	r := m.all[m.rng.IntN(len(m.all))]
	m.now = m.now.Add(time.Duration(m.rng.IntN(300)) * time.Millisecond)
	switch n := m.rng.IntN(100); {
	case n < 15:
		m.next[m.life]++
	case n < 40:
		m.stream(r)
	case n < 50:
		m.tend(r)
	case n < 60:
		m.send(r)
	case n < 92:
		if len(r.flight) > 0 {
			i := m.rng.IntN(len(r.flight)) // also out of order
			f := r.flight[i]
			r.flight = append(r.flight[:i:i], r.flight[i+1:]...)
			f()
		}
	case n < 97: // the lease ends before its owner knows
		must.Succeed(m.t, expire.Run(m.t.Context(), m.client, r.source.keys[:1]).Err())
		m.note("the lease ends")
	case n < 98:
		m.life++
		m.next = append(m.next, uint64(m.rng.IntN(5)))
		m.note("the engine begins life %d", m.life)
	case losses:
		m.lose()
	}
}

// expire ends a lease, as if the time had passed.
var expire = redis.NewScript(`if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('HSET', KEYS[1], 'until', 0) end return 1`)

// lose empties the store, keeps its state for later, or brings that back.
func (m *model) lose() {
	keys := m.all[0].source.keys
	switch m.rng.IntN(4) {
	case 0:
		must.Succeed(m.t, m.client.FlushAll(m.t.Context()).Err())
		m.note("the store is emptied")
	case 1:
		if m.saved == nil {
			return
		}
		for _, key := range keys {
			m.client.Del(m.t.Context(), key)
			if dump := m.saved[key]; dump != "" {
				must.Succeed(m.t, m.client.Restore(m.t.Context(), key, 0, dump).Err())
			}
		}
		m.note("the store has an older state")
	default:
		m.saved = make(map[string]string)
		for _, key := range keys {
			m.saved[key], _ = m.client.Dump(m.t.Context(), key).Result()
		}
		return
	}
	m.token, m.gen, m.last, m.lossless = "", "", -1, false
}

// check compares the log with what the engine published.
func (m *model) check() (gen string, seqs []uint64) {
	all, err := m.client.XRange(m.t.Context(), m.all[0].source.keys[2], "-", "+").Result()
	must.Succeed(m.t, err)
	lives := make(map[string]int)
	for _, one := range all {
		var life int
		var seq uint64
		_, err := fmt.Sscanf(text(one.Values["p"]), "life %d batch %d", &life, &seq)
		must.Succeed(m.t, err)
		g, at, ok := entryID(one.ID)
		gen = strconv.FormatUint(g, 10)
		if was, known := lives[gen]; known && was != life || !ok || at != seq {
			m.fail("generation %s has lives %d and %d, %s is %q", gen, was, life, one.ID, one.Values["p"])
		}
		lives[gen] = life
		seqs = append(seqs, seq)
	}
	if len(lives) > 1 {
		m.fail("the log has %d generations", len(lives))
	}
	return gen, seqs
}

// TestLeaseSafety lets three replicas take the lease from each other in any order of commands and
// answers: what the store has is of one lifetime, of one tail after another, and without a hole
// unless the store lost something.
func TestLeaseSafety(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	shared, err := store.Open(store.Config{URL: server.URL(), Name: "model", Timeout: 10 * time.Second})
	must.Succeed(t, err)
	defer shared.Close()
	entries, tokens := 0, 0
	for seed := range uint64(40) {
		losses := seed%2 == 1
		m := newModel(t, shared, seed)
		m.note("seed %d", seed)
		owners := make(map[string]bool)
		for range 500 {
			m.step(losses)
			owners[m.token] = true
			m.check()
		}
		m.settle()
		_, seqs := m.check()
		entries, tokens = entries+len(seqs), tokens+len(owners)
	}
	if entries < 40*5 || tokens < 40*3 {
		t.Errorf("only %d entries were left, and %d tokens were used", entries, tokens)
	}
}

// settle lets everything arrive, and holds that one replica is the tail, and that the log ends
// where the engine is.
func (m *model) settle() {
	for range 400 {
		m.now = m.now.Add(time.Second)
		for _, r := range m.all {
			m.stream(r)
			m.tend(r)
			m.send(r)
			for len(r.flight) > 0 {
				f := r.flight[0]
				r.flight = r.flight[1:]
				f()
			}
		}
		must.Succeed(m.t, expireAbandoned.Run(m.t.Context(), m.client, m.all[0].source.keys[:1], m.holder()).Err())
	}
	if m.holder() == "" {
		m.fail("no replica is the tail")
	}
	_, seqs := m.check()
	if want := m.next[m.life]; want > 0 && (len(seqs) == 0 || seqs[len(seqs)-1] != want-1) {
		m.fail("the log ends with %v, %d batches were published", seqs, want)
	}
}

// expireAbandoned ends the lease of a replica that does not know of it.
var expireAbandoned = redis.NewScript(`if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then redis.call('HSET', KEYS[1], 'until', 0) end return 1`)

// holder is the replica that believes to be the tail, "" for none.
func (m *model) holder() (id string) {
	for _, r := range m.all {
		if r.source.token != "" {
			id = r.id
		}
	}
	return id
}
