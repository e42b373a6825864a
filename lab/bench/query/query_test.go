package query

import (
	"bufio"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"example.com/conductor/config"
	"example.com/conductor/internal/must"
)

var small = Load{Tokens: 100, BlockSize: 8, Workers: 9, Holders: 3, Blocks: 200, Hit: 0.5}

// Half of a prompt is its family's, nothing else is shared, and holders are distinct.
func TestLoadSharesFamilies(t *testing.T) {
	l := small
	if l.heldBlocks() != 6 || l.chainLength() != 6 || l.families() != 34 {
		t.Errorf("%d blocks held of %d in %d families", l.heldBlocks(), l.chainLength(), l.families())
	}
	seen := make(map[string]bool)
	for f := range l.families() {
		prompt, stored := l.appendPrompt(nil, f), l.appendStored(nil, f)
		if len(prompt) != 100 || len(stored) != 48 || !slices.Equal(prompt[:48], stored) {
			t.Errorf("prompt %d does not begin as its family", f)
		}
		seen[fmt.Sprint(stored[:8])] = true
		holders := l.holdersOf(f)
		slices.Sort(holders)
		if len(slices.Compact(holders)) != 3 || holders[0] < 0 || holders[2] > 8 {
			t.Errorf("prompt %d is held by %v", f, holders)
		}
	}
	if len(seen) != l.families() {
		t.Errorf("%d of %d families begin differently", len(seen), l.families())
	}
	l.Hit = 0
	if prompt, stored := l.appendPrompt(nil, 0), l.appendStored(nil, 0); len(stored) != 96 || slices.Equal(prompt[:8], stored[:8]) {
		t.Error("prompts nobody holds are in the index")
	}
}

func TestConfigCheck(t *testing.T) {
	good := Config{Load: small, Codec: JSON, Connections: 1, Cores: 1, Duration: 1}
	must.Report(t, good.checkConfig())
	f := func(want string, change func(*Config)) {
		t.Helper()
		c := good
		change(&c)
		if err := c.checkConfig(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %q", err, want)
		}
	}
	f("tokens", func(c *Config) { c.Tokens = 7 })
	f("blocks", func(c *Config) { c.Blocks = 0 })
	f("holders", func(c *Config) { c.Holders = 10 })
	f("window is -1", func(c *Config) { c.Window = -1 })
	f("hit", func(c *Config) { c.Hit = 1.1 })
	f(`"xml"`, func(c *Config) { c.Codec = "xml" })
	f("cores", func(c *Config) { c.Cores = 0 })
	f("connections", func(c *Config) { c.Connections = 0 })
	f("load is 1", func(c *Config) { c.Share = 1 })
	f("load is measured over HTTP/1.1", func(c *Config) { c.Share, c.HTTP2 = 0.5, true })
	f("snapshot", func(c *Config) { c.Snapshot = true })
	f("batches is -1", func(c *Config) { c.Batches = -1 })
	f("changes is -1", func(c *Config) { c.Changes = -1 })
	f("changes is 10001", func(c *Config) { c.Changes = 10_001 })
	f("reports is -1", func(c *Config) { c.Reports = -1 })
	f("new tokens is 7, must be from 8 to ", func(c *Config) { c.Reports, c.NewTokens = 1, 7 })
	most := 8 * mostNewBlocks // 8 tokens a block
	f(fmt.Sprintf("new tokens is 200000, must be from 8 to %d", most), func(c *Config) { c.Reports, c.NewTokens = 1, 200_000 })
	f("new tokens", func(c *Config) { c.Reports, c.NewTokens = 1, most+8 })
	good.Reports, good.NewTokens = 1, most
	must.Report(t, good.checkConfig())
	f("duration", func(c *Config) { c.Duration = 0 })
	f("duration is 999ms, must be at least 1s with a trace", func(c *Config) {
		c.Share, c.Trace, c.Duration = 0.5, "x", 999*time.Millisecond
	})
	if _, err := Run(t.Context(), Config{}); err == nil {
		t.Error("a bench of nothing runs")
	}
}

// A list of the longest reports that a Config may have stays within the limits of the server.
func TestListOfReportsIsAccepted(t *testing.T) {
	c := Config{Load: small, Reports: 2_000_000_000, NewTokens: 8 * mostNewBlocks}
	limits := config.Default().Limits
	if n := len(c.reportBody(c.Reports - reportList)); int64(n) > limits.MaxBody {
		t.Errorf("a list has %d bytes, more than the %d of limits.max_body", n, limits.MaxBody)
	}
	if n := reportList * (1 + mostNewBlocks); n > limits.MaxTokens {
		t.Errorf("a list has %d hashes, more than the %d of limits.max_tokens", n, limits.MaxTokens)
	}
}

// Every codec carries the same prompt.
func TestBodiesCarryPrompt(t *testing.T) {
	l := small
	prompt := append(l.appendPrompt(nil, 3), 0, 127, 128, 255, 256, 65_535, 65_536, 1<<32-1)
	for _, codec := range codecs {
		body, err := l.encodeBody(codec, prompt)
		must.Succeed(t, err)
		var got []uint32
		raw := func(b []byte) {
			for ; len(b) >= 4; b = b[4:] {
				got = append(got, binary.LittleEndian.Uint32(b))
			}
		}
		fields := make(map[string]any)
		switch codec {
		case JSON, JSONBase64:
			var b struct {
				TokenIDs []uint32 `json:"token_ids"`
				Base64   string   `json:"token_ids_b64"`
			}
			must.Succeed(t, json.Unmarshal(body, &b))
			decoded, err := base64.StdEncoding.DecodeString(b.Base64)
			must.Succeed(t, err)
			got = b.TokenIDs
			raw(decoded)
			err = json.Unmarshal(body, &fields)
			must.Succeed(t, err)
		default:
			must.Succeed(t, msgpack.Unmarshal(body, &fields))
			switch v := fields["token_ids"].(type) {
			case []byte:
				raw(v)
			case []any:
				var b struct {
					TokenIDs []uint32 `msgpack:"token_ids"`
				}
				must.Succeed(t, msgpack.Unmarshal(body, &b))
				got = b.TokenIDs
			}
		}
		if !slices.Equal(got, prompt) || fields["model"] != model || fmt.Sprint(fields["block_size"]) != "8" || len(fields) != 3 {
			t.Errorf("%s: got %v and %v", codec, got, fields)
		}
	}
	if _, err := l.encodeBody("xml", prompt); err == nil {
		t.Error("a codec nobody knows encodes")
	}
}

// Answers are compared whole: other instances, other counts and missing rows show.
func TestCheckAnswer(t *testing.T) {
	l := small
	answer := func(change func(map[string]map[string]int)) map[string]map[string]int {
		rows := make(map[string]map[string]int)
		for i := range l.Workers {
			rows[instanceName(i)] = map[string]int{"longest_matched": 0}
		}
		for _, i := range l.holdersOf(5) {
			rows[instanceName(i)]["longest_matched"] = 48
		}
		change(rows)
		return rows
	}
	holder := instanceName(l.holdersOf(5)[1])
	for name, change := range map[string]func(map[string]map[string]int){
		"":        func(map[string]map[string]int) {},
		"short":   func(r map[string]map[string]int) { r[holder]["longest_matched"] = 40 },
		"missing": func(r map[string]map[string]int) { delete(r, holder) },
		"renamed": func(r map[string]map[string]int) { r["x"] = r[holder]; delete(r, holder) },
		"more": func(r map[string]map[string]int) {
			for n := range r {
				r[n]["longest_matched"] = 48
			}
		},
	} {
		rows := answer(change)
		js, err := json.Marshal(map[string]any{"default": rows})
		must.Succeed(t, err)
		packed, err := msgpack.Marshal(map[string]any{"instances": rows})
		must.Succeed(t, err)
		for codec, body := range map[string][]byte{JSON: js, MsgpackBin: packed} {
			if err := l.checkAnswer(codec, 5, body); (err == nil) != (name == "") {
				t.Errorf("%s answer in %s: %v", name, codec, err)
			}
			if err := l.checkAnswer(codec, 5, body[:len(body)-1]); err == nil {
				t.Errorf("a cut answer in %s passes", codec)
			}
		}
	}
}

// Answers are read with a content length and in chunks, and nothing else passes for one.
func TestConnectionReads(t *testing.T) {
	f := func(sent string, status int, body, failure string) {
		t.Helper()
		client, server := net.Pipe()
		defer client.Close()
		go func() {
			io.WriteString(server, sent)
			server.Close()
		}()
		c := &connection{c: client, r: bufio.NewReaderSize(client, 64)}
		for range 2 {
			gotStatus, got, err := c.readAnswer()
			if failure != "" {
				if err == nil || !strings.Contains(err.Error(), failure) {
					t.Errorf("%q: error %v, want one about %q", sent, err, failure)
				}
				return
			}
			if err != nil || gotStatus != status || string(got) != body {
				t.Errorf("%q: got %d %q, %v", sent, gotStatus, got, err)
			}
		}
	}
	long := strings.Repeat("x", 200)
	twice := func(s string) string { return s + s }
	f(twice("HTTP/1.1 200 OK\r\ncontent-length: 200\r\nX: y\r\n\r\n"+long), 200, long, "")
	f(twice("HTTP/1.1 400 Bad Request\r\nContent-Length:0\r\n\r\n"), 400, "", "")
	f(twice("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nc8\r\n"+long+"\r\n0\r\n\r\n"), 200, "abc"+long, "")
	f("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", 0, "", "cut off")
	f("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", 0, "", "bad Content-Length")
	f("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n", 0, "", "malformed chunked")
	f("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 0, "", "chunk length")
	f("HTTP/1.1 2x0 OK\r\n\r\n", 0, "", "malformed HTTP status code")
	f("SSH-2.0\r\n\r\n", 0, "", "malformed HTTP")
	f("", 0, "", "cannot read an answer")
}

func TestRefusedStatus(t *testing.T) {
	must.Report(t, checkStatus(200, nil))
	if err := checkStatus(400, []byte(`{"error":"token_ids is required"}`)); err == nil ||
		!strings.Contains(err.Error(), "token_ids is required") {
		t.Errorf("got %v", err)
	}
}
