package discovery

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"example.com/conductor/events/reach"
)

// Engine is what an engine says about itself. Fields that it leaves out are empty.
type Engine struct {
	Type      string // vLLM or SGLang
	Model     string
	Aliases   []string // further names of the model
	Adapters  []string // of the model, by name
	BlockSize int      // of its events; 0: not told
	Ranks     []Rank
	Faulty    []faultyRank
	Guessed   bool // the ranks are a convention
	drafter   drafter
}

// faultyRank is a rank that cannot be followed as the engine names it.
type faultyRank struct {
	rank int // unknownRank where the rank itself cannot be read
	err  error
}

// unknownRank stands for a rank whose name cannot be read: it may be any.
const unknownRank = -1

// Rank is where one data-parallel rank publishes.
type Rank struct {
	Rank                       int
	Endpoint, Replay, Snapshot string
}

// isAt reports whether an endpoint is a port of the machine at address. Of this machine any address will do: an engine that is
// asked at one of them may publish at another.
func isAt(endpoint string, address netip.Addr) bool {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	host, _, err := net.SplitHostPort(rest)
	if !ok || err != nil {
		return false
	}
	at, err := netip.ParseAddr(host)
	return err == nil && at.Unmap() == address || isOurs(address.String()) && isOurs(host)
}

const (
	maxRanks = 1024
	// vllmPort is where older vLLM publishes, plus the rank.
	vllmPort = 5557
)

var errNoEvents = errors.New("its KV events are off")

// vllmSource is one source of GET /kv_event_sources.
type vllmSource struct {
	Publisher string `json:"publisher"`
	Endpoint  string `json:"endpoint"`
	Replay    string `json:"replay_endpoint"`
	Snapshot  string `json:"snapshot_endpoint"`
}

// rankOf reads the number of a rank, as an answer has it in JSON or as a name.
func rankOf(text string) (int, error) {
	rank, err := strconv.Atoi(text)
	switch {
	case err != nil:
		return unknownRank, fmt.Errorf("its answer names the rank %.64q", text)
	case rank < 0:
		return unknownRank, fmt.Errorf("its answer names the rank %d, which is below zero", rank)
	}
	return rank, nil
}

// listedRank returns the rank of the entry at a place of a list, which need not name it.
func listedRank(entry json.RawMessage, place int) (int, error) {
	var named struct {
		Rank json.RawMessage `json:"data_parallel_rank"`
	}
	if err := json.Unmarshal(entry, &named); err != nil {
		return unknownRank, fmt.Errorf("the entry %d of its answer has no known shape: %w", place, err)
	}
	if named.Rank == nil || string(named.Rank) == "null" {
		return place, nil
	}
	return rankOf(string(named.Rank))
}

// vllmRank reads the entry of a rank.
func vllmRank(rank int, entry json.RawMessage) (Rank, error) {
	var s vllmSource
	switch err := json.Unmarshal(entry, &s); {
	case err != nil:
		return Rank{}, fmt.Errorf("rank %d has no known shape: %w", rank, err)
	case s.Publisher != "" && s.Publisher != "zmq":
		return Rank{}, fmt.Errorf("the publisher of rank %d is %q, and zmq can be followed", rank, s.Publisher)
	case s.Endpoint == "":
		return Rank{}, fmt.Errorf("rank %d has no endpoint", rank)
	}
	return Rank{rank, s.Endpoint, s.Replay, s.Snapshot}, nil
}

// vllmRanks reads an answer of GET /kv_event_sources. It has three shapes: an object by rank,
// an object with a list under "sources", and that list.
func vllmRanks(body []byte, host string) (ranks []Rank, faulty []faultyRank, _ error) {
	byRank := make(map[string]json.RawMessage)
	var list []json.RawMessage
	var wrapped struct{ Sources *[]json.RawMessage }
	switch {
	case json.Unmarshal(body, &list) == nil:
	case json.Unmarshal(body, &wrapped) == nil && wrapped.Sources != nil:
		list = *wrapped.Sources
	default:
		if err := json.Unmarshal(body, &byRank); err != nil {
			return nil, nil, fmt.Errorf("its answer has no known shape: %w", err)
		}
	}
	if len(list)+len(byRank) == 0 {
		return nil, nil, errNoEvents
	}
	add := func(entry json.RawMessage, rank int, err error) {
		var r Rank
		if err == nil {
			r, err = vllmRank(rank, entry)
		}
		if err != nil {
			faulty = append(faulty, faultyRank{rank, err})
			return
		}
		ranks = append(ranks, r)
	}
	for place, entry := range list {
		rank, err := listedRank(entry, place)
		add(entry, rank, err)
	}
	for name, entry := range byRank {
		rank, err := rankOf(name)
		add(entry, rank, err)
	}
	return checkRanks(ranks, faulty, host)
}

// sglangInfo is an answer of GET /server_info.
type sglangInfo struct {
	Model  string `json:"served_model_name"`
	Path   string `json:"model_path"`
	Events *struct {
		Publisher  string            `json:"publisher"`
		Host       string            `json:"endpoint_host"`
		Port       int               `json:"endpoint_port_base"`
		BlockSize  int               `json:"block_size"`
		Ranks      int               `json:"dp_size"`
		Publishers []json.RawMessage `json:"publishers"`
	} `json:"kv_events"`
}

// sglangRank reads an entry of the publishers.
func sglangRank(entry json.RawMessage) (Rank, error) {
	var s struct {
		Rank     json.RawMessage `json:"dp_rank"`
		Endpoint any             `json:"endpoint"`
	}
	if err := json.Unmarshal(entry, &s); err != nil {
		return Rank{Rank: unknownRank}, fmt.Errorf("an entry of its publishers has no known shape: %w", err)
	}
	rank, err := rankOf(cmp.Or(strings.TrimPrefix(string(s.Rank), "null"), "0"))
	endpoint, ok := s.Endpoint.(string)
	if err == nil && (!ok || endpoint == "") {
		err = fmt.Errorf("rank %d has no endpoint", rank)
	}
	return Rank{Rank: rank, Endpoint: endpoint}, err
}

// sglangEngine reads an answer of GET /server_info.
func sglangEngine(body []byte, host string) (Engine, error) {
	e := Engine{Type: "SGLang"}
	var info sglangInfo
	if err := json.Unmarshal(body, &info); err != nil {
		return e, fmt.Errorf("its answer has no known shape: %w", err)
	}
	if e.Model = info.Model; e.Model == "" {
		e.Model = info.Path
	}
	ev := info.Events
	if ev == nil {
		return e, errNoEvents
	}
	if ev.Publisher != "" && ev.Publisher != "zmq" {
		return e, fmt.Errorf("its publisher is %q, and zmq can be followed", ev.Publisher)
	}
	e.BlockSize = max(ev.BlockSize, 0)
	for _, entry := range ev.Publishers {
		if r, err := sglangRank(entry); err != nil {
			e.Faulty = append(e.Faulty, faultyRank{r.Rank, err})
		} else {
			e.Ranks = append(e.Ranks, r)
		}
	}
	if len(ev.Publishers) == 0 {
		if ev.Port <= 0 || ev.Ranks < 0 || ev.Ranks > maxRanks {
			return e, fmt.Errorf("its answer names the port %d and %d ranks", ev.Port, ev.Ranks)
		}
		for rank := range max(ev.Ranks, 1) {
			at := "tcp://" + net.JoinHostPort(strings.Trim(ev.Host, "[]"), strconv.Itoa(ev.Port+rank))
			e.Ranks = append(e.Ranks, Rank{Rank: rank, Endpoint: at})
		}
	}
	var err error
	e.Ranks, e.Faulty, err = checkRanks(e.Ranks, e.Faulty, host)
	return e, err
}

// checkRanks sorts ranks whose engine was asked at a host, puts the host in the place of wildcards, and adds those that cannot be
// followed to the faulty ones: a rank with two endpoints, and one whose endpoint cannot be the engine's. It returns an error if
// there are too many ranks.
func checkRanks(ranks []Rank, faulty []faultyRank, host string) (sound []Rank, _ []faultyRank, err error) {
	if n := len(ranks) + len(faulty); n > maxRanks {
		return nil, nil, fmt.Errorf("its answer names %d ranks, and %d are followed at most", n, maxRanks)
	}
	for i := range ranks {
		r := &ranks[i]
		for _, e := range []*string{&r.Endpoint, &r.Replay, &r.Snapshot} {
			if *e, err = reachableEndpoint(*e, host); err != nil {
				faulty = append(faulty, faultyRank{r.Rank, fmt.Errorf("rank %d %w", r.Rank, err)})
				break
			}
		}
	}
	slices.SortFunc(ranks, func(a, b Rank) int { return a.Rank - b.Rank })
	ranks = slices.Compact(ranks)
	for i, r := range ranks {
		if i > 0 && ranks[i-1].Rank == r.Rank {
			faulty = append(faulty, faultyRank{r.Rank, fmt.Errorf("its answer names the rank %d twice, and not alike", r.Rank)})
		}
	}
	ranks = slices.DeleteFunc(ranks, func(r Rank) bool {
		return slices.ContainsFunc(faulty, func(f faultyRank) bool { return f.rank == r.Rank })
	})
	slices.SortStableFunc(faulty, func(a, b faultyRank) int { return a.rank - b.rank })
	return ranks, faulty, nil
}

// Further names and adapters of a model beyond these bounds, those of registrations, are not taken from an engine.
const (
	maxServed    = 64
	maxAdapters  = 1024
	maxNameBytes = 256
)

// servedNames are those of an answer of GET /v1/models.
type servedNames struct {
	model    string
	aliases  []string // further names under which the engine serves the same weights
	adapters []string // of the model
}

// namesOf reads an answer of GET /v1/models. The model is the first, unless the one that it was so far is still there. Adapters
// have it, or an alias of it, as their parent.
func namesOf(body []byte, current string) (all servedNames, err error) {
	var list struct {
		Data []struct {
			ID, Root string
			Parent   *string
		}
	}
	if err := json.Unmarshal(body, &list); err != nil || len(list.Data) == 0 || list.Data[0].ID == "" {
		return all, errors.New("its list of models has no known shape")
	}
	first := list.Data[0]
	for _, m := range list.Data {
		if m.ID == current && m.Parent == nil && current != "" {
			first = m
		}
	}
	all.model = first.ID
	add := func(to *[]string, name string, most int) {
		if name != "" && name != first.ID && len(name) <= maxNameBytes && !slices.Contains(*to, name) && len(*to) < most {
			*to = append(*to, name)
		}
	}
	for _, m := range list.Data {
		if m.Parent == nil && m.Root != "" && m.Root == first.Root {
			add(&all.aliases, m.ID, maxServed)
		}
	}
	for _, m := range list.Data {
		if m.Parent != nil && (*m.Parent == first.ID || slices.Contains(all.aliases, *m.Parent)) {
			add(&all.adapters, m.ID, maxAdapters)
		}
	}
	return all, nil
}

// reachableEndpoint puts the host that was asked in the place of a wildcard. An engine of another machine
// that names its own loopback address cannot be reached there, and another engine may be.
func reachableEndpoint(endpoint, host string) (string, error) {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return endpoint, nil
	}
	i := strings.LastIndexByte(rest, ':')
	if i < 0 {
		return endpoint, nil
	}
	switch told := strings.Trim(rest[:i], "[]"); {
	case told == "" || reach.IsWildcard(told):
		return "tcp://" + net.JoinHostPort(host, rest[i+1:]), nil
	case isLoopback(told) && !isOurs(host):
		return "", fmt.Errorf("publishes at %q, which only programs on the engine's machine %s reach: let it bind to tcp://*:%s", endpoint,
			host, rest[i+1:])
	}
	return endpoint, nil
}

// isLoopback reports whether a host means the machine that reads it.
func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback() || strings.EqualFold(strings.TrimSuffix(host, "."), "localhost")
}

// isOurs reports whether a host is this machine.
func isOurs(host string) bool {
	if isLoopback(host) {
		return true
	}
	addr, err := netip.ParseAddr(host)
	all, _ := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(all, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && p.Addr() == addr.Unmap().WithZone("")
	})
}
