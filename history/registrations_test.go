package history

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/image"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/kept"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/tape"
	"example.com/conductor/history/historytest"
	"example.com/conductor/internal/must"
)

// source returns the part of a source as the disk has it.
func source(instance string, change func(*registration.Registration)) kept.Part {
	r := historytest.Registration(instance)
	r.Tenant = "default"
	if change != nil {
		change(&r)
	}
	return kept.Part{Name: r.Key().Unique(), Fields: r.Fields()}
}

// readBack returns what a file of registrations has: sources with their models, targets and changes with their texts.
func readBack(c *conductor.Conductor, data []byte) (all map[string]string, tail Tail, err error) {
	all = make(map[string]string)
	_, tail, err = ReadRegistrations(bytes.NewReader(data), Reading{
		Into: c.Sources().Snapshots().Recover(0),
		Sources: func(sources []image.Source) {
			for i := range sources {
				if m := &sources[i]; m.Instance != "" {
					all["source "+m.Instance] = m.Model
				}
			}
			clear(sources)
		},
		Target: func(f []tape.Field) { all["target "+tape.Value(f, "instance_id")] = tape.Value(f, "discover") },
		Change: func(f []tape.Field) { all["change "+tape.Value(f, "instance_id")] = tape.Value(f, "gone") },
	})
	return all, tail, err
}

// Changes that were appended take the place of what was there before. Wherever the file ends, or a bit flips, it has what
// one of its ends had, and nothing of the writes behind it.
func TestRegistrationsLog(t *testing.T) {
	var file bytes.Buffer
	c := historytest.Server(t, nil)
	model := func(name string) func(*registration.Registration) {
		return func(r *registration.Registration) { r.Model = name }
	}
	target := func(instance, url string) kept.Part {
		return kept.Part{Name: instance, Fields: []tape.Field{{Name: "instance_id", Value: instance}, {Name: "discover", Value: url}}}
	}
	log, sum, err := BeginRegistrationsLog(&file, Registrations{HashSeed: 1337,
		Sources: []kept.Part{source("a", model("m")), source("b", model("m"))},
		Targets: []kept.Part{target("t", "http://1")},
	}, historytest.At, nil)
	must.Succeed(t, err)
	ends := []int{int(sum.Bytes)}
	wants := []map[string]string{{"source a": "m", "source b": "m", "target t": "http://1"}}
	f := func(changed Registrations, want map[string]string) {
		t.Helper()
		sum, err := log.Append(changed)
		must.Succeed(t, err)
		if int(sum.Bytes) != file.Len() {
			t.Errorf("%d bytes of %d", sum.Bytes, file.Len())
		}
		ends, wants = append(ends, file.Len()), append(wants, want)
	}
	f(Registrations{Sources: []kept.Part{source("a", model("n")), source("c", model("m"))}},
		map[string]string{"source a": "n", "source b": "m", "source c": "m", "target t": "http://1"})
	f(Registrations{Sources: []kept.Part{{Name: source("b", nil).Name}},
		Targets: []kept.Part{target("t", "http://2"), target("u", "http://3")}},
		map[string]string{"source a": "n", "source c": "m", "target t": "http://2", "target u": "http://3"})
	f(Registrations{Targets: []kept.Part{{Name: "t"}}, Changes: []kept.Part{{Name: "a", Fields: []tape.Field{
		{Name: "instance_id", Value: "a"}, {Name: "gone", Value: "true"}}}}, Sources: []kept.Part{{Name: source("a", nil).Name}}},
		map[string]string{"source c": "m", "target u": "http://3", "change a": "true"})
	f(Registrations{Sources: []kept.Part{source("b", model("o")), {Name: "never there"}}, Changes: []kept.Part{{Name: "a"}}},
		map[string]string{"source b": "o", "source c": "m", "target u": "http://3"})
	data := file.Bytes()
	for n := ends[0]; n <= len(data); n++ {
		last := slices.IndexFunc(append(ends, len(data)+1), func(end int) bool { return end > n }) - 1
		got, tail, err := readBack(c, data[:n])
		if err != nil || !maps.Equal(got, wants[last]) || tail != (Tail{Bytes: int64(n - ends[last])}) {
			t.Fatalf("%d bytes: %v, %+v, %v; want %v", n, got, tail, err, wants[last])
		}
	}
	for at := ends[0]; at < len(data); at += 3 {
		last := slices.IndexFunc(ends, func(end int) bool { return end > at }) - 1
		bad := bytes.Clone(data)
		bad[at] ^= 1 << (at % 8)
		got, tail, err := readBack(c, bad)
		if err != nil || !maps.Equal(got, wants[last]) || tail.Bytes != int64(len(data)-ends[last]) {
			t.Fatalf("a bit of byte %d: %v, %+v, %v; want %v", at, got, tail, err, wants[last])
		}
	}
	if _, _, err := readBack(c, data[:ends[0]-1]); !errors.Is(err, errTorn) {
		t.Errorf("without its first end: %v", err)
	}
}

// readBefore is how programs read a header that know version 2 alone: the text is theirs.
func readBefore(data []byte) error {
	if v := le.Uint32(data[8:]); v != 2 {
		return fmt.Errorf("it has format version %d; this program knows 2", v)
	}
	return nil
}

// What programs of version 2 know goes back to them, and what they would lose is refused there.
func TestWayBack(t *testing.T) {
	f := func(what string, refused bool, change func(*registration.Registration)) {
		t.Helper()
		r := historytest.Registration("x")
		change(&r)
		a := historytest.Server(t, nil)
		must.Succeed(t, a.Register(r, ingest.RegisterOptions{AnyEndpoint: true}))
		var file bytes.Buffer
		saved := Registrations{HashSeed: 1337, Sources: a.Sources().Snapshots().KeptSources().Saved()}
		_, err := WriteRegistrations(&file, saved, historytest.At, nil)
		must.Succeed(t, err)
		for name, data := range map[string][]byte{"registrations": file.Bytes(), "snapshot": write(t, a, nil)} {
			if err := readBefore(data); (err != nil) != refused {
				t.Errorf("%s of %s: %v", name, what, err)
			}
			var got []image.Source
			into := historytest.Server(t, nil).Sources().Snapshots().Recover(0)
			_, _, err := ReadRegistrations(bytes.NewReader(data), Reading{
				Into: into, Sources: func(all []image.Source) { got = slices.Clone(all) },
			})
			must.Succeed(t, err)
			before := a.Registrations()[0]
			if len(got) != 1 || !slices.Equal(got[0].Registration.Fields(), before.Fields()) {
				t.Errorf("%s of %s: %+v, want %+v", name, what, got, before)
			}
		}
		file.Reset()
		_, _, err = BeginRegistrationsLog(&file, saved, historytest.At, nil)
		must.Succeed(t, err)
		if err := readBefore(file.Bytes()); err == nil || !strings.Contains(err.Error(), "version 4") {
			t.Errorf("a file of %s that changes are appended to: %v", what, err)
		}
	}
	f("a plain source", false, func(*registration.Registration) {})
	f("old fields", false, func(r *registration.Registration) {
		r.Copies, r.Owned, r.Clear, r.Lora, r.Sequence = "set", "drop", "device", "a", "own"
	})
	f("reports", true, func(r *registration.Registration) { r.Reports = registration.ReportsFull })
	f("adapters", true, func(r *registration.Registration) { r.Adapters = []string{"n"} })
	f("address", true, func(r *registration.Registration) { r.Address = "http://n" })
	f("aliases", true, func(r *registration.Registration) { r.Aliases = []string{"n"} })
	f("events none", true, func(r *registration.Registration) {
		r.Endpoint, r.ReplayEndpoint, r.Events, r.CapacityBlocks, r.Approximate, r.Salt = "", "", "none", 8, "count", ""
	})
}
