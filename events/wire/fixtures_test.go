package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"example.com/conductor/events"
	"example.com/conductor/internal/must"
)

// fixture is one entry of testdata/fixtures.txt.
type fixture struct {
	name, about string
	payload     []byte
	want        string // lines as render writes them
}

// fixtures reads testdata/fixtures.txt: a line "name about", a line of hex, then
// the lines render is to give; entries are separated by empty lines, # starts a
// comment.
func fixtures(t testing.TB) []fixture {
	t.Helper()
	text, err := os.ReadFile("testdata/fixtures.txt")
	must.Succeed(t, err)
	var list []fixture
	for _, entry := range strings.Split(string(text), "\n\n") {
		lines := slices.DeleteFunc(strings.Split(strings.TrimSpace(entry), "\n"),
			func(s string) bool { return s == "" || s[0] == '#' })
		if len(lines) == 0 {
			continue
		}
		if len(lines) < 3 {
			t.Fatalf("fixture %q has no expectation", lines[0])
		}
		name, about, _ := strings.Cut(lines[0], " ")
		payload, err := hex.DecodeString(lines[1])
		if err != nil {
			t.Fatalf("fixture %s: %v", name, err)
		}
		list = append(list, fixture{name, about, payload, strings.Join(lines[2:], "\n")})
	}
	return list
}

// render writes a batch as text: one line for the batch, one for each event, one
// for each reason something was dropped. Zero values are left out.
func render(b events.Batch) string {
	var s strings.Builder
	fmt.Fprintf(&s, "batch time=%s rank=%d", strconv.FormatFloat(b.Time, 'f', -1, 64), b.Rank)
	for i := range b.Events {
		s.WriteString("\n" + renderEvent(&b.Events[i]))
	}
	var reasons []string
	for r, n := range b.Dropped {
		reasons = append(reasons, fmt.Sprintf("\ndropped %s=%d", r, n))
	}
	slices.Sort(reasons)
	return s.String() + strings.Join(reasons, "")
}

func renderEvent(e *events.Event) string {
	var s strings.Builder
	s.WriteString(e.Kind.String())
	put := func(set bool, format string, args ...any) {
		if set {
			fmt.Fprintf(&s, " "+format, args...)
		}
	}
	text := func(name string, p *string) {
		if p != nil {
			fmt.Fprintf(&s, " %s=%q", name, *p)
		}
	}
	for _, h := range e.Hashes {
		put(true, "%016x", h)
	}
	put(e.HasParent, "parent=%016x", e.Parent)
	put(e.Tokens != nil, "tokens=%s", strings.Trim(strings.ReplaceAll(fmt.Sprint(e.Tokens), " ", ","), "[]"))
	put(e.Bigram, "bigram")
	put(e.Ahead != 0 && !e.Bigram, "ahead=%d", e.Ahead)
	put(e.BlockSize != 0, "bs=%d", e.BlockSize)
	put(e.BaseBlock != -1, "base=%d", e.BaseBlock)
	put(e.Kind == events.Moved, "from=%q", e.From)
	put(e.Medium != "", "medium=%q", e.Medium)
	put(e.Group != -1, "group=%d", e.Group)
	put(e.GroupKind != "", "kind=%s", e.GroupKind)
	put(e.Window != 0, "window=%d", e.Window)
	put(e.Remaining != nil, "remaining=%v", e.Remaining)
	text("lora", e.LoraName)
	put(e.LoraID != 0, "lora_id=%d", e.LoraID)
	text("salt", e.Salt)
	put(e.Envelope, "envelope")
	put(e.ID != 0, "id=%d", e.ID)
	text("model", e.Model)
	text("tenant", e.Tenant)
	text("backend", e.Backend)
	put(e.Rank != nil, "rank=%d", deref(e.Rank))
	put(e.ObjectKey != "", "object=%q", e.ObjectKey)
	put(e.ConnectorHash != "", "connector=%q", e.ConnectorHash)
	put(e.Items != nil, "items=%d", e.Items)
	put(e.Owned, "owned")
	return s.String()
}

func deref(p *int) int {
	if p == nil {
		return 0
	}
	return *p
}

func TestDecodeFixtures(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range fixtures(t) {
		if seen[f.name] {
			t.Errorf("fixture %s is there twice", f.name)
		}
		seen[f.name] = true
		b, err := Decode(f.payload, DefaultLimits)
		if err != nil {
			t.Errorf("%s (%s): %v", f.name, f.about, err)
			continue
		}
		if got := render(b); got != f.want {
			t.Errorf("%s (%s):\ngot\n%s\nwant\n%s", f.name, f.about, got, f.want)
		}
	}
	for i := 1; i <= 31; i++ {
		if name := fmt.Sprintf("F%02d", i); !seen[name] {
			t.Errorf("fixture %s is missing", name)
		}
	}
	for _, name := range []string{"M1", "M2", "M3", "M4", "M5", "M6", "M7", "M8", "M9", "S1", "S2", "C1"} {
		if !seen[name] {
			t.Errorf("fixture %s is missing", name)
		}
	}
}

// Every proper prefix of a payload is incomplete, and a longer one is not one
// batch.
func TestTruncatedAndTrailing(t *testing.T) {
	for _, f := range fixtures(t) {
		for n := range f.payload {
			b, err := Decode(f.payload[:n], DefaultLimits)
			if err == nil || ReasonOf(err) != events.BadPayload {
				t.Fatalf("%s cut to %d of %d bytes: error %v", f.name, n, len(f.payload), err)
			}
			if b.Events != nil || b.Dropped != nil {
				t.Fatalf("%s cut to %d bytes: a batch beside the error", f.name, n)
			}
		}
		for _, more := range []byte{0xc0, 0x00, 0xc1, 0xdd} {
			_, err := Decode(append(bytes.Clone(f.payload), more), DefaultLimits)
			if ReasonOf(err) != events.BadPayload {
				t.Fatalf("%s and a trailing %#x: error %v", f.name, more, err)
			}
		}
	}
}

// Overwriting the payload afterwards changes nothing of what was returned.
func TestPayloadIsNotRetained(t *testing.T) {
	for _, f := range fixtures(t) {
		p := bytes.Clone(f.payload)
		b, err := Decode(p, DefaultLimits)
		if err != nil {
			t.Fatal(f.name, err)
		}
		for i := range p {
			p[i] = 0xff
		}
		if got := render(b); got != f.want {
			t.Errorf("%s changed with its payload:\n%s", f.name, got)
		}
	}
}

// Array and map form, int and byte hashes of the same blocks agree.
func TestFormsAgree(t *testing.T) {
	byName := map[string]events.Batch{}
	for _, f := range fixtures(t) {
		b, err := Decode(f.payload, DefaultLimits)
		if err != nil {
			t.Fatal(f.name, err)
		}
		byName[f.name] = b
	}
	array, mapped := byName["F08"].Events[0], byName["F10"].Events[0]
	mapped.GroupKind = "" // the array is of an era before it
	if a, m := renderEvent(&array), renderEvent(&mapped); a != m {
		t.Errorf("array and map differ:\n%s\n%s", a, m)
	}
	if i, b := byName["F04"].Events[0].Hashes[0], byName["F05"].Events[0].Hashes[0]; i != b {
		t.Errorf("int mode gives %x, bytes mode %x", i, b)
	}
	if i, h := byName["F04"].Events[0].Hashes[1], byName["F23"].Events[0].Hashes[0]; i != h {
		t.Errorf("single hash gives %x, concatenated one %x", i, h)
	}
}

func TestReasonOf(t *testing.T) {
	f := func(err error, want events.Reason) {
		t.Helper()
		if got := ReasonOf(err); got != want {
			t.Errorf("ReasonOf(%v) = %q, want %q", err, got, want)
		}
	}
	f(nil, "")
	f(&Error{Reason: events.TooLarge}, events.TooLarge)
	f(fmt.Errorf("message 7: %w", &Error{Reason: events.TooLarge}), events.TooLarge)
	f(errors.New("other"), events.BadPayload)
}
