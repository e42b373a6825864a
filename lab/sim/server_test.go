package sim

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"

	"example.com/conductor/internal/must"
	"example.com/conductor/lab/sim/truth"
	"example.com/conductor/lab/sim/workload"
)

// server answers from the truth itself, so it is always right and never
// behind, unless a test tells it to lie.
type server struct {
	t *testing.T
	f *Fleet
	// lie changes one row before it is sent; nil for the truth. n counts queries.
	lie func(n int, instance string, row object)
	// lag is subtracted from LastSeq in /services.
	lag int64
	// refuse is the status of every query, 0 for an answer.
	refuse int
	// places is how many registrations fit, 0 for any number.
	places int

	mu         sync.Mutex // guards the rest
	queries    int
	registered map[string]bool
	leftovers  int        // unregistered without being registered
	deaf       bool       // subscribes to no pool
	wire       []zmq4.Msg // what the master published
	serves     []string   // of the pool's registration
}

type object = map[string]any

func testConfig(t *testing.T, requests int) Config {
	t.Helper()
	source, err := workload.NewGenerator("mixed", 1)
	must.Succeed(t, err)
	return Config{
		Tenant: "default", Model: "m", Instances: 3, Ranks: 2, Families: Families,
		BlockSize: 64, Device: 256, Host: 128, Disk: 128, Chunk: 512, Running: 2, ClearEvery: 20,
		Source: source, Requests: requests, Clients: 2, Warm: 6, Seed: 1,
		SettleEvery: 4, SettleTimeout: 2 * time.Minute, Audit: 20, Ring: 100_000, Queue: 0,
	}
}

// start returns a fleet and a server that knows it.
func start(t *testing.T, c Config) *server {
	t.Helper()
	f, err := newFleet(c)
	must.Succeed(t, err)
	t.Cleanup(f.close)
	s := &server{t: t, f: f, registered: map[string]bool{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") })
	mux.HandleFunc("GET /global_view", s.globalView)
	mux.HandleFunc("POST /query_by_hash", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Write(body)
	})
	mux.HandleFunc("POST /register", s.register)
	mux.HandleFunc("POST /unregister", s.unregister)
	mux.HandleFunc("GET /services", s.services)
	mux.HandleFunc("POST /query", s.query)
	ts := httptest.NewServer(mux)
	t.Cleanup(ts.Close)
	f.Server = ts.URL
	return s
}

func (s *server) register(w http.ResponseWriter, r *http.Request) {
	var g registration
	err := json.NewDecoder(r.Body).Decode(&g)
	pool := g.Type == "Mooncake"
	if err != nil || g.Endpoint == "" || (g.ReplayEndpoint == "") != pool || g.BlockSize != s.f.BlockSize {
		http.Error(w, fmt.Sprintf("registration %+v: %v", g, err), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.places > 0 && len(s.registered) == s.places {
		http.Error(w, "no place", http.StatusConflict)
		return
	}
	if pool && !s.deaf {
		s.follow(g.Endpoint)
	}
	s.serves = append(s.serves, g.Serves...)
	s.registered[fmt.Sprintf("%s|%s|%d", g.Instance, g.Tenant, g.Rank)] = true
}

// follow keeps the batches published at an endpoint, until the test ends.
func (s *server) follow(endpoint string) {
	sub := zmq4.NewSub(s.t.Context())
	s.t.Cleanup(func() { sub.Close() })
	if err := sub.Dial(endpoint); err != nil {
		s.t.Error(err)
		return
	}
	must.Report(s.t, sub.SetOption(zmq4.OptionSubscribe, ""))
	go func() {
		for {
			msg, err := sub.Recv()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.wire = append(s.wire, msg)
			s.mu.Unlock()
		}
	}()
}

func (s *server) unregister(w http.ResponseWriter, r *http.Request) {
	var g registration
	if err := json.NewDecoder(r.Body).Decode(&g); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := fmt.Sprintf("%s|%s|%d", g.Instance, g.Tenant, g.Rank)
	if !s.registered[key] {
		s.leftovers++
	}
	delete(s.registered, key)
}

func (s *server) services(w http.ResponseWriter, _ *http.Request) {
	var rows []object
	for _, r := range s.f.ranks {
		row := object{"InstanceID": r.instance.id, "TenantID": s.f.Tenant, "DPRank": r.n, "State": "synced", "LastSeq": nil}
		if last := r.pub.LastSeq(); last >= 0 {
			row["LastSeq"] = last - s.lag
		}
		rows = append(rows, row)
	}
	if p := s.f.pool; p != nil {
		row := object{"InstanceID": poolID, "TenantID": s.f.Tenant, "DPRank": 0, "State": "synced", "LastSeq": nil}
		s.mu.Lock()
		if len(s.wire) > 0 {
			row["LastSeq"] = int64(len(s.wire)) - s.lag
		}
		s.mu.Unlock()
		rows = append(rows, row)
	}
	json.NewEncoder(w).Encode(object{"count": len(rows), "services": rows})
}

// globalView knows every block of the sample under its name plus one.
func (s *server) globalView(w http.ResponseWriter, _ *http.Request) {
	known := map[string]uint64{}
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	for _, r := range s.f.ranks {
		tree := r.instance.tree
		tree.Each(r.engine.Index, func(id truth.ID, _ truth.Tier) {
			for _, d := range r.engine.Names(tree.Walk(tree.Path(id), nil)) {
				name := r.algorithm.Event(d)
				known[strconv.FormatUint(name, 10)] = name + 1
			}
		})
	}
	json.NewEncoder(w).Encode(object{"context_count": 1, "hashmap": []any{known}})
}

func (s *server) query(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Model     string   `json:"model"`
		Tenant    string   `json:"tenant_id"`
		BlockSize int      `json:"block_size"`
		Tokens    []uint32 `json:"token_ids"`
	}
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil || q.Model != "m" || q.BlockSize != s.f.BlockSize {
		http.Error(w, fmt.Sprintf("query %+v: %v", q, err), http.StatusBadRequest)
		return
	}
	if s.refuse != 0 {
		http.Error(w, "out of order", s.refuse)
		return
	}
	s.mu.Lock()
	n := s.queries
	s.queries++
	s.mu.Unlock()

	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	rows := object{}
	for _, in := range s.f.instances {
		row := s.row(in, in.tree.Row(in.tree.Walk(q.Tokens, nil), in.first, make([]truth.Rank, len(in.ranks))))
		if s.lie != nil {
			s.lie(n, in.id, row)
		}
		if len(row) > 0 {
			rows[in.id] = row
		}
	}
	json.NewEncoder(w).Encode(object{q.Tenant: rows})
}

func (s *server) row(in *instance, want truth.Row) object {
	dp, matches, detail := object{}, object{}, object{}
	for _, r := range in.ranks {
		key := strconv.Itoa(r.n)
		rank := want.Ranks[r.n]
		dp[key] = rank.Held
		matches[key] = object{"gpu": rank.GPU, "cpu": rank.CPU, "disk": rank.Disk}
		d := object{"state": "synced", "reason": "", "epoch": 1, "watermark": nil}
		if last := r.pub.LastSeq(); last >= 0 {
			d["watermark"] = last
		}
		detail[key] = d
	}
	row := object{
		"longest_matched": want.Longest, "GPU": want.GPU, "CPU": want.CPU, "DISK": want.Disk,
		"DP": dp, "rank_matches": matches, "detail": detail,
	}
	if p := s.f.pool; p != nil {
		d := object{"state": "synced", "reason": "", "epoch": 1, "watermark": nil}
		if last := p.pub.LastSeq(); last >= 0 {
			d["watermark"] = last
		}
		row["pools"] = object{p.key: d}
	}
	return row
}
