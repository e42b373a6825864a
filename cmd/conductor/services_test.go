package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"example.com/conductor/client"
	"example.com/conductor/cmd/internal/cli"
	"example.com/conductor/internal/must"
)

// listed is a list of 1,000 sources, 984 of which have a finding, and some more.
func listed() *servicesAnswer {
	answer := new(servicesAnswer)
	for i := range 1000 {
		s := client.Service{InstanceID: fmt.Sprintf("prefill-%d", i), TenantID: "default", Type: "vLLM", ModelName: "org/deepseek",
			BlockSize: 16, State: "synced"}
		if i < 984 {
			s.Findings = []client.ServiceFinding{{Code: "silent", Severity: "warning", Message: fmt.Sprintf("%d is silent", i)}}
		}
		if i >= 990 {
			s.State, s.Reason = "stale", "connection refused"
			s.Findings = []client.ServiceFinding{{Code: "stale", Message: "the table has it"}}
		}
		if i == 999 {
			s.InstanceID, s.TenantID, s.ModelName, s.Aliases, s.LoraName = "decode-1", "acme", "qwen", []string{"chat"}, "sql"
		}
		answer.Services = append(answer.Services, s)
	}
	return answer
}

// listedServer serves a list.
func listedServer(t *testing.T, answer *servicesAnswer) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		must.Report(t, json.NewEncoder(w).Encode(map[string]any{"count": len(answer.Services), "services": answer.Services, "more": 1}))
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// TestServicesOfALargeFleet holds that a source is one line, that many findings are one, and what the flags choose.
func TestServicesOfALargeFleet(t *testing.T) {
	url := listedServer(t, listed())
	run := func(flags ...string) (out, errs string) {
		t.Helper()
		status, out, errs := runCLI(append([]string{"services", "--server", url}, flags...)...)
		if status != cli.ExitFine {
			t.Fatalf("%q: %d %s", flags, status, errs)
		}
		return out, errs
	}
	lines := func(want int, errs string, flags ...string) string {
		t.Helper()
		out, said := run(flags...)
		if n := strings.Count(out, "\n"); n != want || said != errs {
			t.Errorf("%q: %d lines, want %d, %q, want %q: %.300s", flags, n, want, said, errs, out)
		}
		return out
	}
	out := lines(1001+3, "")
	for _, want := range []string{"  synced  0      -         0       0     0         -        silent\n",
		"\n984 remarks about these sources (--details prints each):\nsilent, 984 times, such as prefill-0|default|0: 0 is silent\n",
		"stale   0      -         0       0     0         -        connection refused\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %.2000s", want, out)
		}
	}
	lines(1001+2*984, "", "--details")
	if out := lines(2+2, "", "--instance", "prefill-7"); !strings.HasSuffix(out, "\nprefill-7|default|0 silent: 7 is silent\n") {
		t.Errorf("one source: %s", out)
	}
	lines(1+11+3, "", "--instance", "prefill-1[0-9]", "--instance=prefill-3")
	lines(1+10, "", "--state", "stale")
	lines(1+10, "", "--state", "s[t]a*,failed")
	lines(1+984+3, "", "--finding", "*")
	lines(2, "", "--tenant", "acme", "--model", "chat")
	lines(2, "", "--model", "qwen+sql")
	lines(1+999+3, "", "--model", "*deep*")
	lines(1, "none of 1000 sources has the instance prefil-1; did you mean \"prefill-1\"?\n", "--instance", "prefil-1")
	lines(1, "none of 1000 sources has the state failed\n", "--state", "failed")
	lines(1, "none of 1000 sources has all that the flags name\n", "--tenant", "acme", "--finding", "silent")

	plain, _ := run("--json")
	var whole, chosen struct {
		Services []json.RawMessage
		More     int
	}
	must.Succeed(t, json.Unmarshal([]byte(plain), &whole))
	part, _ := run("--json", "--state", "stale")
	must.Succeed(t, json.Unmarshal([]byte(part), &chosen))
	if len(whole.Services) != 1000 || len(chosen.Services) != 10 || chosen.More != 1 {
		t.Errorf("--json: %d, %d of them stale, %d", len(whole.Services), len(chosen.Services), chosen.More)
	}

	if part, _ := run("--json", "--fleet", "--instance", "prefill-7"); !strings.Contains(part, `"count": 1,`) {
		t.Errorf("--json --fleet: %.200s", part)
	}

	_, none, errs := runCLI("services", "--server", listedServer(t, new(servicesAnswer)))
	if strings.Count(none, "\n") != 1 || errs != "no source is registered: conductor register adds one\n" {
		t.Errorf("none: %q %q", none, errs)
	}
	refused := func(want string, flags ...string) {
		t.Helper()
		status, _, errs := runCLI(append([]string{"services"}, flags...)...)
		if status != cli.ExitUsage || errs != "conductor: "+want+"\n" {
			t.Errorf("%q: %d %q", flags, status, errs)
		}
	}
	refused(`--state: "sync" is none of synced, approximate, paused, replaying, partial, connecting, stale, failed`, "--state", "sync")
	refused(`--state: "stael" is no state; did you mean "stale"?`, "--state", "stael")
	refused(`--instance: "a[" is no pattern: a [ needs its ], or a \ before it`, "--instance", "a[")
	refused(`--json and --watch exclude each other`, "--json", "--watch")
	refused(`--fleet and --state exclude each other`, "--fleet", "--state", "stale")
}

// TestChosenJSON holds that an answer in JSON has of each list the rows that the flags ask for, and the count of its sources.
func TestChosenJSON(t *testing.T) {
	const answer = `{"count":2,"services":[{"InstanceID":"a","TenantID":"t","ModelName":"m","State":"stale"},` +
		`{"InstanceID":"b","TenantID":"u","ModelName":"n","State":"synced"}],` +
		`"discovery":[{"InstanceID":"a","TenantID":"t"},{"InstanceID":"c","TenantID":"u"}],"lmcache":[{"InstanceID":"a"}],` +
		`"unclaimed":[{"Topic":"kv"}],"unregistered":[{"TenantID":"t","ModelName":"x"},{"TenantID":"u","ModelName":"n"}],` +
		`"tenants":["t","u"]}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, answer) }))
	defer server.Close()
	type row struct{ InstanceID, ModelName string }
	var got struct {
		Count                                                 int
		Services, Discovery, LMCache, Unclaimed, Unregistered []row
		Tenants                                               []string
	}
	f := func(want string, flags ...string) {
		t.Helper()
		_, out, _ := runCLI(append([]string{"services", "--json", "--server", server.URL}, flags...)...)
		got.Count, got.Services, got.Discovery, got.LMCache, got.Unclaimed, got.Unregistered = -1, nil, nil, nil, nil, nil
		must.Succeed(t, json.Unmarshal([]byte(out), &got))
		if text := fmt.Sprint(got); text != want {
			t.Errorf("%q:\ngot  %s\nwant %s", flags, text, want)
		}
	}
	f("{2 [{a m} {b n}] [{a } {c }] [{a }] [{ }] [{ x} { n}] [t u]}")
	f("{1 [{a m}] [{a }] [] [] [] [t u]}", "--instance", "a")
	f("{1 [{a m}] [{a }] [] [] [{ x}] [t u]}", "--tenant", "t")
	f("{1 [{b n}] [] [] [] [{ n}] [t u]}", "--model", "n")
	f("{1 [{a m}] [] [] [] [] [t u]}", "--state", "stale")
	f("{0 [] [{c }] [] [] [] [t u]}", "--instance", "c")
}

// TestWatchOfServices holds which sources are printed again, and what is said while the server does not answer.
func TestWatchOfServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := func(instance, state string, blocks int, codes ...string) client.Service {
			s := client.Service{InstanceID: instance, TenantID: "t", State: state, Blocks: blocks}
			for _, code := range codes {
				s.Findings = append(s.Findings, client.ServiceFinding{Code: code})
			}
			return s
		}
		looks := []*servicesAnswer{
			{Services: []client.Service{source("a", "connecting", 0), source("b", "synced", 7)}}, // the first, before the watch
			{Services: []client.Service{source("a", "synced", 1), source("b", "synced", 8)}},
			nil, nil,
			{Services: []client.Service{source("b", "synced", 9, "silent"), source("c", "synced", 1)}},
			{Services: []client.Service{source("b", "synced", 9, "silent"), source("c", "synced", 2)}},
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var out, errs strings.Builder
		n := 0
		table := &sourceTable{sourceLayout: sourcesOfServer, widths: make([]int, len(sourcesOfServer.columns))}
		w := &sourceWatch{table: table, out: &out, errs: &errs,
			shown: func(*client.Service) bool { return true },
			read: func(context.Context) (*servicesAnswer, error) {
				if n++; n == len(looks)-1 {
					cancel()
				}
				if looks[n] == nil {
					return nil, errors.New("no server listens")
				}
				return looks[n], nil
			}}
		began := time.Now()
		w.follow(ctx, looks[0])
		var got []string
		for line := range strings.Lines(out.String()) {
			words := strings.Fields(line)
			got = append(got, words[0]+" "+words[4]+" "+words[len(words)-1])
		}
		if want := "a synced -, b synced silent, c synced -, a gone -"; strings.Join(got, ", ") != want {
			t.Errorf("got %q, want %s, of %s", got, want, out.String())
		}
		if errs.String() != "no server listens; still watching\nthe server answers again\n" || time.Since(began) != 5*watchEvery {
			t.Errorf("%q after %s", errs.String(), time.Since(began))
		}
	})
}

// TestWatchOfChosenServices holds that a source which no longer has what the flags ask for is printed as it is now, once, and
// is gone only if the server has it no more.
func TestWatchOfChosenServices(t *testing.T) {
	list := func(states ...string) *servicesAnswer {
		answer := new(servicesAnswer)
		for i, state := range states {
			if state != "" {
				answer.Services = append(answer.Services, client.Service{InstanceID: string(rune('a' + i)), State: state})
			}
		}
		return answer
	}
	var next *servicesAnswer
	var out strings.Builder
	w := &sourceWatch{table: &sourceTable{sourceLayout: sourcesOfServer}, out: &out, errs: &out,
		shown: func(s *client.Service) bool { return s.State == "stale" },
		read:  func(context.Context) (*servicesAnswer, error) { return next, nil }}
	w.known = w.choose(list("stale", "stale", "synced"))
	f := func(want string, states ...string) {
		t.Helper()
		out.Reset()
		next = list(states...)
		w.look(t.Context())
		var got []string
		for line := range strings.Lines(out.String()) {
			words := strings.Fields(line)
			got = append(got, words[0]+" "+words[3])
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%q: got %q, want %s", states, got, want)
		}
	}
	f("a synced, b gone", "synced", "", "synced")
	f("", "partial", "", "")
	f("a stale", "stale", "", "")
	f("b stale, a gone", "", "stale")
}

// TestWhyText holds that WHY has no finding for information, and none that the state says.
func TestWhyText(t *testing.T) {
	f := func(want, state, reason string, findings ...client.ServiceFinding) {
		t.Helper()
		if got := whyText(&client.Service{State: state, Reason: reason, LastError: "EOF", Findings: findings}); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	larger := client.ServiceFinding{Code: "larger_blocks", Severity: "info"}
	wrong := client.ServiceFinding{Code: "block_size_mismatch", Severity: "error"}
	f("", "synced", "", larger)
	f("block_size_mismatch", "synced", "", larger, wrong)
	f("gap; block_size_mismatch", "stale", "gap", client.ServiceFinding{Code: "stale", Severity: "error"}, wrong, larger)
	f("EOF", "connecting", "", larger)
}

// TestServicesFit holds that a source is one line of a terminal, from which the columns leave that matter least.
func TestServicesFit(t *testing.T) {
	for width, heads := range map[int]string{
		0:   strings.Join(sourcesOfServer.columns, " "),
		250: strings.Join(sourcesOfServer.columns, " "),
		120: "INSTANCE TENANT RANK TYPE MODEL BLOCK STATE LAST SEQ BLOCKS GAPS REPLAYED DROPPED WHY",
		80:  "INSTANCE TENANT RANK MODEL STATE BLOCKS WHY",
		40:  "INSTANCE STATE WHY",
		12:  "INSTANCE",
	} {
		table := &sourceTable{sourceLayout: sourcesOfServer, on: screen{width: width}}
		var out strings.Builder
		s := client.Service{InstanceID: "prefill-1", TenantID: "default", Type: "vLLM", ModelName: "Qwen/Qwen3-8B", BlockSize: 16,
			State: "stale", Reason: "cannot connect to tcp://10.0.0.1:5557: connection refused", DroppedBy: map[string]uint64{"seed": 1}}
		table.print(&out, slices.Clone(sourcesOfServer.columns), sourceCells(&s))
		s.ModelName = "meta-llama/a-name-that-is-as-long-as-the-whole-line-of-a-terminal-of-eighty-columns"
		table.print(&out, sourceCells(&s))
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		for _, line := range lines {
			if n := utf8.RuneCountInString(line); width > 0 && n > width {
				t.Errorf("%d columns of %d: %s", n, width, line)
			}
		}
		if has := strings.Contains(lines[2], " default "); has != strings.Contains(heads, "TENANT") {
			t.Errorf("%d columns: the second call has others than the header: %q", width, lines)
		}
		if got := strings.Join(strings.Fields(lines[0]), " "); len(lines) != 3 || width > 12 && got != heads ||
			width > 12 && !strings.Contains(lines[1], " cannot connect") {
			t.Errorf("%d columns: %q, want %s", width, lines, heads)
		}
	}
}

// TestFleetSaysWhyNone holds that a list of a fleet without a source says why, on standard error.
func TestFleetSaysWhyNone(t *testing.T) {
	f := func(answer, want string, flags ...string) {
		t.Helper()
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, answer) }))
		defer server.Close()
		status, out, errs := runCLI(append([]string{"services", "--fleet", "--server", server.URL}, flags...)...)
		if status != cli.ExitFine || strings.Count(out, "\n") != 1 || errs != want {
			t.Errorf("%d %q %q, want %q", status, out, errs, want)
		}
	}
	three := `{"complete":true,"services":[{"InstanceID":"a"},{"InstanceID":"b"},{"InstanceID":"zy"}]}`
	f(three, "none of 3 sources has the instance qq\n", "--instance", "qq")
	f(three, "none of 3 sources has the instance abcde\n", "--instance", "abcde")
	f(`{"complete":true}`, "no source is registered: conductor register adds one\n")
	f(`{}`, "no source is registered: conductor register adds one\n"+
		"the store does not answer: states of other replicas are not known, or old\n")
}

// TestFleetFits holds that a source of a fleet is one line of a terminal too, whose last column names a replica.
func TestFleetFits(t *testing.T) {
	for width, heads := range map[int]string{
		0:  strings.Join(sourcesOfFleet.columns, " "),
		80: "INSTANCE TENANT RANK MODEL REPLICAS",
		60: "INSTANCE REPLICAS",
		30: "INSTANCE REPLICAS",
	} {
		table := &sourceTable{sourceLayout: sourcesOfFleet, on: screen{width: width}}
		s := fleetSource{InstanceID: "prefill-1", TenantID: "default", Type: "vLLM", ModelName: "Qwen/Qwen3-8B", BlockSize: 16,
			Registered: "client"}
		for i := range 3 {
			s.Replicas = append(s.Replicas, struct{ ID, URL, State string }{"", fmt.Sprintf("http://10.0.0.%d:13333", i), "synced"})
		}
		var out strings.Builder
		table.print(&out, slices.Clone(sourcesOfFleet.columns), s.cells())
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		for _, line := range lines {
			if n := utf8.RuneCountInString(line); width > 0 && n > width {
				t.Errorf("%d columns of %d: %s", n, width, line)
			}
		}
		shown := strings.Contains(lines[1], " http://10.0.0.0:13333 synced")
		if got := strings.Join(strings.Fields(lines[0]), " "); len(lines) != 2 || got != heads || shown != (width != 30) {
			t.Errorf("%d columns: %q, want %s", width, lines, heads)
		}
		if all := strings.Contains(lines[1], "10.0.0.2:13333 synced"); all != (width == 0) {
			t.Errorf("%d columns: %q", width, lines)
		}
	}
}
