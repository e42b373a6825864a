package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/conductor/internal/must"
)

// TestShardsSoak lets three replicas with shards and snapshot.dir serve fleets for SOAK_FOR, while registrations come, go
// and are replaced, settings are read again, snapshots are asked for, routers and LMCache report, and replicas stop, start and hang at
// random. About once a minute it stops the fleets: each replica must have what the engines hold, /admin/check must find
// nothing, and no settled answer may have been wrong. The log of no process may tell of a race, a panic or a broken
// invariant at any time. Build it with -race.
func TestShardsSoak(t *testing.T) {
	t.Parallel()
	text := os.Getenv("SOAK_FOR")
	if text == "" {
		t.Skip("SOAK_FOR does not say how long, as make scale-faults does")
	}
	within, err := time.ParseDuration(text)
	must.Succeed(t, err)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	s := &soak{t: t, rng: rand.New(rand.NewPCG(seed, 0)), models: 3}
	shared := openOne(t)
	s.arena = newArenaOf(t, "cluster: {mode: shards}\n", shared, s.models, s.place)
	end := time.Now().Add(within)
	for rounds := 1; time.Now().Before(end); rounds++ {
		for pause := time.Now().Add(time.Minute); time.Now().Before(pause) && time.Now().Before(end); {
			s.disturb()
			s.scanLogs()
		}
		s.calm()
		s.whole(fmt.Sprintf("round %d, %s", rounds, s.counted()))
		s.check()
		s.scanLogs()
	}
	s.end()
	s.scanLogs()
}

// soak is an arena in which things happen at random.
type soak struct {
	*arena
	t       *testing.T
	rng     *rand.Rand
	models  int
	guests  []string       // bodies of registrations next to those of the fleets
	made    int            // guests so far
	nodes   []lmcacheNode  // guests that LMCache reports on
	times   map[string]int // what has happened how often
	scanned map[*process]int
}

// place returns what the settings of a replica say of its snapshots.
func (s *soak) place(*runningReplica) string {
	return fmt.Sprintf("snapshot: {interval: 1s, dir: %q}\n", filepath.Join(s.t.TempDir(), "snapshots"))
}

// disturb lets something happen, and a moment pass.
func (s *soak) disturb() {
	s.t.Helper()
	r := s.replicas[s.rng.IntN(len(s.replicas))]
	for _, kind := range []struct {
		name   string
		weight int
		do     func(*runningReplica)
	}{
		{"restarts", 3, func(r *runningReplica) { s.restart(r, syscall.SIGTERM) }},
		{"kills", 1, func(r *runningReplica) { s.restart(r, syscall.SIGKILL) }},
		{"hangs", 1, s.hang},
		{"guests", 8, s.invite},
		{"goodbyes", 6, s.dismiss},
		{"replacements", 4, s.replace},
		{"reloads", 4, s.reload},
		{"questions", 6, s.question},
		{"reports", 4, s.report},
		{"pushes", 6, s.push},
	} {
		if s.rng.IntN(37) < kind.weight {
			if s.times == nil {
				s.times = make(map[string]int)
			}
			s.times[kind.name]++
			kind.do(r)
			if s.rng.IntN(2) == 0 {
				break
			}
			r = s.replicas[s.rng.IntN(len(s.replicas))]
		}
	}
	s.work(time.Duration(s.rng.IntN(1500)) * time.Millisecond)
}

// counted says what has happened how often.
func (s *soak) counted() string { return fmt.Sprint(s.times) }

// restart ends a replica by a signal, and starts it again with its settings and its directory.
func (s *soak) restart(r *runningReplica, by syscall.Signal) {
	s.t.Helper()
	must.Succeed(s.t, r.cmd.Process.Signal(by))
	r.cmd.Wait()
	s.scan(r.process)
	s.asked.Remove(r.url)
	r.peers.Turn(nowhere)
	s.work(time.Duration(s.rng.IntN(7000)) * time.Millisecond) // shorter or longer than its lease
	old := r.cmd
	cmd := exec.Command(old.Path, old.Args[1:]...)
	cmd.Env = old.Env
	r.process = startCommand(s.t, cmd)
	r.peers.Turn(strings.TrimPrefix(r.url, "http://"))
	if s.rng.IntN(3) > 0 {
		s.awaitReady(r)
	}
	must.Succeed(s.t, s.asked.Add(r.url))
}

// hang stops a replica for shorter or longer than its lease, and than others wait for it.
func (s *soak) hang(r *runningReplica) {
	s.stopFor(r.process, time.Duration(s.rng.IntN(20_000))*time.Millisecond)
}

// awaitReady waits until a replica is ready. Fleets publish meanwhile, for some minutes: on a busy machine it may never catch up with
// them. Then they stop, and it has to come to an end as long as it gets on.
func (s *soak) awaitReady(r *runningReplica) {
	s.t.Helper()
	var ready string
	isReady := func() (string, bool) {
		status, text := get(r.url + "/ready")
		ready = text
		return waiting(text, r.process), status == 200
	}
	for began := time.Now(); time.Since(began) < 3*time.Minute; s.work(50 * time.Millisecond) {
		if _, ok := isReady(); ok {
			return
		}
	}
	err := s.stage.Quiet(s.t.Context(), 20*time.Minute, func() error {
		if !comesTrue(isReady) {
			return errors.New("it stands still")
		}
		return nil
	})
	if err != nil {
		_ = r.cmd.Process.Signal(syscall.SIGQUIT) // its log has all goroutines then
		_ = r.cmd.Wait()
		s.t.Fatalf("%s never gets ready: %v: %s\n%s", r.url, err, ready, s.logs())
	}
}

// waiting is what a replica that is not ready says of the sources that it waits for, and how many batches it has applied.
func waiting(ready string, p *process) string {
	var answer struct {
		Recovering bool
		Waiting    []struct{ Source, State, Reason string }
	}
	if json.Unmarshal([]byte(ready), &answer) != nil {
		return "no answer"
	}
	return fmt.Sprintf("%+v %d", answer, applied(p))
}

// applied returns a number that rises with each batch that a server applies, as long as its sources stay.
func applied(p *process) (n uint64) {
	_, text := get(p.url + "/services")
	var answer struct {
		Services []struct{ Replayed, LastSeq uint64 } `json:"services"`
	}
	_ = json.Unmarshal([]byte(text), &answer)
	for _, s := range answer.Services {
		n += s.Replayed + s.LastSeq
	}
	return n
}

// invite registers one more instance that publishes what a rank of a fleet does: for its model, or for a model of its own.
func (s *soak) invite(r *runningReplica) {
	all := s.stage.Registered()
	var g map[string]any
	must.Succeed(s.t, json.Unmarshal(all[s.rng.IntN(len(all))], &g))
	s.made++
	g["instance_id"] = fmt.Sprintf("guest-%d", s.made)
	if s.rng.IntN(2) == 0 {
		g["modelname"] = fmt.Sprintf("guests-of-%d", s.rng.IntN(3))
	}
	body, err := json.Marshal(g)
	must.Succeed(s.t, err)
	if s.send(r, "/register", string(body)) {
		s.guests = append(s.guests, string(body))
	}
}

// dismiss unregisters a guest at a replica.
func (s *soak) dismiss(r *runningReplica) {
	if n := len(s.guests); n > 0 {
		at := s.rng.IntN(n)
		if s.send(r, "/unregister", s.guests[at]) {
			s.guests = append(s.guests[:at], s.guests[at+1:]...)
		}
	}
}

// replace registers a rank of a fleet again, under another name of the address at which it publishes.
func (s *soak) replace(r *runningReplica) {
	all := s.stage.Registered()
	body := string(all[s.rng.IntN(len(all))])
	if s.rng.IntN(2) == 0 {
		body = strings.ReplaceAll(body, "127.0.0.1", "localhost")
	}
	s.send(r, "/register", body)
}

// reload writes the settings of a replica with another source of its own, or without one, and lets it read them.
func (s *soak) reload(r *runningReplica) {
	source := ""
	if s.rng.IntN(2) == 0 {
		var g struct {
			Endpoint       string `json:"endpoint"`
			ReplayEndpoint string `json:"replay_endpoint"`
			Type           string `json:"type"`
		}
		all := s.stage.Registered()
		must.Succeed(s.t, json.Unmarshal(all[s.rng.IntN(len(all))], &g))
		source = fmt.Sprintf("{instance_id: fixed-%d, modelname: guests-of-%d, type: %s, block_size: 16, ", s.rng.IntN(2), s.rng.IntN(3),
			g.Type) + fmt.Sprintf("endpoint: %q, replay_endpoint: %q}", g.Endpoint, g.ReplayEndpoint)
	}
	s.configure(r, source)
}

// configure gives a replica a source of its own, none if it is "".
func (s *soak) configure(r *runningReplica, source string) {
	s.t.Helper()
	file := r.cmd.Args[3]
	text, err := os.ReadFile(file)
	must.Succeed(s.t, err)
	before, _, _ := strings.Cut(string(text), "sources:")
	must.Succeed(s.t, os.WriteFile(file, []byte(before+"sources: ["+source+"]\n"), 0o600))
	must.Succeed(s.t, r.cmd.Process.Signal(syscall.SIGHUP))
}

// question asks a replica for a snapshot, or for something else that takes all sources together.
func (s *soak) question(r *runningReplica) {
	model := fmt.Sprintf("model-%d", s.rng.IntN(s.models))
	for _, path := range []string{
		"/admin/snapshot?block_size=16&model=" + model, "/admin/digest", "/admin/check", "/admin/stats", "/services", "/metrics",
		"/global_view", "/dynamo/v1/dump",
	} {
		if s.rng.IntN(3) == 0 {
			continue
		}
		status, text := get(r.url + path)
		if path == "/admin/check" && status != 200 && status != 0 {
			s.t.Fatalf("/admin/check of %s: %d %s\n%s", r.url, status, text, s.logs())
		}
	}
}

// report tells a replica that a router has sent a prompt to a guest.
func (s *soak) report(r *runningReplica) {
	if len(s.guests) == 0 {
		return
	}
	var g struct {
		Model    string `json:"modelname"`
		Instance string `json:"instance_id"`
		Rank     int    `json:"dp_rank"`
	}
	must.Succeed(s.t, json.Unmarshal([]byte(s.guests[s.rng.IntN(len(s.guests))]), &g))
	tokens := make([]string, 64)
	for i := range tokens {
		tokens[i] = fmt.Sprint(s.rng.IntN(1000))
	}
	s.send(r, "/routed", fmt.Sprintf(`{"model":%q,"block_size":16,"instance_id":%q,"dp_rank":%d,"token_ids":[%s]}`, g.Model, g.Instance,
		g.Rank, strings.Join(tokens, ",")))
}

// lmcacheNode is an LMCache that reports what it holds.
type lmcacheNode struct {
	last   lmcacheReport // the batch sent last
	model  string
	chunks []chunkOf // that it holds
}

// push lets LMCache report to all replicas what a node stores and evicts, for replicas do not pass such reports on. One that is new is
// registered at a replica.
func (s *soak) push(r *runningReplica) {
	if len(s.nodes) < 3 {
		s.made++
		n := lmcacheNode{model: fmt.Sprintf("guests-of-%d", s.rng.IntN(3)), last: lmcacheReport{
			Instance: fmt.Sprintf("guest-%d", s.made), Incarnation: 1, Tier: "l1", Backend: "dram",
		}}
		body := fmt.Sprintf(`{"endpoint":"push:","type":"LMCache","modelname":%q,"instance_id":%q,"block_size":16}`, n.model,
			n.last.Instance)
		if s.send(r, "/register", body) {
			s.nodes = append(s.nodes, n)
		}
		return
	}
	n := &s.nodes[s.rng.IntN(len(s.nodes))]
	n.last.Seq++
	if n.last.Type = "store"; len(n.chunks) > 4 {
		n.last.Type = "delete"
		n.last.Entries, n.chunks = entriesOf(n.chunks, 1, 1, "", 0), n.chunks[:1]
	} else {
		tokens := make([]uint32, chunkTokens)
		for i := range tokens {
			tokens[i] = s.rng.Uint32N(1000)
		}
		n.chunks = append(n.chunks, chunksOf(tokens)...)
		n.last.Entries = entriesOf(n.chunks, len(n.chunks)-1, 1, "", 0)
		n.last.Entries[0].Offset = 0 // each is the first chunk of a prompt
	}
	for i := range n.last.Entries {
		n.last.Entries[i].Key.Model = n.model
	}
	body, err := json.Marshal(map[string]any{"batches": []any{n.last}})
	must.Succeed(s.t, err)
	for _, each := range s.replicas {
		s.send(each, "/lmcache/events", string(body))
	}
}

// send posts something to a replica, which may be starting or hang, and reports whether it has done it.
func (s *soak) send(r *runningReplica, path, body string) bool {
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+path, strings.NewReader(body))
	must.Succeed(s.t, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode < 300
}

// calm takes the guests back, so that the replicas hold what the fleets hold and nothing else.
func (s *soak) calm() {
	s.t.Helper()
	for _, r := range s.replicas {
		s.awaitReady(r)
		s.configure(r, "")
	}
	eventually(s.t, "guests stay", func() (string, bool) {
		left := ""
		for _, r := range s.replicas {
			_, text := get(r.url + "/services")
			var answer struct {
				Services []struct {
					InstanceID string
					DPRank     int
				} `json:"services"`
			}
			if json.Unmarshal([]byte(text), &answer) != nil {
				return text, false
			}
			for _, row := range answer.Services {
				if strings.HasPrefix(row.InstanceID, "guest-") || strings.HasPrefix(row.InstanceID, "fixed-") {
					left += " " + row.InstanceID
					s.send(r, "/unregister", fmt.Sprintf(`{"instance_id":%q,"dp_rank":%d}`, row.InstanceID, row.DPRank))
				}
			}
		}
		return left, left == ""
	})
	s.guests, s.nodes = nil, nil
}

// check asks each replica whether an invariant is broken, and whether it takes copies for reports of reused blocks, which
// only engines send that are registered so.
func (s *soak) check() {
	s.t.Helper()
	for _, r := range s.replicas {
		if status, text := get(r.url + "/admin/check"); status != 200 {
			s.t.Fatalf("/admin/check of %s: %d %s\n%s", r.url, status, text, s.logs())
		}
		if _, text := get(r.url + "/services"); strings.Contains(text, "copies_grow") {
			s.t.Fatalf("%s has found copies_grow: %s\n%s", r.url, text, s.logs())
		}
	}
}

// scanLogs holds that no replica has written of a fault of its own.
func (s *soak) scanLogs() {
	s.t.Helper()
	for _, r := range s.replicas {
		s.scan(r.process)
	}
}

var ownFault = regexp.MustCompile(`DATA RACE|panic|BUG:|fatal error|internal error`)

// scan is scanLogs for one process.
func (s *soak) scan(p *process) {
	s.t.Helper()
	if s.scanned == nil {
		s.scanned = make(map[*process]int)
	}
	text := p.log()
	if at := ownFault.FindStringIndex(text[s.scanned[p]:]); at != nil {
		from := max(s.scanned[p]+at[0]-2000, 0)
		s.t.Fatalf("%s: %s", p.url, text[from:min(from+12_000, len(text))])
	}
	s.scanned[p] = len(text)
}
