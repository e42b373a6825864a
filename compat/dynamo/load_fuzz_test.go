package dynamo

import (
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor"
)

// FuzzLoad reads arbitrary dumps, in both forms: none may stop the process. A
// failed dump leaves nothing. A whole one can be dumped and read again. A line that is left
// out costs no other.
func FuzzLoad(f *testing.F) {
	for _, text := range []string{
		"{" + slotText("m:default", event()) + "}",
		"{" + slotText("m:default", event(), kept("7", "disk", 1, 3, "1001", "1002 "+local2, "-3 -4"),
			event(`"worker"`, "null")) + `,"x":{"error":"y"},"z":[` + event() + "]}",
		`{"m:g":{"block_size":4,"model_name":"m","routing_group":"g","new":[{"a":1}],"events":[` + strings.TrimSuffix(event(), "}") +
			`,"new":{"a":[1]}}]}}`,
		"{" + slotText("m:default", event(local1, "0")) + "}",
		"{" + slotText("m:default", event(`"parent_hash":null`, `"parent_hash":5`)) + "}",
		"{" + slotText("m:default", event(`{"block_hash"`, `{"block_hash":1,"tokens_hash":2},{"block_hash"`)) + "}",
	} {
		f.Add([]byte(text), false)
		line := `{"key":"m:default","block_size":4,"event":` + event() + "}\n"
		f.Add([]byte(line+text+"\n"+line), true)
	}
	f.Fuzz(func(t *testing.T, dump []byte, lines bool) {
		closed := make(chan struct{})
		c := conductor.New(conductor.Options{
			HashSeed: 1337, KeepClientHashes: true, MaxSources: 64, MaxOrphans: 64, Log: zerolog.Nop(), Gate: closed,
		})
		defer c.Close()
		s := &testServer{t: t, conductor: c, dialect: New(Config{Conductor: c, Log: zerolog.Nop()})}
		_, err := s.load(lines, string(dump))
		for _, broken := range c.Check() {
			t.Fatalf("%q: %v", dump, broken)
		}
		if left := c.Sources().Snapshots().Take().Sources; err != nil && len(left) > 0 {
			t.Fatalf("%q: %v, and left %v", dump, err, left)
		}
		if !lines || err != nil {
			return
		}
		// A line more is a block more, whatever is around it.
		const mine = `{"key":"fuzz:mine","block_size":4,"model_name":"fuzz","routing_group":"mine","event":`
		if _, err := s.load(true, mine+event()+"}\n"+string(dump)+"\n"+mine+event(`:7,`, `:8,`)+"}"); err != nil {
			t.Fatalf("%q: %v", dump, err)
		}
		all := strings.Join(s.blocks(), "\n")
		if !strings.Contains(all, "fuzz mine 7/0 device -/1001") || !strings.Contains(all, "fuzz mine 8/0 device -/1001") {
			t.Fatalf("%q: lost a line: %s", dump, all)
		}
	})
}
