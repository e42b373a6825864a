package dynamo

import (
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"kvconductor/conductor"
)

// FuzzLoad reads arbitrary dumps, in both forms: none may stop the process. A
// failed dump leaves nothing. A whole one can be dumped and read again. A line that is left
// out costs no other.
func FuzzLoad(f *testing.F) {
	detailed := `,"detail":{"instance_id":"node","source_rank":3,"source_tenant":"t","pool":true,"lora_name":"l","cache_salt":"s","medium":"TAPE","group_idx":1,` +
		`"backend_id":"b","seq_hash":5,"waiting":false,"local_hashes":[7],"copies":{"0":3},"more_hashes":{"0":[8,9]},"root":true}}`
	for _, text := range []string{
		"{" + slotText("m:default", event()) + "}",
		"{" + slotText("m:default", event(), kept("7", "disk", 1, 3, "1001", "1002 "+local2, "-3 -4"), event(`"worker"`, "null")) + `,"x":{"error":"y"},"z":[` + event() + "]}",
		`{"m:g":{"block_size":4,"model_name":"m","routing_group":"g","sources":[{"instance_id":"node","tenant_id":"t","dp_rank":3,"hash_seed":1337,"endpoint":"tcp://h:1","type":"vLLM",` +
			`"watermark":5,"print":6,"missing":"gap","parts":2}],"events":[` + strings.TrimSuffix(event(), "}") + detailed + `],"names":[{"instance_id":"node","tenant_id":"t","dp_rank":3,"block_hash":1,"seq_hash":2}]}}`,
		"{" + slotText("m:default", strings.TrimSuffix(event(local1, "0"), "}")+`,"detail":{"source_rank":0,"seq_hash":1001,"bare":true}}`) + "}",
		"{" + slotText("m:default", strings.TrimSuffix(event(`"parent_hash":null`, `"parent_hash":5`), "}")+`,"detail":{"source_rank":0,"seq_hash":null,"waiting":true}}`) + "}",
		"{" + slotText("m:default", strings.TrimSuffix(event(`{"block_hash"`, `{"block_hash":1,"tokens_hash":2},{"block_hash"`), "}")+
			`,"detail":{"source_rank":0,"seq_hash":2,"more_hashes":{"1":[1,1001,1001]},"copies":{"0":-1,"1":9223372036854775807}}}`) + "}",
	} {
		f.Add([]byte(text), false)
		line := `{"key":"m:default","block_size":4,"event":` + event() + "}\n"
		f.Add([]byte(line+text+"\n"+line), true)
		f.Add([]byte(`{"key":"m:g","block_size":4,"event":`+strings.TrimSuffix(event(), "}")+detailed+"}\n"+
			`{"key":"m:g","block_size":4,"source":{"instance_id":"node","tenant_id":"t","dp_rank":3,"watermark":5,"hash_seed":1337}}`+"\n"+
			`{"key":"m:g","block_size":4,"name":{"instance_id":"node","tenant_id":"t","dp_rank":3,"block_hash":1,"seq_hash":2}}`), true)
	}
	f.Fuzz(func(t *testing.T, dump []byte, lines bool) {
		closed := make(chan struct{})
		c := conductor.New(conductor.Options{HashSeed: 1337, KeepClientHashes: true, MaxSources: 64, MaxOrphans: 64, Log: zerolog.Nop(), Gate: closed})
		defer c.Close()
		s := &testServer{t: t, conductor: c, dialect: New(Config{Conductor: c, Log: zerolog.Nop()})}
		_, err := s.load(lines, string(dump))
		for _, broken := range c.Check() {
			t.Fatalf("%q: %v", dump, broken)
		}
		if left := c.Snapshot().Sources; err != nil && len(left) > 0 {
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
