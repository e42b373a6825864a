package main

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"kvconductor/internal/must"
	"kvconductor/internal/redistest"
	"kvconductor/lab/sim/proxy"
	"kvconductor/lab/sim/publisher"
)

// loggedFleet is a fleet whose ranks are reached through proxies, three replicas that follow its
// logs, and one server that follows the engines themselves.
type loggedFleet struct {
	*liveFleet
	live, replay []*proxy.Proxy
	mute         bool // no rank has a replay endpoint
	shared       *redistest.Server
	replicas     []*process
	direct       *process
}

// newLoggedFleet starts all of it. Settings are further ones of store.
func newLoggedFleet(t *testing.T, ring int, settings string) *loggedFleet {
	f := loggedRanks(t, ring)
	for range 3 {
		f.replicas = append(f.replicas, f.start(settings))
	}
	f.direct = serveProcess(t, f.sources("", (*proxy.Proxy).Addr), "127.0.0.1:0=dynamo")
	return f
}

// loggedRanks is newLoggedFleet without servers.
func loggedRanks(t *testing.T, ring int) *loggedFleet {
	f := &loggedFleet{liveFleet: newLiveFleet(t, ring), shared: redistest.Start(t)}
	open := func(endpoint string) *proxy.Proxy {
		p, err := proxy.Open(strings.TrimPrefix(endpoint, "tcp://"))
		must.Succeed(t, err)
		t.Cleanup(p.Close)
		return p
	}
	for _, r := range f.ranks {
		f.live, f.replay = append(f.live, open(r.pub.Endpoint())), append(f.replay, open(r.pub.ReplayEndpoint()))
	}
	return f
}

// start starts a replica.
func (f *loggedFleet) start(settings string) *process { return f.startAt(f.shared.URL(), settings) }

// startAt starts a replica that reaches the store by a URL.
func (f *loggedFleet) startAt(url, settings string) *process {
	shared := fmt.Sprintf("store: {url: %q, ingest: log, timeout: 500ms%s}\n", url, settings)
	return serveProcess(f.t, f.sources(shared, (*proxy.Proxy).Addr), "127.0.0.1:0=dynamo")
}

// sources are the settings of a server that knows all ranks.
func (f *loggedFleet) sources(before string, addr func(*proxy.Proxy) string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%ssources:\n", before)
	for i, r := range f.ranks {
		replay := "replay_endpoint: 'tcp://" + addr(f.replay[i]) + "', "
		if f.mute {
			replay = ""
		}
		fmt.Fprintf(&b, "- {endpoint: 'tcp://%s', %stype: vLLM, modelname: m, instance_id: '%d', dp_rank: %d, block_size: %d}\n", addr(f.live[i]), replay, r.worker, r.n, replicaBlock)
	}
	return b.String()
}

// metric returns a value of /metrics, -1 if there is none.
func metric(p *process, name string) float64 {
	_, text := get(p.url + "/metrics")
	_, after, ok := strings.Cut("\n"+text, "\n"+name+" ")
	value, _, _ := strings.Cut(after, "\n")
	n, err := strconv.ParseFloat(value, 64)
	if !ok || err != nil {
		return -1
	}
	return n
}

// tails waits until the replicas hold all leases, each rank's one, and each engine has one
// reader more than the direct server: its tail.
func (f *loggedFleet) tails(when string) {
	f.t.Helper()
	eventually(f.t, when+": not one tail for each engine", func() (string, bool) {
		held, connected := 0.0, 0
		for _, p := range f.replicas {
			held += metric(p, "conductor_log_leases")
		}
		for _, p := range f.live {
			connected += p.Connections()
		}
		return fmt.Sprintf("%v leases, %d connections", held, connected), int(held) == len(f.ranks) && connected == 2*len(f.ranks)
	})
}

// same holds that all replicas have caught up, and have what the direct server and the engines have.
func (f *loggedFleet) same(when string) {
	f.t.Helper()
	for i, p := range f.replicas {
		f.alike(fmt.Sprintf("%s: replica %d", when, i), p, f.direct)
	}
	f.tails(when)
}

// worked waits until the fleet has published n batches more.
func (f *loggedFleet) worked(n int64) {
	f.t.Helper()
	from := f.batches()
	eventually(f.t, "the fleet does not work", func() (string, bool) { return "", f.batches() >= from+n })
}

// follows counts the sources of a replica by what they follow, those alone whose tail is known.
func (f *loggedFleet) follows(p *process) map[string]int {
	f.t.Helper()
	var stats struct {
		Sources []struct{ Follows, Tail string }
	}
	status, body := get(p.url + "/admin/stats")
	if status != 200 {
		f.t.Fatalf("/admin/stats: %d %s", status, body)
	}
	decode(f.t, body, &stats)
	by := make(map[string]int)
	for _, s := range stats.Sources {
		if s.Tail != "" { // the lease of a source may be passing to another replica
			by[s.Follows]++
		}
	}
	return by
}

// busiest is the index of the replica that is the tail of most engines.
func (f *loggedFleet) busiest() (best int) {
	most := -1.0
	for i, p := range f.replicas {
		if n := metric(p, "conductor_log_leases"); n > most {
			best, most = i, n
		}
	}
	return best
}

// TestReplicasFollowTheLog kills the tail, stops one and lets it go on, starts an engine again, and
// compares all dumps each time.
func TestReplicasFollowTheLog(t *testing.T) {
	t.Parallel()
	f := newLoggedFleet(t, 1<<16, "")
	stop := f.work()
	f.worked(500)
	stop()
	f.same("all followed")
	for _, p := range f.replicas {
		eventually(t, "sources follow neither engine nor log", func() (string, bool) {
			rows := f.follows(p)
			return fmt.Sprint(rows), rows["engine"]+rows["log"] == len(f.ranks) && float64(rows["engine"]) == metric(p, "conductor_log_leases")
		})
	}

	stop = f.work()
	tail := f.busiest()
	f.replicas[tail].cmd.Process.Kill()
	f.worked(800)
	f.replicas[tail] = f.start("")
	f.worked(200)
	stop()
	f.same("the tail was killed")

	stop = f.work()
	tail = f.busiest()
	stopped := f.replicas[tail]
	must.Succeed(t, stopped.cmd.Process.Signal(syscall.SIGSTOP))
	f.replicas = append(f.replicas[:tail:tail], f.replicas[tail+1:]...)
	eventually(t, "the leases of the stopped tail were not taken", func() (string, bool) {
		held := metric(f.replicas[0], "conductor_log_leases") + metric(f.replicas[1], "conductor_log_leases")
		return fmt.Sprint(held), int(held) == len(f.ranks)
	})
	f.worked(200)
	must.Succeed(t, stopped.cmd.Process.Signal(syscall.SIGCONT))
	f.replicas = append(f.replicas, stopped)
	f.worked(200)
	stop()
	f.same("a tail was stopped")
	if n := metric(stopped, "conductor_log_leases_lost_total"); n < 1 {
		t.Errorf("the stopped tail lost %v leases", n)
	}

	r := f.ranks[0]
	for r.engine.Busy() > 0 {
		r.engine.Step() // the engine dies before it publishes this
	}
	r.engine.Clear()
	old := r.pub
	var err error
	r.pub, err = publisher.Listen(publisher.Options{Host: "127.0.0.1", Rank: r.n, BlockSize: replicaBlock, Wire: publisher.VLLMMap{}, Ring: 1 << 16})
	must.Succeed(t, err)
	t.Cleanup(func() { r.pub.Close() })
	old.Close()
	f.live[0].Turn(strings.TrimPrefix(r.pub.Endpoint(), "tcp://"))
	f.replay[0].Turn(strings.TrimPrefix(r.pub.ReplayEndpoint(), "tcp://"))
	stop = f.work()
	f.worked(500)
	stop()
	f.same("an engine was restarted")
}

// TestTrimmedLogIsAGap cuts a replica from the store until the logs are trimmed beyond what it has.
// Engines replay nothing: a snapshot of the tail brings the rest, for a replica that comes late too.
func TestTrimmedLogIsAGap(t *testing.T) {
	t.Parallel()
	f := loggedRanks(t, 1<<16)
	f.mute = true
	way, err := proxy.Open(f.shared.Addr)
	must.Succeed(t, err)
	t.Cleanup(way.Close)
	f.replicas = []*process{f.start(", log_bytes: 64KiB, weight: 1000")}
	f.direct = serveProcess(t, f.sources("", (*proxy.Proxy).Addr), "127.0.0.1:0=dynamo")
	f.tails("one replica")
	f.replicas = append(f.replicas, f.startAt("redis://"+way.Addr(), ", log_bytes: 64KiB, weight: 1"))
	cut := f.replicas[1]
	stop := f.work()
	f.worked(500)
	stop()
	f.same("begun")
	if by := f.follows(cut); by["log"] == 0 {
		t.Fatalf("the replica to be cut off follows %v", by)
	}

	stop = f.work()
	way.Turn("127.0.0.1:1")
	f.worked(3000)
	way.Turn(f.shared.Addr)
	f.worked(200)
	stop()
	f.same("a replica was cut off")
	late := f.start(", log_bytes: 64KiB, weight: 1")
	f.replicas = append(f.replicas, late)
	f.same("a replica came late")
	for _, p := range []*process{cut, late} {
		if n := metric(p, "conductor_log_engine_replays_total"); n != 0 {
			t.Errorf("engines were asked %v times", n)
		}
	}
	if gaps, healed := metric(cut, "conductor_log_gaps_total"), metric(cut, "conductor_log_healed_total"); healed < 1 || gaps < healed {
		t.Errorf("%v gaps, %v healed", gaps, healed)
	}
}

// TestLogsSurviveTheStore kills the store and empties it, and compares all dumps each time.
func TestLogsSurviveTheStore(t *testing.T) {
	t.Parallel()
	f := newLoggedFleet(t, 1<<16, ", log_bytes: 64KiB")
	stop := f.work()
	f.worked(1500)
	stop()
	f.same("the logs were trimmed")
	late := f.start("")
	f.alike("a replica came after the logs were trimmed", late, f.direct)
	f.replicas = append(f.replicas, late)
	stop = f.work()
	f.shared.Kill()
	f.worked(1500)
	f.shared.Run()
	f.worked(300)
	stop()
	f.same("the store was killed")
	if n := metric(f.replicas[0], "conductor_store_up"); n != 1 {
		t.Errorf("the store is %v", n)
	}
	stop = f.work()
	f.shared.Kill()
	f.shared.Run()
	f.worked(300)
	stop()
	f.same("the store was emptied")
}

// TestNewerStoreIsLeftAlone starts a server with a store that a newer program writes to: it writes
// nothing, and follows its engine itself after a while.
func TestNewerStoreIsLeftAlone(t *testing.T) {
	t.Parallel()
	shared := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: shared.Addr})
	defer client.Close()
	must.Succeed(t, client.Set(t.Context(), "kvconductor:{default}:version", 99, 0).Err())
	e := newRuledEngine(t, "new", 0)
	p := serveProcess(t, fmt.Sprintf("store: {url: %q, ingest: log}\nsources: [{endpoint: 'tcp://%s', type: vLLM, modelname: m, instance_id: new, block_size: %d}]\n",
		shared.URL(), e.pub.Addr(), recordedBlock))
	e.publish(ruledStored(0, 2))
	e.settled(p)
	if n := metric(p, "conductor_store_up"); n != 0 {
		t.Errorf("the store is %v", n)
	}
	keys, err := client.Keys(t.Context(), "*").Result()
	must.Succeed(t, err)
	if len(keys) != 1 {
		t.Errorf("the store has %q", keys)
	}
	if out, err := command("serve", "--store-ingest", "log", "--listen", "127.0.0.1:0=conductor").CombinedOutput(); err == nil || !strings.Contains(string(out), "store.url names none") {
		t.Errorf("logs without a store: %v %s", err, out)
	}
}
