package conductor_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/conductor/match"
	"example.com/conductor/index/hash"
	"example.com/conductor/tiers"
)

// TestExpectedModel compares whole rows with an oracle that knows each block of events and reports by its prompt. Engines
// are honest: they announce what goes on behind their own prefix, and evict the ends of prompts first. In half of the
// histories blocks of an engine without events count as held.
func TestExpectedModel(t *testing.T) {
	longer, counted := 0, 0
	for seed := range uint64(16) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &expectedModel{bench: newBench(), t: t, dice: rand.New(rand.NewPCG(seed, 44)), counts: seed%2 == 1,
					held: make(map[expectedHolder]map[string]bool)}
				defer m.conductor.Close()
				m.play()
				longer, counted = longer+m.longer, counted+m.counted
			})
		})
	}
	if longer == 0 || counted == 0 {
		t.Errorf("%d rows with more expected than held, %d with blocks that count", longer, counted)
	}
}

type expectedModel struct {
	*bench
	t       *testing.T
	dice    *rand.Rand
	counts  bool // the engine without events is registered with approximate: count
	held    map[expectedHolder]map[string]bool
	reports []*expectedReport
	left    bool // rank 1 of A is not registered
	history []string

	longer, counted int // rows with more expected than held, and with blocks that count
}

// expectedHolder is a rank, or the pool, and one of its media.
type expectedHolder struct {
	instance string
	rank     int
	medium   string
}

// expectedPrompt is a prompt of an adapter and a salt, by the names of its blocks.
type expectedPrompt struct {
	lora, salt string
	names      []string
}

// block names block i with all before it.
func (p expectedPrompt) block(i int) string {
	return p.lora + "-" + p.salt + ":" + strings.Join(p.names[:i+1], "/")
}

// String is the prompt as commands name it.
func (p expectedPrompt) String() string {
	text := fmt.Sprintf("path=%s hashes=A as=%s-%s", strings.Join(p.names, "/"), p.lora, p.salt)
	if p.lora != "" {
		text += " lora=" + p.lora
	}
	if p.salt != "" {
		text += " salt=" + p.salt
	}
	return text
}

// expectedReport is a report, and the blocks from..len(names) that it makes expected.
type expectedReport struct {
	instance string
	rank     int
	prompt   expectedPrompt
	from     int
	named    bool // by hashes of engines
	id       string
	at       time.Time
	ends     time.Time // zero for never
	gone     map[int]bool
}

func (m *expectedModel) command(line string) {
	m.history = append(m.history, line)
	if got := m.run(line); strings.Contains(got, "error") {
		m.t.Fatalf("%s: %s", line, got)
	}
}

func (m *expectedModel) fail(format string, args ...any) {
	m.t.Helper()
	m.t.Fatalf("%s\n%s", strings.Join(m.history, "\n"), fmt.Sprintf(format, args...))
}

func (m *expectedModel) prompt() (p expectedPrompt) {
	p.lora, p.salt = []string{"", "", "l"}[m.dice.IntN(3)], []string{"", "", "s"}[m.dice.IntN(3)]
	for range 1 + m.dice.IntN(7) {
		p.names = append(p.names, []string{"a", "a", "b"}[m.dice.IntN(3)])
	}
	return p
}

// has reports whether a holder has a block.
func (m *expectedModel) has(instance string, rank int, medium, block string) bool {
	return m.held[expectedHolder{instance, rank, medium}][block]
}

// known returns how many leading blocks of a prompt a rank or the pool holds: a query looks for held blocks no further.
func (m *expectedModel) known(p expectedPrompt) (n int) {
	for ; n < len(p.names); n++ {
		some := false
		for _, blocks := range m.held {
			some = some || blocks[p.block(n)]
		}
		if !some {
			break
		}
	}
	return n
}

// onDevice returns how many leading blocks of a prompt a rank has on its device.
func (m *expectedModel) onDevice(instance string, rank int, p expectedPrompt) (n int) {
	for n < len(p.names) && m.has(instance, rank, "GPU", p.block(n)) {
		n++
	}
	return n
}

// rank returns an instance with a rank that is registered.
func (m *expectedModel) rank() (instance string, rank int) {
	instance = []string{"A", "A", "B"}[m.dice.IntN(3)]
	if rank = m.dice.IntN(2); instance == "B" || m.left {
		rank = 0
	}
	return instance, rank
}

func (m *expectedModel) play() {
	for _, line := range []string{"register A copies=set clear=all", "register A rank=1 copies=set clear=all replay=no",
		"register B copies=set clear=all", "register P type=Mooncake serves=A"} {
		m.command(line)
	}
	line := "register N events=none capacity_blocks=1000 type=Standard"
	if m.counts {
		line += " approximate=count"
	}
	m.command(line)
	for range 200 {
		p := m.prompt()
		if len(m.reports) > 0 && m.dice.IntN(2) == 0 {
			p = m.reports[m.dice.IntN(len(m.reports))].prompt
		}
		switch n := m.dice.IntN(20); {
		case n < 6:
			m.store(p)
		case n < 9:
			m.evict(p)
		case n == 9:
			m.pool(p)
		case n == 10 && m.dice.IntN(4) == 0:
			instance, rank := m.rank()
			m.command(fmt.Sprintf("clear %s rank=%d", instance, rank))
			m.drop(instance, rank)
		case n == 11 && m.dice.IntN(3) == 0:
			if m.left = !m.left; m.left {
				m.command("unregister A rank=1")
				m.drop("A", 1)
			} else {
				m.command("register A rank=1 copies=set clear=all replay=no")
			}
		case n == 12:
			m.command(fmt.Sprintf("wait %dms", 1+m.dice.IntN(2000)))
		case n == 13:
			m.takeBack(fmt.Sprint("id", m.dice.IntN(9)))
		default:
			m.report(p)
		}
		m.expire()
		m.compare(p)
		for range 4 {
			m.compare(m.prompt())
		}
		if len(m.reports) > 0 {
			m.compare(m.reports[m.dice.IntN(len(m.reports))].prompt)
		}
	}
}

// store lets a rank announce blocks: on its device those behind its prefix.
func (m *expectedModel) store(p expectedPrompt) {
	instance, rank := m.rank()
	at := expectedHolder{instance, rank, []string{"GPU", "GPU", "GPU", "CPU", "DISK"}[m.dice.IntN(5)]}
	from := m.onDevice(instance, rank, p)
	if at.medium != "GPU" { // engines offload what they have
		if p.names = p.names[:m.known(p)]; len(p.names) == 0 {
			return
		}
		from = m.dice.IntN(len(p.names))
	}
	if from = min(from, len(p.names)-1); m.held[at] == nil {
		m.held[at] = make(map[string]bool)
	}
	m.command(fmt.Sprintf("store %s rank=%d medium=%s from=%d %s", instance, rank, at.medium, from, p))
	for i := from; i < len(p.names); i++ {
		m.held[at][p.block(i)] = true
		for _, r := range m.reports {
			if at.medium == "GPU" && r.instance == instance && (r.rank == rank || r.rank == match.AnyRank) && len(r.prompt.names) > i &&
				r.prompt.block(i) == p.block(i) {
				r.gone[i] = true
			}
		}
	}
}

// evict lets a rank remove a block, and those behind it from its device.
func (m *expectedModel) evict(p expectedPrompt) {
	instance, rank := m.rank()
	at := expectedHolder{instance, rank, []string{"GPU", "CPU", "DISK"}[m.dice.IntN(3)]}
	last := m.dice.IntN(len(p.names))
	var all []string
	for block := range m.held[at] {
		if block == p.block(last) || at.medium == "GPU" && strings.HasPrefix(block, p.block(last)+"/") {
			all = append(all, block)
		}
	}
	slices.Sort(all)
	for _, block := range all {
		_, path, _ := strings.Cut(block, ":")
		one := expectedPrompt{p.lora, p.salt, strings.Split(path, "/")}
		m.command(fmt.Sprintf("remove %s rank=%d medium=%s from=%d %s", instance, rank, at.medium, len(one.names)-1, one))
		delete(m.held[at], block)
	}
}

// pool stores a prompt in the pool, or removes it there. The pool knows the hashes of blocks that are held somewhere.
func (m *expectedModel) pool(p expectedPrompt) {
	p.lora, p.salt = "", ""
	at := expectedHolder{"P", 0, "CPU"}
	if m.held[at] == nil {
		m.held[at] = make(map[string]bool)
	}
	if p.names = p.names[:m.known(p)]; len(p.names) == 0 {
		return
	}
	put := m.dice.IntN(3) > 0
	m.command(map[bool]string{true: "put P ", false: "drop P "}[put] + p.String())
	for i := range p.names {
		if m.held[at][p.block(i)] = put; !put {
			delete(m.held[at], p.block(i))
		}
	}
}

// drop forgets what a rank has, and the reports for it and for its instance without a rank.
func (m *expectedModel) drop(instance string, rank int) {
	for at := range m.held {
		if at.instance == instance && at.rank == rank {
			delete(m.held, at)
		}
	}
	m.reports = slices.DeleteFunc(m.reports, func(r *expectedReport) bool {
		return r.instance == instance && (r.rank == rank || r.rank == match.AnyRank)
	})
}

// expire forgets reports whose time is over. An engine without events keeps the blocks, but the id of their report for a time
// alone.
func (m *expectedModel) expire() {
	now := time.Now()
	m.reports = slices.DeleteFunc(m.reports, func(r *expectedReport) bool { return !r.ends.IsZero() && !r.ends.After(now) })
	for _, r := range m.reports {
		if r.ends.IsZero() && now.Sub(r.at) >= 30*time.Second {
			r.id = ""
		}
	}
}

// takeBack takes a report back.
func (m *expectedModel) takeBack(id string) {
	m.expire()
	m.history = append(m.history, "take back "+id)
	at := slices.IndexFunc(m.reports, func(r *expectedReport) bool { return r.id == id })
	if err := m.view().TakeBack("", id); (err == nil) != (at >= 0) {
		m.fail("%v", err)
	}
	if at >= 0 {
		m.reports = slices.Delete(m.reports, at, at+1)
	}
}

// report reports a prompt for an instance.
func (m *expectedModel) report(p expectedPrompt) {
	q, named := m.query(p)
	r := match.Routed{Query: q, Target: []string{"A", "A", "B", "N"}[m.dice.IntN(4)], Rank: m.dice.IntN(3) - 1}
	if r.Rank == 1 && (r.Target != "A" || m.left) {
		r.Rank = match.AnyRank
	}
	if r.Target != "N" {
		r.TTL = time.Duration(1+m.dice.IntN(5000)) * time.Millisecond
	}
	if m.dice.IntN(2) == 0 {
		r.RequestID = fmt.Sprint("id", m.dice.IntN(9))
	}
	m.history = append(m.history, fmt.Sprintf("routed %s to %s:%d, by names %v, id %q, ttl %s", p, r.Target, r.Rank, named, r.RequestID,
		r.TTL))
	if _, err := m.view().Routed(&r); err != nil {
		m.fail("%v", err)
	}
	own := &expectedReport{instance: r.Target, rank: r.Rank, prompt: p, named: named, id: r.RequestID, at: time.Now(),
		gone: make(map[int]bool)}
	if r.TTL != 0 {
		own.ends = own.at.Add(r.TTL)
	}
	if own.rank == match.AnyRank && (own.instance != "A" || m.left) {
		own.rank = 0
	}
	if own.from = m.onDevice(own.instance, own.rank, p); own.rank == match.AnyRank {
		own.from = max(m.onDevice("A", 0, p), m.onDevice("A", 1, p))
	}
	m.expire()
	for i, old := range m.reports {
		if own.id == "" || old.id != own.id {
			continue
		}
		last := len(p.names) - 1
		if old.instance == own.instance && old.rank == own.rank && old.named == named && len(old.prompt.names) == last+1 &&
			old.prompt.block(last) == p.block(last) {
			return
		}
		m.reports = slices.Delete(m.reports, i, i+1)
		break
	}
	m.reports = append(m.reports, own)
}

// query returns a query of a prompt by tokens, by their hashes, or by the hashes of engines.
func (m *expectedModel) query(p expectedPrompt) (q match.Query, named bool) {
	q = match.Query{Model: "m", BlockSize: 16, Lora: p.lora, Salt: p.salt}
	path := strings.Join(p.names, "/")
	switch m.dice.IntN(4) {
	case 0:
		q.ByHash = true
		var chain hash.Chain
		chain.Reset(hash.DefaultScheme(), promptOf(path, 16), 16, 0)
		for i := range chain.Len() {
			q.Hashes = append(q.Hashes, chain.At(i))
		}
	case 1:
		q.ByHash, q.HashKind = true, match.EngineHashes
		for i := range p.names {
			q.Hashes = append(q.Hashes, engineHash("ipc://A/0"+p.salt+p.lora+"-"+p.salt, strings.Join(p.names[:i+1], "/")))
		}
	default:
		q.Tokens = promptOf(path, 16)
	}
	return q, q.HashKind != match.CanonicalHashes
}

// expected reports whether block i of a prompt is expected at a rank of an instance.
func (m *expectedModel) expected(instance string, rank int, p expectedPrompt, named bool, i int) bool {
	return slices.ContainsFunc(m.reports, func(r *expectedReport) bool {
		return r.instance == instance && r.rank == rank && r.named == named && i >= r.from && i < len(r.prompt.names) && !r.gone[i] &&
			r.prompt.block(i) == p.block(i)
	})
}

// row returns the row of an instance by the definitions.
func (m *expectedModel) row(instance string, p expectedPrompt, named bool) (r match.Row) {
	ranks := []int{0}
	if instance == "A" && !m.left {
		ranks = append(ranks, 1)
	}
	known, counts := m.known(p), instance == "N" && m.counts
	holds := func(rank int, medium string, i int) bool {
		if counts && medium == "GPU" && m.expected(instance, rank, p, named, i) {
			return true
		}
		return i < known && m.has(instance, rank, medium, p.block(i))
	}
	pool := func(medium string, i int) bool {
		return i < known && instance == "A" && m.has("P", 0, medium, p.block(i))
	}
	soon := func(rank, i int) bool { return m.expected(instance, rank, p, named, i) }
	media := []string{tiers.NameDevice, tiers.NameHost, tiers.NameDisk}
	on := func(medium string, i int) bool {
		return pool(medium, i) || slices.ContainsFunc(ranks, func(rank int) bool { return holds(rank, medium, i) })
	}
	anywhere := func(i int) bool {
		return i < len(p.names) && slices.ContainsFunc(media, func(medium string) bool { return on(medium, i) })
	}
	for anywhere(r.Longest) {
		r.Longest++
	}
	for i := 0; anywhere(i) || i < len(p.names) &&
		(soon(match.AnyRank, i) || slices.ContainsFunc(ranks, func(rank int) bool { return soon(rank, i) })); i++ {
		r.Expected++
	}
	for _, medium := range media {
		n := 0
		for i := range r.Longest {
			if on(medium, i) {
				n++
			}
		}
		r.Media = append(r.Media, tiers.MediumCount{Name: medium, Blocks: n})
	}
	for _, rank := range ranks {
		own := tiers.Rank{Rank: int32(rank)}
		for i := range r.Longest {
			if slices.ContainsFunc(media, func(medium string) bool { return holds(rank, medium, i) }) {
				own.Blocks++
			}
		}
		cascade := func(device func(i int) bool) (ends [3]int) {
			i := 0
			for tier, medium := range media {
				for i < len(p.names) && (tier == 0 && device(i) || tier > 0 && (holds(rank, medium, i) || pool(medium, i))) {
					i++
				}
				ends[tier] = i
			}
			return ends
		}
		ends := cascade(func(i int) bool { return holds(rank, tiers.NameDevice, i) })
		own.Device, own.Host, own.Disk, own.External = ends[0], ends[1], ends[2], ends[2]
		own.Expected = cascade(func(i int) bool { return holds(rank, tiers.NameDevice, i) || soon(rank, i) })[2]
		r.Ranks = append(r.Ranks, own)
	}
	return r
}

// compare compares the rows of a prompt with the oracle, with Expected and without.
func (m *expectedModel) compare(p expectedPrompt) {
	m.t.Helper()
	q, named := m.query(p)
	text := func(r *match.Row) string { return fmt.Sprint(r.Longest, r.Expected, r.Media, r.Ranks) }
	for _, q.Expected = range []bool{false, true} {
		rows := make(map[string]*match.Row)
		all := m.conductor.Query(q).Rows
		for i := range all {
			rows[all[i].Instance] = &all[i]
		}
		for _, instance := range []string{"A", "B", "N"} {
			want, got := m.row(instance, p, named), rows[instance]
			if !q.Expected {
				want.Expected = 0
				for i := range want.Ranks {
					want.Ranks[i].Expected = 0
				}
			}
			switch {
			case got == nil && (p.lora == "" || max(want.Longest, want.Expected) > 0):
				m.fail("no row of %s for %+v, should be %s", instance, q, text(&want))
			case got == nil: // it does not serve the adapter
			case text(got) != text(&want):
				m.fail("%s for %s, by names %v, expected %v:\n%s, want\n%s", instance, p, named, q.Expected, text(got), text(&want))
			case got.Approximate != (instance == "N"):
				m.fail("%s: approximate %v", instance, got.Approximate)
			case q.Expected && got.Expected > got.Longest:
				m.longer++
			case instance == "N" && got.Longest > 0:
				m.counted++
			}
		}
		if !q.Expected {
			continue
		}
		q.Top, q.MinMatched = m.dice.IntN(3), m.dice.IntN(7)*16
		all = slices.DeleteFunc(all, func(r match.Row) bool { return r.Expected*16 < q.MinMatched })
		if slices.SortStableFunc(all, func(a, b match.Row) int { return b.Expected - a.Expected }); q.Top > 0 && len(all) > q.Top {
			all = all[:q.Top]
		}
		names := func(all []match.Row) (names []string) {
			for _, r := range all {
				names = append(names, r.Instance)
			}
			slices.Sort(names)
			return names
		}
		if got := names(m.conductor.Query(q).Rows); !slices.Equal(got, names(all)) {
			m.fail("%+v: rows of %v, want %v", q, got, names(all))
		}
	}
}
