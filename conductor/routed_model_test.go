package conductor_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/index/hash"
)

// TestRoutedModel plays one history into three servers, and reports prompts to two of them: to one by the prompts, to the other by
// the ids of its answers. The answers of all without Expected are the same, and those of the two with it. Expected is never shorter
// than a row. When the time of all reports is over, nothing is left of them.
func TestRoutedModel(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &routedModel{t: t, dice: rand.New(rand.NewPCG(seed, 43)), plain: newBench(), told: newBench(),
					byID: newBench()}
				defer m.plain.conductor.Close()
				defer m.told.conductor.Close()
				defer m.byID.conductor.Close()
				m.play()
			})
		})
	}
}

type routedModel struct {
	t           *testing.T
	dice        *rand.Rand
	plain, told *bench
	byID        *bench
	history     []string
	reports     int
	ids         int // reports by an id
	longer      int // rows with more expected than held
}

// both makes a command on all servers.
func (m *routedModel) both(line string) {
	m.history = append(m.history, line)
	if a, b, c := m.plain.run(line), m.told.run(line), m.byID.run(line); a != b || a != c {
		m.t.Fatalf("%s: %q without reports, %q with them, %q with reports by id", line, a, b, c)
	}
}

func (m *routedModel) one(of ...string) string { return of[m.dice.IntN(len(of))] }

// path returns a prompt that begins like others.
func (m *routedModel) path() string {
	names := make([]string, 1+m.dice.IntN(8))
	for i := range names {
		names[i] = m.one("a", "a", "b", "c")
	}
	return strings.Join(names, "/")
}

// event returns a command about a path of a rank. Engines hash alike, with adapter and salt.
func (m *routedModel) event(verb, path string, from int) string {
	who := m.one("A rank=0", "A rank=1", "B rank=0", "D rank=0")
	lora, salt := m.one("", "", "l"), m.one("", "", "s")
	line := fmt.Sprintf("%s %s path=%s from=%d hashes=A as=%s-%s medium=%s", verb, who, path, from, lora, salt,
		m.one("GPU", "GPU", "GPU", "CPU", "DISK"))
	if strings.HasPrefix(who, "D") { // its hashes cover the token behind a block
		line += " hashed=sglang_bigram"
		line = strings.Replace(line, "medium=CPU", "medium=GPU", 1)
	}
	if lora != "" {
		line += " lora=" + lora
	}
	if salt != "" {
		line += " salt=" + salt
	}
	return line
}

func (m *routedModel) play() {
	for _, line := range []string{"register A", "register A rank=1", "register B", "register D", "register P type=Mooncake serves=A",
		"register N events=none capacity_blocks=6 type=Standard"} {
		m.both(line)
	}
	gone := make(map[string]bool)
	for range 150 {
		path := m.path()
		switch n := m.dice.IntN(20); {
		case n < 7:
			m.both(m.event("store", path, m.dice.IntN(strings.Count(path, "/")+1)))
		case n < 9:
			m.both(m.event("remove", path, m.dice.IntN(strings.Count(path, "/")+1)))
		case n == 9:
			m.both(m.one("put", "put", "drop") + " P hashes=A as=- path=" + path)
		case n == 10 && m.dice.IntN(3) == 0:
			m.both("clear " + m.one("A rank=0", "A rank=1", "B", "D"))
		case n == 11 && m.dice.IntN(3) == 0:
			who := m.one("A rank=1", "B")
			m.both("restart " + who)
			m.both("store " + who + " hashes=A as=- path=z")
		case n == 12 && m.dice.IntN(3) == 0:
			who := m.one("A rank=1", "B")
			if gone[who] = !gone[who]; gone[who] {
				m.both("unregister " + who)
			} else {
				m.both("register " + who)
			}
		case n == 13:
			m.both("wait " + m.one("100ms", "1s", "3s"))
		case n == 14:
			id := fmt.Sprint("id", m.dice.IntN(9))
			m.told.view().TakeBack("", id)
			m.byID.view().TakeBack("", id)
		default:
			m.report(path)
		}
		for range 3 {
			m.compare(m.query(m.path()))
		}
		m.compare(m.query(path))
	}
	if m.reports == 0 || m.ids == 0 || m.longer == 0 {
		m.t.Errorf("%d reports, %d by id, %d rows with more expected than held", m.reports, m.ids, m.longer)
	}
	m.both("unregister N")
	time.Sleep(11 * time.Minute)
	synctest.Wait()
	for _, part := range m.told.conductor.Meter().Memory() {
		if part.Name == "expected" && part.Bytes != 0 {
			m.t.Errorf("%d bytes are left", part.Bytes)
		}
	}
}

// query returns a query of a path, by tokens or by hashes of either kind.
func (m *routedModel) query(path string) match.Query {
	q := match.Query{Model: "m", BlockSize: 16, Lora: m.one("", "", "l"), Salt: m.one("", "", "s")}
	switch tokens := promptOf(path, 16); m.dice.IntN(4) {
	case 0:
		q.ByHash = true
		var chain hash.Chain
		chain.Reset(hash.DefaultScheme(), tokens, 16, 0)
		for i := range chain.Len() {
			q.Hashes = append(q.Hashes, chain.At(i))
		}
	case 1:
		q.ByHash, q.HashKind = true, match.VLLMHashes
		names := strings.Split(path, "/")
		for i := range names {
			q.Hashes = append(q.Hashes, engineHash(fmt.Sprintf("ipc://A/0%s%s-%s", q.Salt, q.Lora, q.Salt), strings.Join(names[:i+1], "/")))
		}
	default:
		q.Tokens = tokens
	}
	return q
}

func (m *routedModel) report(path string) {
	r := match.Routed{Query: m.query(path), Target: m.one("A", "A", "B", "D", "N"), Rank: m.dice.IntN(3) - 1}
	if m.dice.IntN(2) == 0 {
		r.RequestID = fmt.Sprint("id", m.dice.IntN(9))
	}
	if m.dice.IntN(2) == 0 {
		r.TTL = time.Duration(1+m.dice.IntN(5000)) * time.Millisecond
	}
	m.history = append(m.history, fmt.Sprintf("routed %s to %s:%d, id %s, ttl %s", path, r.Target, r.Rank, r.RequestID, r.TTL))
	if _, err := m.told.view().Routed(&r); err == nil {
		m.reports++
	}
	id, asked := "", r.Query
	asked.Keep = true
	err := conductor.Candidates(m.byID.view(), &asked, func(a *match.Answer, _ registration.Meaning) { id = match.FormatAnswerID(a.ID) })
	if err == nil && id != "" {
		r.Query, r.AnswerID = match.Query{}, id
		m.ids++
	}
	m.byID.view().Routed(&r)
}

// compare asks both servers, also with Expected.
func (m *routedModel) compare(q match.Query) {
	m.t.Helper()
	ask := func(b *bench, q match.Query) match.Answer {
		ans := b.conductor.Query(q)
		ans.Roster = nil
		for _, row := range ans.Rows {
			for i := range row.Detail {
				row.Detail[i].Age = 0 // reconnecting takes a random time
			}
		}
		return ans
	}
	q.Detail, q.Top, q.MinMatched = m.dice.IntN(3) == 0, m.dice.IntN(3), m.dice.IntN(2)*16
	if a, b := fmt.Sprintf("%+v", ask(m.plain, q)), fmt.Sprintf("%+v", ask(m.told, q)); a != b {
		m.t.Fatalf("%s\n%+v: without reports\n%s, with them\n%s", strings.Join(m.history, "\n"), q, a, b)
	}
	q.Detail, q.Top, q.MinMatched = false, 0, 0
	held := make(map[string]string)
	for _, row := range ask(m.plain, q).Rows {
		held[row.Instance] = fmt.Sprintf("%+v %v", row.Row, row.Approximate)
	}
	q.Expected = true
	if a, b := fmt.Sprintf("%+v", ask(m.told, q)), fmt.Sprintf("%+v", ask(m.byID, q)); a != b {
		m.t.Fatalf("%s\n%+v: with reports\n%s, with reports by id\n%s", strings.Join(m.history, "\n"), q, a, b)
	}
	for _, row := range ask(m.told, q).Rows {
		if row.Expected < row.Longest {
			m.t.Fatalf("%s: %d blocks expected, %d held", row.Instance, row.Expected, row.Longest)
		} else if row.Expected > row.Longest {
			m.longer++
		}
		for j := range row.Ranks {
			rank := &row.Ranks[j]
			if rank.Expected < rank.External || rank.Expected > row.Expected {
				m.t.Fatalf("%s rank %d: %d blocks expected, %d held, %d expected of the instance", row.Instance, rank.Rank, rank.Expected,
					rank.External, row.Expected)
			}
			rank.Expected = 0
		}
		got, want := fmt.Sprintf("%+v %v", row.Row, row.Approximate), held[row.Instance]
		if delete(held, row.Instance); got != want && (want != "" || row.Longest > 0 || row.Expected == 0) {
			m.t.Fatalf("%s\n%+v\n%s: %s with Expected, %s without", strings.Join(m.history, "\n"), q, row.Instance, got, want)
		}
	}
	if len(held) > 0 {
		m.t.Fatalf("%s\n%+v: no rows of %v with Expected", strings.Join(m.history, "\n"), q, held)
	}
}
