package soak

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/tiers"
)

// reader asks and judges.
type reader struct {
	*Soak
	rng         *rand.Rand
	windows     []window
	lives       []int64
	least, most [][]uint8 // by source and block: bits of tiers, and any
	got         []int
}

// anyTier is the bit of a block that is on some tier.
const anyTier = 1 << tierCount

// ask asks for a prompt by tokens or by keys, and judges the answer.
func (r *reader) ask(i int) (err error) {
	p := &r.prompts[i]
	q := match.Query{Model: model, BlockSize: blockSize, Tokens: p.tokens, Detail: true}
	if r.rng.IntN(8) == 0 {
		q.Tokens, q.Hashes, q.ByHash = nil, p.keys, true
	}
	try := func() (err error) {
		r.windows, r.lives = r.windows[:0], r.lives[:0]
		for _, s := range r.sources {
			r.lives = append(r.lives, s.life.Load())
			r.windows = append(r.windows, window{first: int32(s.floor.Load())})
		}
		r.conductor.Answer(&q, func(a *match.Answer) { err = r.judge(p, a) })
		return err
	}
	if err = try(); err == nil {
		return nil
	}
	again := "right"
	if try() != nil {
		again = "wrong as well"
	}
	return fmt.Errorf("prompt %d of %d blocks, by hash %t: %w; a second answer is %s", i, len(p.path), q.ByHash, err, again)
}

// judge compares an answer with the bounds of its windows.
func (r *reader) judge(p *prompt, a *match.Answer) error {
	r.close(a)
	for i, s := range r.sources {
		for len(r.least) <= i {
			r.least, r.most = append(r.least, nil), append(r.most, nil)
		}
		r.least[i], r.most[i] = s.view(p, &r.windows[i], r.least[i][:0], r.most[i][:0])
	}
	for from := 0; from < len(r.sources); {
		to := from + 1
		for to < len(r.sources) && r.sources[to].reg.Instance == r.sources[from].reg.Instance {
			to++
		}
		if !r.sources[from].pool() {
			if err := r.judgeRow(p, a, from, to); err != nil {
				return err
			}
		}
		from = to
	}
	return nil
}

// close ends the windows when an answer has come. The freshness in the answer moves their
// beginnings.
func (r *reader) close(a *match.Answer) {
	for i, s := range r.sources {
		r.windows[i].last = int32(s.begun.Load())
	}
	for i, s := range r.sources {
		w := &r.windows[i]
		n := s.life.Load()
		w.away = n != r.lives[i] || n%2 == 1
		if d := detail(a, s.reg.Key()); !w.away && d != nil && d.HasMark {
			l := &s.lives[n/2-s.ended]
			if d.Watermark >= l.first {
				w.first = max(w.first, l.ends[d.Watermark-l.first])
			}
		}
	}
	for i, s := range r.sources {
		if s.teacher != nil {
			r.windows[i].taught = r.windows[slices.Index(r.sources, s.teacher)].first
		}
	}
}

// detail returns the freshness of a source in an answer, nil if the answer has none.
func detail(a *match.Answer, key registration.Key) *match.SourceDetail {
	find := func(all []match.SourceDetail) *match.SourceDetail {
		if i := slices.IndexFunc(all, func(d match.SourceDetail) bool { return d.Key == key }); i >= 0 {
			return &all[i]
		}
		return nil
	}
	for i := range a.Rows {
		if a.Rows[i].Instance == key.Instance {
			return find(a.Rows[i].Detail)
		}
	}
	return find(a.Pools)
}

// view appends for each block of a prompt on which tiers the source has it.
func (s *source) view(p *prompt, w *window, least, most []uint8) (l, m []uint8) {
	for _, n := range p.path {
		var l, m uint8
		for _, h := range s.holders {
			always, once := s.bounds(h, n, w)
			if always {
				l |= anyTier | 1<<h.tier
			}
			if once {
				m |= anyTier | 1<<h.tier
			}
		}
		if m > 0 && l == 0 && s.somewhere(n, w) {
			l = anyTier
		}
		least, most = append(least, l), append(most, m)
	}
	return least, most
}

// judgeRow compares the row of the instance that sources from to to-1 are.
func (r *reader) judgeRow(p *prompt, a *match.Answer, from, to int) error {
	instance := r.sources[from].reg.Instance
	at := slices.IndexFunc(a.Rows, func(row match.Row) bool { return row.Instance == instance })
	away := false
	for i := from; i < to; i++ {
		away = away || r.windows[i].away
	}
	if at < 0 {
		if !away {
			return fmt.Errorf("the answer has no row of %s", instance)
		}
		return nil
	}
	row := &a.Rows[at]
	r.got = append(r.got[:0], row.Longest, row.Media[0].Blocks, row.Media[1].Blocks, row.Media[2].Blocks)
	for i := from; i < to; i++ {
		k := slices.IndexFunc(row.Ranks, func(rank tiers.Rank) bool { return int(rank.Rank) == i-from })
		if k < 0 {
			if !away {
				return fmt.Errorf("the row of %s has no rank %d", instance, i-from)
			}
			r.got = append(r.got, 0, 0, 0, 0)
			continue
		}
		rank := &row.Ranks[k]
		r.got = append(r.got, rank.Blocks, rank.Device, rank.Host, rank.Disk)
	}
	least, most := r.row(r.least, len(p.path), from, to), r.row(r.most, len(p.path), from, to)
	if away { // pools serve registered instances only
		clear(least)
	}
	for i, got := range r.got {
		first := got // the first block that makes a prefix too short or too long
		if got > most[i] {
			first = most[i]
		} else if got >= least[i] {
			continue
		}
		return fmt.Errorf("%s: %s is %d blocks, want %d to %d; of block %d%s",
			instance, numberOf(i), got, least[i], most[i], first, r.describe(p.path[min(first, len(p.path)-1)]))
	}
	return nil
}

func numberOf(i int) string {
	if i < 4 {
		return []string{"longest_matched", "GPU", "CPU", "DISK"}[i]
	}
	return fmt.Sprintf("%s of rank %d", []string{"DP", "gpu", "cpu", "disk"}[i%4], i/4-1)
}

// describe lists the holders of a block in the windows.
func (r *reader) describe(n int32) (text string) {
	for i, s := range r.sources {
		w := &r.windows[i]
		if slices.ContainsFunc(s.holders, func(h *holder) bool { _, some := s.bounds(h, n, w); return some }) {
			text += fmt.Sprintf("; %s in events %d to %d:", s.reg.Key(), w.first, w.last)
			for _, h := range s.holders {
				text += fmt.Sprintf(" %s%s %s", h.backend, media[h.tier], h.at(n, w.first))
				for event := w.first + 1; event <= w.last; event++ {
					if st := h.at(n, event); st != h.at(n, event-1) {
						text += fmt.Sprintf(" %s at %d", st, event)
					}
				}
			}
		}
	}
	return text
}

// row computes the numbers of an instance from the blocks of each source: the definition, in
// docs/semantics.md ANSWER-2 to ANSWER-5.
func (r *reader) row(has [][]uint8, blocks, from, to int) []int {
	instance := r.sources[from].reg.Instance
	pooled := func(b int) (all uint8) {
		for i, s := range r.sources {
			if s.pool() && (s.reg.Serves == nil || slices.Contains(s.reg.Serves, instance)) {
				all |= has[i][b]
			}
		}
		return all
	}
	numbers := make([]int, 4*(1+to-from))
	for b := range blocks {
		all := pooled(b)
		for i := from; i < to; i++ {
			all |= has[i][b]
		}
		if all == 0 {
			break
		}
		numbers[0]++
		for tier := range tierCount {
			numbers[1+tier] += int(all >> tier & 1)
		}
		for i := from; i < to; i++ {
			if has[i][b] > 0 {
				numbers[4*(1+i-from)]++
			}
		}
	}
	for i := from; i < to; i++ {
		b := 0
		for tier := range tierCount {
			for b < blocks && (has[i][b]>>tier&1 > 0 || tier != device && pooled(b)>>tier&1 > 0) {
				b++
			}
			numbers[4*(1+i-from)+1+tier] = b
		}
	}
	return numbers
}
