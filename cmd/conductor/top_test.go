package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/internal/must"
)

// TestOperatorCommands runs top, doctor and dump against a server with a healthy engine and one
// that cannot be reached.
func TestOperatorCommands(t *testing.T) {
	t.Parallel()
	engine := newRuledEngine(t, "7", 0)
	p := serveProcess(t, fmt.Sprintf("sources:\n  - {endpoint: 'tcp://%s', type: vLLM, modelname: m, instance_id: '7', block_size: 16}\n",
		engine.pub.Addr()))
	engine.publish(ruledStored(0, 4))
	eventually(t, "the engine never settled", func() (string, bool) {
		_, body := get(p.url + "/services")
		return body, strings.Contains(body, `"Blocks":4`)
	})
	run := func(status int, args ...string) string {
		t.Helper()
		cmd := command(append(args, "--server", p.url)...)
		out, err := cmd.Output()
		if code := cmd.ProcessState.ExitCode(); code != status {
			t.Errorf("%q: exit status %d, want %d: %v\n%s", args, code, status, err, out)
		}
		return string(out)
	}
	if out := run(0, "doctor"); out != "nothing to do\n" {
		t.Errorf("doctor of a healthy fleet: %s", out)
	}
	post(t, p.url+"/register", `{"endpoint":"tcp://127.0.0.1:1","type":"vLLM","modelname":"m","instance_id":"ill","block_size":16,`+
		`"dp_rank":0}`, 200)
	eventually(t, "no connection was refused", func() (string, bool) {
		_, body := get(p.url + "/services")
		return body, strings.Contains(body, "connection refused")
	})
	if out := run(0, "doctor"); !strings.HasPrefix(out, "info connecting: ill|default|0\n") ||
		!strings.HasSuffix(out, "\n  "+p.url+"/docs/alerts#conductorsourcesconnecting\n") || !strings.Contains(out, "connection refused") {
		t.Errorf("doctor: %s", out)
	}
	var found []advice
	must.Succeed(t, json.Unmarshal([]byte(run(0, "doctor", "--json")), &found))
	if len(found) != 1 || found[0].Source != "ill|default|0" || found[0].Severity != doctor.Info {
		t.Errorf("doctor --json: %+v", found)
	}
	var rows []topRow
	must.Succeed(t, json.Unmarshal([]byte(run(0, "top", "--json", "--sort", "state")), &rows))
	if len(rows) != 2 || rows[0].Instance != "ill" || rows[1].Blocks != 4 {
		t.Errorf("top --json: %+v", rows)
	}
	if out := run(0, "top"); !strings.HasPrefix(out, "2 sources, 1 synced, 4 blocks held 4 times") || strings.Contains(out, "\x1b") {
		t.Errorf("top: %s", out)
	}
	if out := run(0, "dump"); strings.Count(out, "\n") != 1 || !strings.Contains(out, "stored") ||
		!strings.Contains(out, `"worker_id":7,`) {
		t.Errorf("dump: %.300s", out)
	}
	if out := run(0, "services", "--json"); !strings.Contains(out, `"InstanceID": "7"`) {
		t.Errorf("services --json: %.300s", out)
	}
	if out := run(0, "query", "--json", "--model", "m", "--block-size", "16", "--tokens", "1"); !strings.Contains(out,
		`"longest_matched": 0`) {
		t.Errorf("query --json: %.300s", out)
	}
	run(cli.ExitUsage, "top", "--sort", "colour")
	run(cli.ExitUsage, "top", "--interval", "1ms")
	if out, err := command("completion", "bash").Output(); err != nil || !strings.Contains(string(out), "conductor") {
		t.Errorf("no completion: %v", err)
	}
	p.url = "http://127.0.0.1:1"
	for _, command := range []string{"top", "doctor", "dump"} {
		run(1, command)
	}
}

// TestSparkline draws rates relative to the highest.
func TestSparkline(t *testing.T) {
	for want, rates := range map[string][]float64{"": nil, "▁▁": {0, 0}, "▁▄█": {0, 3.5, 7}, "▁█": {-5, 7}} {
		if got := sparkline(rates); got != want {
			t.Errorf("%v: %q, want %q", rates, got, want)
		}
	}
}

// TestTopOfOddAnswers asks a server that answers nonsense.
func TestTopOfOddAnswers(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"sources":[null,{"instance":"a","events_per_s":-5}]}`)
	}))
	defer server.Close()
	if out, err := command("top", "--once", "--server", server.URL).CombinedOutput(); err != nil || !strings.Contains(string(out), "-5.0") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestTopFits holds that the table takes no more lines and columns than the terminal has, and keeps what matters most.
func TestTopFits(t *testing.T) {
	table := new(top)
	table.stats.LMCache.Instances, table.stats.LMCache.Unclaimed = 3, 2
	for i := range 100 {
		table.stats.Sources = append(table.stats.Sources, &topRow{Instance: fmt.Sprintf("prefill-%d", i), Tenant: "default", State: "stale",
			Severity: "error",
			Reason:   `cannot connect to "tcp://10.0.0.1:5557": connection refused`, Blocks: 12345678, Rate: 1234.5, Lag: 12,
			history: make([]float64, maxHistory)})
	}
	draw := func(on screen) []string {
		var b strings.Builder
		table.drawTable(&b, on)
		return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	}
	for _, height := range []int{1, 2, 5, 24, 102, 200} {
		lines := draw(screen{height: height, coloured: true})
		if len(lines) > height || height > 6 && !strings.Contains(strings.Join(lines, ""), "\x1b[31m") {
			t.Errorf("%d lines of %d: %q", len(lines), height, lines)
		}
	}
	for width, heads := range map[int]string{
		0:   "INSTANCE TENANT RANK STATE BLOCKS EVENTS/S LAG MS GAPS FINDINGS WHY",
		200: "INSTANCE TENANT RANK STATE BLOCKS EVENTS/S LAG MS GAPS FINDINGS WHY",
		100: "INSTANCE TENANT RANK STATE BLOCKS EVENTS/S LAG MS FINDINGS WHY",
		80:  "INSTANCE RANK STATE BLOCKS EVENTS/S FINDINGS WHY",
		60:  "INSTANCE RANK STATE FINDINGS WHY",
		40:  "INSTANCE STATE WHY",
		10:  "INSTANCE",
	} {
		lines := draw(screen{width: width})
		for _, line := range lines {
			if n := utf8.RuneCountInString(line); width > 0 && n > width {
				t.Errorf("%d columns of %d: %s", n, width, line)
			}
		}
		at := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "INSTANCE") })
		if at < 0 || width > 10 && strings.Join(strings.Fields(lines[at]), " ") != heads ||
			width > 10 && !strings.Contains(lines[at+1], " cannot") {
			t.Errorf("%d columns: %q, want %s", width, lines[:5], heads)
		}
	}
	if got := fmt.Sprintf("%q", screen{width: 10}.wrap("0 sources, a-very-long-word")); got != `["0 sources," "a-very-lo…"]` {
		t.Errorf("wrapped: %s", got)
	}
}

// TestTopTellsFindings holds that a synced source with an error finding has a colour and a reason, that findings for
// information have neither, and that the header has the sentence of /ready unless all is well.
func TestTopTellsFindings(t *testing.T) {
	draw := func(stats string) string {
		t.Helper()
		table := new(top)
		must.Succeed(t, json.Unmarshal([]byte(stats), &table.stats))
		var b strings.Builder
		table.drawTable(&b, screen{coloured: true})
		return b.String()
	}
	const rows = `"totals":{"sources":4,"asked_tokens":100,"cached_tokens":88},"states":{"synced":3,"stale":1},"sources":[
		{"instance_id":"a","state":"synced","severity":"error","last_error":"over","findings":[
			{"code":"block_size_mismatch","severity":"error"},
			{"code":"larger_blocks","severity":"info"},{"code":"ignored","severity":"warning"}]},
		{"instance_id":"b","state":"synced","severity":"warning","findings":[{"code":"ignored","severity":"warning"}]},
		{"instance_id":"c","state":"synced","severity":"info","findings":[{"code":"larger_blocks","severity":"info"}]},
		{"instance_id":"d","state":"stale","severity":"error","reason":"gap","findings":[{"code":"stale","severity":"error"},
			{"code":"ignored","severity":"warning"}]}]`
	out := draw(`{"summary":"1 of 4 sources has an error finding","summary_severity":"error",` + rows + `}`)
	lines := strings.Split(out, "\n")
	if lines[1] != "1 of 4 sources has an error finding" || !strings.Contains(lines[0], ", 88 % of tokens cached since the start;") {
		t.Errorf("header %q", lines[:2])
	}
	for i, want := range []struct{ colour, why string }{{"\x1b[31m", " block_size_mismatch,ignored\x1b[0m"},
		{"\x1b[33m", " ignored\x1b[0m"}, {"c ", " 0"}, {"\x1b[31m", " gap; ignored\x1b[0m"}} {
		if line := lines[3+i]; !strings.HasPrefix(line, want.colour) || !strings.HasSuffix(line, want.why) {
			t.Errorf("got %q, want %q", line, want)
		}
	}
	if out := draw(`{"summary":"all is well","summary_severity":"ok",` + rows + `}`); strings.Contains(out, "all is well") {
		t.Errorf("a summary of nothing: %s", out)
	}
	if out := draw(`{"summary":"no source is registered","summary_severity":"ok"}`); strings.Contains(out, "cached") ||
		!strings.Contains(out, "\nno source is registered\n") {
		t.Errorf("nothing was asked: %s", out)
	}
}
