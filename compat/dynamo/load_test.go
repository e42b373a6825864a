package dynamo

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/history/peer"
	"example.com/conductor/internal/must"
	"example.com/conductor/tiers"
)

// load applies a dump as one that a peer sent, and returns what was left out.
func (s *testServer) load(lines bool, text string) (skipped string, err error) {
	in := s.conductor.Sources().Snapshots().Recover(0)
	counts := make(map[string]int)
	l := &loader{in: in, skip: func(reason string) { counts[reason]++ }, longest: 4 << 10}
	r := iotest.OneByteReader(strings.NewReader(text))
	if lines {
		err = l.lines(r)
	} else {
		err = l.object(r)
	}
	if err != nil {
		in.Undo()
	} else {
		in.Done()
	}
	if in.Refused > 0 {
		counts[peer.SkipRefused] = in.Refused
	}
	for _, why := range slices.Sorted(maps.Keys(counts)) {
		skipped += fmt.Sprintf(" %s:%d", why, counts[why])
	}
	return strings.TrimPrefix(skipped, " "), err
}

// inReplica runs a test under a fake clock, with a server behind a gate.
func inReplica(t *testing.T, f func(t *testing.T, s *testServer)) {
	t.Helper()
	t.Run("", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f(t, newServerOn(t, Config{}, newNetwork(), make(chan struct{})))
		})
	})
}

// slotText is a slot of a dump, with its key.
func slotText(key string, events ...string) string {
	return fmt.Sprintf(`%q:{"block_size":4,"events":[%s]}`, key, strings.Join(events, ","))
}

// event returns an event of a dump that differs from the usual one by replacements: pairs of
// a text and the text in its place.
func event(changes ...string) string {
	text := kept("7", "device", 0, 0, "null", "1001 "+local1)
	for i := 0; i+1 < len(changes); i += 2 {
		if !strings.Contains(text, changes[i]) {
			panic("nothing to change: " + changes[i])
		}
		text = strings.Replace(text, changes[i], changes[i+1], 1)
	}
	return text
}

// TestLoadSkipsBadItems compares dumps with the dumps of servers that have read them. A part that is left
// out takes no other with it: every dump ends with a valid slot "last".
func TestLoadSkipsBadItems(t *testing.T) {
	good := event(`:7,`, `:99,`)
	last := slotText("last:default", good)
	usual := event()
	f := func(t *testing.T, dump, skipped string, want ...string) {
		t.Helper()
		inReplica(t, func(t *testing.T, s *testServer) {
			s.do("POST", "/register", `{"instance_id":1,"endpoint":"inproc://1/0","model_name":"known","block_size":4}`, 201, done)
			s.do("POST", "/register",
				`{"instance_id":2,"endpoint":"inproc://2/0","model_name":"known:x","routing_group":"y:z","block_size":4}`, 201, done)
			if dump != "" {
				dump += ","
			}
			got, err := s.load(false, "{"+dump+last+"}")
			if err != nil || got != skipped {
				t.Errorf("%s\nerror %v\nskipped %q\n   want %q", dump, err, got, skipped)
			}
			s.holds(want...)
		})
	}
	whole := func(dump string, want ...string) {
		t.Helper()
		f(t, dump, "", want...)
	}
	partly := func(dump, skipped string, want ...string) {
		t.Helper()
		f(t, dump, skipped, want...)
	}
	one := "m default 7/0 device -/1001"

	// Every form there has been.
	whole("")
	whole(slotText("m:default"))
	whole(slotText("m:default", usual), one)
	whole(slotText("known:default", usual), "known default 7/0 device -/1001")
	whole(`"known:default":[`+usual+`]`, "known default 7/0 device -/1001")
	whole(`"known:default":[]`)
	whole(`"known:default":{"events":[`+usual+`]}`, "known default 7/0 device -/1001")
	whole(`"m:default":{"events":[`+usual+`],"block_size":4}`, one)
	whole(slotText("m:default", event(`"residency_domain":"worker",`, "")), one)
	whole(slotText("m:default", event(`"storage_tier":"device",`, "")), one)
	whole(slotText("m:default", event(`"storage_tier":"device"`, `"storage_tier":null`)), one)
	whole(slotText("m:default", event(`,"dp_rank":0`, "")), one)
	whole(slotText("m:default", event(`"start_position":null,`, "", `,"mm_extra_info":null`, "")), one)
	whole(slotText("m:default", event(`"start_position":null`, `"start_position":7`, `"mm_extra_info":null`,
		`"mm_extra_info":{"mm_objects":[{"mm_hash":1,"offsets":[[0,1]]}]}`)), one)
	whole(slotText("m:default", event(`"worker_id":7`, `"state_source":{"a":1},"new":[[]],"worker_id":7`, `"blocks"`, `"new":{},"blocks"`)),
		one)
	whole(`"m:default":{"new":{"events":[1]},"block_size":4,"newer":"x","events":[`+usual+`],"newest":[1,{}]}`, one)
	whole(slotText("m:default", event("1001", signedOf(1001), local1, "-3803038269031200164")), one)
	whole(slotText("m:default", event("1001", "-1")), "m default 7/0 device -/18446744073709551615")
	whole(slotText("m:default", usual, kept("7", "device", 1, 0, "1001", "-5 "+local2),
		kept("7", "disk", 1, 0, "18446744073709551611", "1003 "+local3)),
		one, "m default 7/0 device 1001/18446744073709551611", "m default 7/0 disk 18446744073709551611/1003")
	whole(slotText("m:default", usual, event(`:7,`, `:8,`), event(`"dp_rank":0`, `"dp_rank":3`), event("device", "host_pinned"),
		event("device", "external")),
		one, "m default 7/0 external -/1001", "m default 7/0 host_pinned -/1001", "m default 7/3 device -/1001",
		"m default 8/0 device -/1001")

	// Keys.
	whole(slotText("m", usual), one)
	whole(slotText("m:", usual), one)
	whole(slotText("a:b:g", usual), "a:b g 7/0 device -/1001")
	whole(slotText("known:x:y:z", usual), "known:x y:z 7/0 device -/1001")
	whole(`"a:b":{"block_size":4,"model_name":"a:b:c","routing_group":"d:e","events":[`+usual+`]}`, "a:b:c d:e 7/0 device -/1001")
	whole(`"a:b":{"block_size":4,"model_name":"a","events":[`+usual+`]}`, "a default 7/0 device -/1001")
	whole(`"m:g@8":{"block_size":8,"model_name":"m","routing_group":"g","events":[`+usual+`]},`+
		`"m:g":{"block_size":4,"model_name":"m","routing_group":"g","events":[`+event(`:7,`, `:8,`)+`]}`, "m g 7/0 device -/1001",
		"m g 8/0 device -/1001")
	partly(slotText(":g", usual, usual), "bad_event:2")

	// A block size that no registration has.
	partly(`"m:default":[`+usual+`,`+usual+`]`, "no_block_size:2")
	partly(`"m:default":{"block_size":0,"events":[`+usual+`]}`, "no_block_size:1")
	partly(`"m:default":{"block_size":null,"events":[`+usual+`]}`, "no_block_size:1")
	partly(`"m:default":{"block_size":-4,"events":[`+usual+`]}`, "bad_event:1")
	partly(`"m:default":{"block_size":"4","events":[`+usual+`]}`, "bad_event:1 no_block_size:1")
	partly(`"m:default":{"block_size":99999999999999999999,"events":[`+usual+`]}`, "bad_event:1 no_block_size:1")

	// Slots that are none.
	partly(`"m:default":{"error":"it fell over"}`, "error_slot:1")
	partly(`"m:default":{"block_size":4,"error":{"deep":[1]},"events":[`+usual+`]}`, "error_slot:1", one)
	partly(`"m:default":{"block_size":4,"events":null,"error":"it fell over"}`, "error_slot:1")
	partly(`"m:default":{"block_size":4,"events":{"a":[{"b":{}}]}}`, "bad_event:1")
	partly(`"m:default":{"block_size":4,"events":"none"}`, "bad_event:1")
	partly(`"m:default":{"events":{"a":[{"b":{}}]},"block_size":4}`, "bad_event:1")
	partly(`"m:default":{"events":7}`, "bad_event:1")
	partly(`"m:default":null,"n:default":7,"o:default":"x","p:default":true`, "bad_event:4")
	partly(`"m:default":{"block_size":4,"model_name":7,"routing_group":[],"events":[`+usual+`]}`, "bad_event:2", one)

	// Events about something else.
	other := func(changes ...string) {
		t.Helper()
		partly(slotText("m:default", event(changes...), usual), "unsupported_residency:1", one)
	}
	stored := strings.TrimSuffix(strings.TrimPrefix(usual[strings.Index(usual, `"data":`):], `"data":`), `,"dp_rank":0}}`)
	other(stored, `"cleared"`)
	other(stored, `{"removed":{"block_hashes":[1001]}}`)
	other(stored, `{"later":[]}`)
	other(`"worker",`, `"cache_owner",`)
	other(`"worker",`, `"moon",`)
	other(`"worker",`, `null,`)
	other(`"worker",`, `7,`)
	other(`{"block_hash":1001,"tokens_hash":`+local1+`,"mm_extra_info":null}`, "")

	// Events that cannot be read.
	bad := func(changes ...string) {
		t.Helper()
		partly(slotText("m:default", event(changes...), usual), "bad_event:1", one)
	}
	bad(usual, "7")
	bad(usual, "null")
	bad(usual, "[]")
	bad(usual, "{}")
	bad(usual, `"cleared"`)
	bad(`"worker_id":7`, `"worker_id":null`)
	bad(`"worker_id":7`, `"worker_id":"seven"`)
	bad(`"worker_id":7`, `"worker_id":7.5`)
	bad(`"worker_id":7`, `"worker_id":18446744073709551616`)
	bad(`"device"`, `"moon"`)
	bad(`"device"`, `7`)
	bad(`"dp_rank":0`, `"dp_rank":-1`)
	bad(`"dp_rank":0`, `"dp_rank":4294967295`)
	bad(`"dp_rank":0`, `"dp_rank":4294967296`)
	bad(`"dp_rank":0`, `"dp_rank":"0"`)
	bad(stored, "null")
	bad(stored, "7")
	bad(stored, `[]`)
	bad(stored, `{"stored":7}`)
	bad(`"parent_hash":null`, `"parent_hash":"x"`)
	bad(`"parent_hash":null`, `"parent_hash":1e3`)
	bad(`"block_hash":1001,`, "")
	bad(`"block_hash":1001`, `"block_hash":-9223372036854775809`)
	bad(`"tokens_hash":`+local1+`,`, "")
	bad(local1, "null")
	bad(local1, "0") // none is computed so, and it has a meaning of its own
	bad(`{"block_hash"`, `{"block_hash":5,"tokens_hash":0},{"block_hash"`)
	bad(`{"block_hash"`, `{"block_hash":5,"tokens_hash":5},{"block_hash":6,"tokens_hash":0},{"block_hash"`)
	bad(`{"block_hash"`, `7,{"block_hash"`)
	bad(`{"block_hash"`, `null,{"block_hash"`)
}

func signedOf(n uint64) string { return fmt.Sprint(int64(n)) }

// holds compares what a server holds, without the slot "last", with "model group
// instance/rank tier parent/block", sorted.
func (s *testServer) holds(want ...string) {
	s.t.Helper()
	var got []string
	last := false
	for _, b := range s.blocks() {
		if b == "last default 99/0 device -/1001" {
			last = true
			continue
		}
		got = append(got, b)
	}
	if !slices.Equal(got, want) || !last {
		s.t.Errorf("holds\n     %s\nwant %s\nlast %t", strings.Join(got, "\n     "), strings.Join(want, "\n     "), last)
	}
	for _, err := range s.conductor.Check() {
		s.t.Error(err)
	}
}

// blocks are those of a server's dump, one by one.
func (s *testServer) blocks() []string {
	s.t.Helper()
	var all []string
	snap := s.conductor.Sources().Snapshots().Take()
	for tier := range tierNames {
		snap.Walk(tiers.Tier(tier), func(st *ingest.Stored) bool {
			parent := "-"
			for i, engine := range st.Engine {
				if i == 0 && st.HasParent {
					parent = fmt.Sprint(st.Parent)
				}
				all = append(all, fmt.Sprintf("%s %s %s/%d %s %s/%d", st.Model, st.Tenant, st.Source.Instance, st.Rank, tierNames[tier],
					parent, engine))
				parent = fmt.Sprint(engine)
			}
			return true
		})
	}
	slices.Sort(all)
	return all
}

// One event a line: a line that cannot be read costs itself.
func TestLoadLines(t *testing.T) {
	line := func(event string) string {
		return `{"key":"m:default","block_size":4,"model_name":"m","routing_group":"default","event":` + event + "}\n"
	}
	last := strings.Replace(line(event(`:7,`, `:99,`)), `"m"`, `"last"`, 1)
	f := func(lines, skipped string, want ...string) {
		t.Helper()
		inReplica(t, func(t *testing.T, s *testServer) {
			got, err := s.load(true, lines+last)
			if err != nil || got != skipped {
				t.Errorf("%s\nerror %v\nskipped %q\n   want %q", lines, err, got, skipped)
			}
			s.holds(want...)
		})
	}
	one := "m default 7/0 device -/1001"
	f("", "")
	f("\n \r\n", "")
	f(line(event()), "", one)
	f(strings.ReplaceAll(line(event()), "\n", "\r\n"), "", one)
	f(`{"key":"m:default","block_size":4,"event":`+event()+"}\n", "", one) // of the library Dynamo has for it
	f(`{"new":[{}],"key":"a:b:c","block_size":4,"event":`+event()+"}\n", "", "a:b c 7/0 device -/1001")
	f(`{"key":"m:default","event":`+event()+"}\n", "no_block_size:1")
	f(line(event(`"worker",`, `"moon",`))+line(event()), "unsupported_residency:1", one)
	f(`{"key":"m:default","error":"it fell over"}`+"\n"+line(event()), "error_slot:1", one)
	f("{}\nnull\n7\n[]\n{\"key\":\n"+line("null")+line(event()), "bad_event:6", one)
	f(line(event()[:40])+line(event()), "bad_event:1", one)
	// The last line may lack its end.
	inReplica(t, func(t *testing.T, s *testServer) {
		if got, err := s.load(true, line(event())+strings.TrimSuffix(last, "\n")); err != nil || got != "" {
			t.Errorf("%q %v", got, err)
		}
		s.holds(one)
	})
}

// A dump that ends early, or is none, is an error, and nothing of it stays.
func TestLoadGarbage(t *testing.T) {
	whole := "{" + slotText("m:default", event(), event(`:7,`, `:8,`)) + `,"n:default":{"error":"x"}}`
	inReplica(t, func(t *testing.T, s *testServer) {
		s.register(7, 0, "")
		if _, err := s.load(false, whole); err != nil || len(s.blocks()) != 2 {
			t.Fatalf("%v, %q", err, s.blocks())
		}
	})
	inReplica(t, func(t *testing.T, s *testServer) {
		s.register(7, 0, "")
		before := len(s.conductor.Registrations())
		f := func(text string) {
			t.Helper()
			if _, err := s.load(false, text); err == nil {
				t.Errorf("%q is taken", text)
			}
			if got := s.blocks(); len(got) > 0 {
				t.Errorf("%q leaves %q", text, got)
			}
			if n := len(s.conductor.Sources().Snapshots().Take().Sources); n != before {
				t.Errorf("%q leaves %d sources", text, n)
			}
			for _, err := range s.conductor.Check() {
				t.Errorf("%q: %v", text, err)
			}
		}
		for i := range whole {
			f(whole[:i])
		}
		f("[]")
		f("null")
		f(`"x"`)
		f("<html><body>not here</body></html>")
		f(`{"a" 7}`)
		f(`{7:8}`)
		f(strings.Replace(whole, "1001", "1001 1001", 1))
		f(strings.Replace(whole, "]", "}", 1))
		broken := errors.New("the line is dead")
		for _, lines := range []bool{false, true} {
			in := s.conductor.Sources().Snapshots().Recover(0)
			l := &loader{in: in, skip: func(string) {}, longest: longestValue}
			read := l.object
			if lines {
				read = l.lines
			}
			if err := read(io.MultiReader(strings.NewReader(whole[:200]), iotest.ErrReader(broken))); !errors.Is(err, broken) {
				t.Errorf("%v, want what the reader said", err)
			}
			in.Undo()
		}
	})
}

// dumpOf is a dump of an event that f changes n times.
func dumpOf(lines bool, n int, f func(i int) (key, event string)) string {
	var text strings.Builder
	for i := range n {
		key, e := f(i)
		switch {
		case lines:
			fmt.Fprintf(&text, `{"key":%q,"block_size":4,"event":%s}`+"\n", key, e)
		case i == 0:
			text.WriteString("{" + slotText(key, e))
		default:
			text.WriteString("," + slotText(key, e))
		}
	}
	if !lines {
		text.WriteString("}")
	}
	return text.String()
}

// TestLoadInventedNames gives up a peer that names more sources or models than there may be sources here: nothing
// of it stays.
func TestLoadInventedNames(t *testing.T) {
	f := func(n int, want string, change func(i int) (key, event string)) {
		t.Helper()
		for _, lines := range []bool{false, true} {
			inReplica(t, func(t *testing.T, s *testServer) {
				_, err := s.load(lines, dumpOf(lines, n, change))
				if got := fmt.Sprint(err); !strings.Contains(got, want) {
					t.Errorf("%s, want %s", got, want)
				}
				if blocks, sources := len(s.blocks()), len(s.conductor.Services()); err != nil && blocks+sources > 0 || err == nil &&
					blocks != n {
					t.Errorf("%v: %d blocks, %d sources", err, blocks, sources)
				}
			})
		}
	}
	source := func(i int) (string, string) { return "m:default", event(`:7,`, fmt.Sprintf(":%d,", i)) }
	f(64, "<nil>", source)
	f(65, "more than 64 sources", source)
	f(200, "more than 64 sources", func(i int) (string, string) { return fmt.Sprintf("m:tenant%d", i), event() })
	f(200, "more than 64 models", func(i int) (string, string) { return fmt.Sprintf("m%d:default", i), event() })
}

// TestLoadBeyondMemory gives up a peer whose dump takes memory without blocks that the index could refuse: names
// of one block, and blocks whose parents never come.
func TestLoadBeyondMemory(t *testing.T) {
	f := func(change func(i int) string) {
		t.Helper()
		c := conductor.New(conductor.Options{
			HashSeed: 1337, KeepClientHashes: true, MaxBytesTotal: 1 << 20, Log: zerolog.Nop(), Gate: make(chan struct{}),
		})
		defer c.Close()
		in := c.Sources().Snapshots().Recover(0)
		l := &loader{in: in, skip: func(string) {}, longest: 4 << 10}
		i := 0
		err := l.lines(repeated(func() string {
			i++
			return fmt.Sprintf(`{"key":"m:default","block_size":4,"event":%s}`+"\n", change(i))
		}))
		if !errors.Is(err, ingest.ErrNoRoom) {
			t.Error(err)
		}
		in.Undo()
		if held := len(c.Services()); held > 0 {
			t.Errorf("%d sources are left", held)
		}
	}
	f(func(i int) string { return event("1001", fmt.Sprint(i)) })
	f(func(i int) string {
		return event("1001", fmt.Sprint(2*i), `"parent_hash":null`, fmt.Sprintf(`"parent_hash":%d`, 2*i+1))
	})
}

// repeated is a reader of texts without end.
func repeated(next func() string) io.Reader { return &repeatedReader{next: next} }

type repeatedReader struct {
	next func() string
	left string
}

func (r *repeatedReader) Read(p []byte) (int, error) {
	if r.left == "" {
		r.left = r.next()
	}
	n := copy(p, r.left)
	r.left = r.left[n:]
	return n, nil
}

// TestLoadChildrenFirst has a chain of 50,000 blocks from its end to its beginning. Each is looked at a few
// times, not once for each other one.
func TestLoadChildrenFirst(t *testing.T) {
	const n = 50_000
	c := conductor.New(conductor.Options{HashSeed: 1337, KeepClientHashes: true, Log: zerolog.Nop(), Gate: make(chan struct{})})
	defer c.Close()
	in := c.Sources().Snapshots().Recover(0)
	l := &loader{in: in, skip: func(string) {}, longest: 4 << 10}
	must.Succeed(t, l.lines(strings.NewReader(dumpOf(true, n, func(i int) (string, string) {
		if i == n-1 {
			return "m:default", event("1001", "1")
		}
		return "m:default", event("1001", fmt.Sprint(n-i), `"parent_hash":null`, fmt.Sprintf(`"parent_hash":%d`, n-i-1))
	}))))
	in.Done()
	if in.Blocks != n || c.Services()[0].Blocks != n {
		t.Errorf("%d blocks came, %d are held", in.Blocks, c.Services()[0].Blocks)
	}
}

// A decoder keeps a value until its end. One that does not end costs the dump, not the memory.
func TestLoadEndlessValue(t *testing.T) {
	inReplica(t, func(t *testing.T, s *testServer) {
		endless := strings.Repeat("a", 64<<10)
		for _, begin := range []string{`{"`, `{"m:default": "`, `{"m:default": {"`, `{"m:default": {"events": [{"`,
			`{"m:default": {"block_size": 4, "events": [{"event": "`, `{"m:default": {"new": ["`} {
			if _, err := s.load(false, begin+endless); err == nil || !strings.Contains(err.Error(), "a value of more than 4096 bytes") {
				t.Errorf("%s: %v", begin, err)
			}
		}
	})
}
