package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"time"

	"example.com/conductor/internal/request"
	"example.com/conductor/lab/bench/ingest"
	"example.com/conductor/lab/harness"
)

// TakeoverReport tells what became of a shard that lost an owner by SIGKILL.
type TakeoverReport struct {
	Owners  int `json:"owners"`
	Sources int `json:"sources"`
	Blocks  int `json:"blocks"` // that the shard holds
	// Seconds is the time from the kill until every replica left has answered a query about each source
	// rightly. First is the time until the first right answer.
	Seconds float64 `json:"seconds"`
	First   float64 `json:"first_seconds"`
	// Until then: right answers, those that are partial, refused queries (503), and others.
	Right   int `json:"right"`
	Partial int `json:"partial"`
	Refused int `json:"refused"`
	Failed  int `json:"failed"`
	Wrong   int `json:"wrong"`
	// Of a replica that serves the shard then: Equal is how many sources have the same digest as before,
	// From how many have their history from where, and Shelf the blocks brought back from the shelf.
	Equal int            `json:"equal_sources"`
	From  map[string]int `json:"from"`
	Shelf float64        `json:"shelf_blocks"`
	asked time.Time      // the first query after the kill
}

const takeoverTarget = 5.0 // seconds, with 1 M blocks

func (r *TakeoverReport) writeTable(w io.Writer) {
	fmt.Fprintf(w, "owner of %d killed, %d blocks of %d sources: first right answer after %.2f s, all after %.2f s (target %.0f s), "+
		"sources from %v, %.0f blocks from the shelf; %d right, %d partial, %d refused, %d failed, %d wrong; %d digests equal\n",
		r.Owners, r.Blocks, r.Sources, r.First, r.Seconds, takeoverTarget, r.From, r.Shelf, r.Right, r.Partial, r.Refused, r.Failed,
		r.Wrong, r.Equal)
}

// measureTakeovers measures a shard with each number of owners.
func (c *Config) measureTakeovers() (all []TakeoverReport, err error) {
	for _, owners := range c.Owners {
		if owners < 1 || owners >= replicas {
			return nil, fmt.Errorf("%d owners of %d replicas: one of them is killed", owners, replicas)
		}
		r, err := c.measureTakeover(owners)
		if err != nil {
			return nil, err
		}
		all = append(all, *r)
	}
	return all, nil
}

// measureTakeover kills one of the owners.
func (c *Config) measureTakeover(owners int) (*TakeoverReport, error) {
	c.Progress.Say("%d replicas, %d of them own the shard", replicas, owners)
	g, err := c.startServers(replicas, "--cluster-mode", "shards", "--cluster-owners", strconv.Itoa(owners), "--snapshot-interval", "500ms")
	defer g.close()
	if err == nil {
		err = c.startEngines(g)
	}
	if err != nil {
		return nil, err
	}
	var served map[string][]string
	for _, s := range g.servers {
		if served, err = g.awaitPlacement(s, 1, owners); err != nil {
			return nil, err
		}
	}
	var serving, left []*harness.Server
	for _, url := range served[shardModel] {
		serving = append(serving, g.serverAt(url))
	}
	for _, s := range g.servers {
		if s != serving[0] {
			left = append(left, s)
		}
	}
	if err := c.fillShard(g, serving); err != nil {
		return nil, err
	}
	held, err := serving[0].Marks()
	if err != nil {
		return nil, err
	}
	r := &TakeoverReport{Owners: owners, Sources: c.Load.Sources}
	for _, m := range held {
		r.Blocks += m.Blocks
	}
	a, err := c.newAsker()
	if err == nil {
		_, err = a.askRound(g.servers, r)
	}
	if err != nil || r.Right != len(g.servers)*c.Load.Sources {
		return nil, errors.Join(err, fmt.Errorf("answers are not right before the kill: %+v", *r))
	}
	r.Right, r.First = 0, 0

	c.Progress.Say("killing an owner")
	serving[0].Kill()
	killed := time.Now()
	r.asked = killed
	for all := false; !all; {
		if time.Since(killed) > patience {
			return nil, fmt.Errorf("the shard is not answered again after %v: %+v", patience, *r)
		}
		if all, err = a.askRound(left, r); err != nil {
			return nil, err
		}
		if !all {
			time.Sleep(pause)
		}
	}
	r.Seconds = time.Since(killed).Seconds()
	return r, r.compareHoldings(g, left, min(owners, len(left)), held)
}

// compareHoldings compares what a replica left holds with what the killed one held.
func (r *TakeoverReport) compareHoldings(g *group, left []*harness.Server, owners int, held map[string]harness.Mark) error {
	served, err := g.awaitPlacement(left[0], 1, owners)
	if err != nil {
		return err
	}
	urls := served[shardModel]
	now := g.serverAt(urls[len(urls)-1])
	marks, err := now.Marks()
	if err != nil {
		return err
	}
	for name, m := range held {
		if marks[name] == m {
			r.Equal++
		}
	}
	text, err := now.Get("/services")
	if err != nil {
		return err
	}
	var answer struct {
		Services []struct{ HistoryFrom string }
	}
	if err := json.Unmarshal(text, &answer); err != nil || len(answer.Services) == 0 {
		return fmt.Errorf("a replica that serves the shard has no sources: %w", err)
	}
	r.From = make(map[string]int)
	for _, row := range answer.Services {
		r.From[row.HistoryFrom]++
	}
	r.Shelf, err = now.Metric("conductor_shelf_loaded_blocks_total")
	return err
}

// asker asks about prompts, one of each source, that are held by it alone.
type asker struct {
	client *http.Client
	tokens int // of each prompt
	bodies [][]byte
}

func (c *Config) newAsker() (*asker, error) {
	l := c.shardLoad()
	a := &asker{client: &http.Client{Timeout: patience}, tokens: l.Blocks * l.BlockSize}
	for i := range l.Sources {
		tokens := ingest.NewStamper(l, i).TokensOf(uint64(i) % c.batchesPerEngine())
		body, err := json.Marshal(map[string]any{"model": shardModel, "block_size": l.BlockSize, "token_ids": tokens})
		if err != nil {
			return nil, err
		}
		a.bodies = append(a.bodies, body)
	}
	return a, nil
}

// askRound asks servers about each source, and counts the answers. It stops at a refusal, and reports
// whether all answers were right.
func (a *asker) askRound(servers []*harness.Server, r *TakeoverReport) (all bool, err error) {
	all = true
	for i, body := range a.bodies {
		for _, s := range servers {
			status, text, err := request.Do(context.Background(), a.client, http.MethodPost, s.URL+"/query?detail=1", body)
			switch {
			case err != nil:
				r.Failed++
			case status == http.StatusServiceUnavailable:
				r.Refused++
			case status != http.StatusOK:
				return false, fmt.Errorf("a query is answered by %d: %s", status, text)
			default:
				right, partial, err := a.judgeAnswer(i, text)
				if err != nil {
					return false, err
				}
				switch {
				case right:
					if r.Right++; r.Right == 1 {
						r.First = time.Since(r.asked).Seconds()
					}
					continue
				case partial:
					r.Partial++
				default:
					r.Wrong++
				}
			}
			all = false
		}
		if !all {
			break
		}
	}
	return all, nil
}

// judgeAnswer reports whether an answer says that one source holds the whole prompt and the others
// nothing, and else whether it says that it may not know all.
func (a *asker) judgeAnswer(source int, text []byte) (right, partial bool, err error) {
	var answer struct {
		Default map[string]struct {
			Longest int `json:"longest_matched"`
			Detail  map[string]struct{ State string }
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return false, false, fmt.Errorf("cannot read an answer: %w", err)
	}
	want, got := make(map[string]int), make(map[string]int)
	for i := range a.bodies {
		want[instanceName(i)] = 0
	}
	want[instanceName(source)] = a.tokens
	for name, row := range answer.Default {
		got[name] = row.Longest
		for _, d := range row.Detail {
			partial = partial || d.State != "synced"
		}
	}
	return maps.Equal(got, want), partial, nil
}
