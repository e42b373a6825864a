package history

import (
	"bytes"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events/tape"
	"example.com/conductor/history/historytest"
	"example.com/conductor/internal/must"
	"example.com/conductor/keyfile"
)

// write returns the bytes of a snapshot.
func write(t testing.TB, c *conductor.Conductor, seal Sealer) []byte {
	t.Helper()
	var b bytes.Buffer
	sum, err := Write(&b, c, nil, historytest.At, seal)
	must.Succeed(t, err)
	if sum.Bytes != int64(b.Len()) {
		t.Errorf("%+v, written %d bytes", sum, b.Len())
	}
	return b.Bytes()
}

// A snapshot that is read says what was written.
func TestRoundTrip(t *testing.T) {
	a, b := historytest.Server(t, nil), historytest.Server(t, nil)
	historytest.Fill(t, a, 3, 1000)
	data := write(t, a, nil)
	r := b.Sources().Snapshots().Recover(0)
	sum, err := Read(bytes.NewReader(data), Reading{Into: r})
	must.Succeed(t, err)
	r.Done()
	if sum.Blocks != 6000 || r.Blocks != 6000 || sum.Sources != 3 || sum.Deployments != 1 || !sum.Time.Equal(historytest.At) ||
		sum.Bytes != int64(len(data)) {
		t.Errorf("%+v, %d blocks", sum, r.Blocks)
	}
	if got := historytest.Held(b); len(got) != 3 || got["a"] != 2000 || got["c"] != 2000 {
		t.Errorf("%v", got)
	}
	for _, err := range b.Check() {
		t.Error(err)
	}
}

// A stream that is cut off or changed anywhere is refused, and leaves nothing.
func TestDamage(t *testing.T) {
	a := historytest.Server(t, nil)
	historytest.Fill(t, a, 2, 8)
	data := write(t, a, nil)
	f := func(what string, bad []byte) {
		t.Helper()
		b := historytest.Server(t, nil)
		defer b.Close()
		r := b.Sources().Snapshots().Recover(0)
		if _, err := Read(bytes.NewReader(bad), Reading{Into: r}); err == nil {
			t.Errorf("%s is read", what)
		}
		r.Undo()
		if got := historytest.Held(b); len(got) > 0 {
			t.Errorf("%s leaves %v", what, got)
		}
	}
	for i := range data {
		f("a snapshot cut off", data[:i])
		bad := bytes.Clone(data)
		bad[i] ^= 1 << (i % 8)
		f("a flipped bit", bad)
	}
}

// Errors say what a stream is.
func TestErrors(t *testing.T) {
	a := historytest.Server(t, nil)
	historytest.Fill(t, a, 1, 10)
	data := write(t, a, nil)
	f := func(bad []byte, to *conductor.Conductor, want string) {
		t.Helper()
		_, err := Read(bytes.NewReader(bad), Reading{Into: to.Sources().Snapshots().Recover(0)})
		if err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	newer := bytes.Clone(data)
	newer[8] = 5
	huge := bytes.Clone(data)
	le.PutUint32(huge[headerSize+12:], 1<<31)
	f([]byte("PK\x03\x04 a zip"), historytest.Server(t, nil), "it is no snapshot: its first bytes are others")
	f(newer, historytest.Server(t, nil), "it has format version 5; this program knows 2 to 4")
	f(data[:len(data)-1], historytest.Server(t, nil), "it ends in the middle")
	f(huge, historytest.Server(t, nil), "section 0 at byte 36 is damaged: it claims 2147483648 bytes")
	f(data, historytest.Server(t, func(o *conductor.Options) { o.HashSeed = 7 }), "the snapshot is of hash.seed 1337, this server has 7")
}

// Sections of unknown kinds are passed over.
func TestUnknownSections(t *testing.T) {
	a, b := historytest.Server(t, nil), historytest.Server(t, nil)
	historytest.Fill(t, a, 1, 10)
	data := write(t, a, nil)
	h, err := decodeHeader(data)
	must.Succeed(t, err)
	end := len(data) - sectionSize
	for ; le.Uint16(data[end:]) != kindEnd || int(le.Uint32(data[end+12:])) != len(data)-end-sectionSize; end-- {
	}
	with := bytes.Clone(data[:end])
	for _, kind := range []uint16{8, 200} {
		s := section{kind: kind}.encode(h.seed(), []byte("new"))
		with = append(append(with, s[:]...), "new"...)
	}
	s := section{kind: kindEnd}
	var sections int
	for at := headerSize; at < len(with); at += sectionSize + int(le.Uint32(with[at+12:])) {
		sections++
	}
	payload := tape.AppendFields(nil, tape.Field{Name: fieldSections, Value: strconv.Itoa(sections)},
		tape.Field{Name: fieldBlocks, Value: "20"})
	head := s.encode(h.seed(), payload)
	with = append(append(with, head[:]...), payload...)
	r := b.Sources().Snapshots().Recover(0)
	if _, err := Read(bytes.NewReader(with), Reading{Into: r}); err != nil {
		t.Fatal(err)
	}
	if got := historytest.Held(b); got["a"] != 20 {
		t.Errorf("%v", got)
	}
}

// Only takes the sources of one deployment out of a snapshot of all.
func TestOnly(t *testing.T) {
	a := historytest.Server(t, nil)
	historytest.Fill(t, a, 2, 10)
	data := write(t, a, nil)
	for _, d := range []scope.Deployment{
		{Tenant: "default", Model: "m", BlockSize: 16}, {Tenant: "other", Model: "m", BlockSize: 16},
		{Tenant: "default", Model: "n", BlockSize: 16}, {Tenant: "default", Model: "m", BlockSize: 32},
	} {
		b := historytest.Server(t, nil)
		r := b.Sources().Snapshots().Recover(0)
		_, err := Read(bytes.NewReader(data), Reading{Into: r, Sources: Only(d)})
		must.Succeed(t, err)
		r.Done()
		if got := historytest.Held(b); (len(got) == 2 && got["a"] == 20) != (d == scope.Deployment{Tenant: "default", Model: "m",
			BlockSize: 16}) || len(got) == 1 {
			t.Errorf("%+v: %v", d, got)
		}
	}
}

// A sealer hides salts. Without an opener what has salts is left out.
func TestSealer(t *testing.T) {
	a, b, c := historytest.Server(t, nil), historytest.Server(t, nil), historytest.Server(t, nil)
	historytest.Fill(t, a, 2, 10)
	key, err := NewSealingKey(&keyfile.Key{1})
	must.Succeed(t, err)
	data := write(t, a, key.Seal)
	if bytes.Contains(data, []byte("pepper")) {
		t.Error("the salt is in the snapshot")
	}
	r := b.Sources().Snapshots().Recover(0)
	_, err = Read(bytes.NewReader(data), Reading{Into: r, Open: key.Open})
	must.Succeed(t, err)
	if got := historytest.Held(b); got["a"] != 20 {
		t.Errorf("%v", got)
	}
	r = c.Sources().Snapshots().Recover(0)
	sum, err := Read(bytes.NewReader(data), Reading{Into: r, Open: NoKey.Open})
	must.Succeed(t, err)
	if got := historytest.Held(c); got["a"] != 10 || sum.LeftOut != 1 {
		t.Errorf("%v, %d left out", got, sum.LeftOut)
	}
	if plain := write(t, a, NoKey.Seal); bytes.Contains(plain, []byte("pepper")) {
		t.Error("the salt is in a snapshot without a key")
	}
}

// TestReadEndlessHead gives up a snapshot with names without end: they would all stay in memory.
func TestReadEndlessHead(t *testing.T) {
	h := header{version: newest, id: 1, time: time.Unix(1, 0)}
	b := h.encode()
	payload := make([]byte, 8<<10)
	for range 9 {
		s := section{kind: kindTarget, length: uint32(len(payload))}
		at := s.encode(h.seed(), payload)
		b = append(append(b, at[:]...), payload...)
	}
	c := conductor.New(conductor.Options{Gate: make(chan struct{}), Log: zerolog.Nop()})
	defer c.Close()
	_, err := Read(bytes.NewReader(b), Reading{Into: c.Sources().Snapshots().Recover(0), MaxHead: 64 << 10})
	if err == nil || !strings.Contains(err.Error(), "take more than 65536 bytes") {
		t.Error(err)
	}
}

// What routers have reported is in no snapshot: neither in that of a server nor in that of a deployment, which the shelf
// and takeovers use, nor in the file of registrations.
func TestReportsAreLeftOut(t *testing.T) {
	c := historytest.Server(t, nil)
	must.Succeed(t, c.Register(historytest.Registration("a"), ingest.RegisterOptions{}))
	historytest.Fill(t, c, 1, 100)
	all := func() (texts []string) {
		texts = append(texts, string(write(t, c, nil)))
		var one, sources bytes.Buffer
		_, err := Write(&one, c, &scope.Deployment{Tenant: "default", Model: "m", BlockSize: 16}, historytest.At, nil)
		must.Succeed(t, err)
		_, err = WriteRegistrations(&sources, Registrations{Sources: c.Sources().Snapshots().KeptSources().Saved()}, historytest.At, nil)
		must.Succeed(t, err)
		return append(texts, one.String(), sources.String())
	}
	before := all()
	prompt := make([]uint32, 16*8)
	report := match.Routed{Query: match.Query{Model: "m", BlockSize: 16, Tokens: prompt}, Target: "a", Rank: 0, TTL: time.Minute,
		RequestID: "kept"}
	_, err := c.For(conductor.Reader{}).Routed(&report)
	must.Succeed(t, err)
	if rows := c.Query(match.Query{Model: "m", BlockSize: 16, Tokens: prompt, Expected: true}).Rows; len(rows) != 1 ||
		rows[0].Expected != 8 {
		t.Fatalf("%+v", rows)
	}
	for i, text := range all() {
		if len(text) != len(before[i]) || strings.Contains(text, "kept") {
			t.Errorf("snapshot %d of %d bytes has %d after a report", i, len(before[i]), len(text))
		}
	}
	b := historytest.Server(t, nil)
	must.Succeed(t, b.Register(historytest.Registration("a"), ingest.RegisterOptions{}))
	r := b.Sources().Snapshots().Recover(0)
	_, err = Read(bytes.NewReader(write(t, c, nil)), Reading{Into: r})
	must.Succeed(t, err)
	r.Done()
	if rows := b.Query(match.Query{Model: "m", BlockSize: 16, Tokens: prompt, Expected: true}).Rows; len(rows) != 1 ||
		rows[0].Expected != 0 {
		t.Errorf("a server with the snapshot expects %+v", rows)
	}
}

// TestLoadContainsPanics: a broken invariant costs the snapshot that was being loaded, and nothing stays of it.
func TestLoadContainsPanics(t *testing.T) {
	c := conductor.New(conductor.Options{HashSeed: 1337, Log: zerolog.Nop()})
	defer c.Close()
	l := &Loader{Conductor: c, Log: zerolog.Nop()}
	reg := registration.Registration{Instance: "one", Model: "m", BlockSize: 16, Type: registration.TypeVLLM, Tenant: "default"}
	progress, err := l.Load(Snapshot{Field: "file"}, func(loading *Loading) error {
		must.Succeed(t, loading.Into.Source(image.Source{Registration: reg, Mark: &ingest.Mark{Seq: 5}}))
		panic("BUG: of a test")
	})
	if err == nil || !strings.Contains(err.Error(), "BUG: of a test") || progress.Blocks != 0 || len(c.Services()) != 0 {
		t.Errorf("%v, %+v, %+v", err, progress, c.Services())
	}
	_, err = l.Load(Snapshot{Field: "file"}, func(loading *Loading) error { // another one fills the source
		return loading.Into.Source(image.Source{Registration: reg, Mark: &ingest.Mark{Seq: 5}})
	})
	must.Succeed(t, err)
	if len(c.Services()) != 1 {
		t.Errorf("%+v", c.Services())
	}
}
