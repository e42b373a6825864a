package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"example.com/conductor/lab/sim/truth"
)

// Sample is a request a reader can repeat, with the server's answer.
type Sample struct {
	Command string `json:"command"`
	Answer  string `json:"answer"`
}

const (
	sampleBlocks = 2    // of the prompt shown
	sampleAnswer = 1200 // characters of an answer shown
	// viewLimit is how many hashes of each context are looked through.
	viewLimit = 1 << 20
)

// samples sends the server three requests and keeps the answers: the sources, a prompt
// that hits, and the same prompt by its hashes.
func (d *driver) samples(ctx context.Context) ([]Sample, error) {
	services, err := d.sample(ctx, http.MethodGet, "/services", nil)
	if err != nil {
		return nil, err
	}
	services.Answer = firstService([]byte(services.Answer))
	services.Command += "   # the first row"
	out := []Sample{services}

	prompt, names := d.hit()
	if prompt != nil {
		s, err := d.sample(ctx, http.MethodPost, "/query", appendQuery(d.fleet.Config.queryHead(), prompt))
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	view, err := d.client.do(ctx, http.MethodGet, fmt.Sprintf("/global_view?limit=%d", viewLimit), nil)
	if err != nil {
		return nil, err
	}
	method, path, body := http.MethodPost, "/query_by_hash", d.byHash(view, names)
	if body == nil {
		method, path = http.MethodGet, "/global_view?limit=1"
	}
	last, err := d.sample(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	out = append(out, last)
	for i := range out {
		out[i].Answer = shorten([]byte(out[i].Answer), sampleAnswer)
	}
	return out, nil
}

// byHash renders the body of /query_by_hash for blocks an engine calls by
// names. The server's own hashes are in its global view; nil if they are not.
func (d *driver) byHash(view []byte, names []uint64) []byte {
	var v struct {
		Maps []map[string]uint64 `json:"hashmap"`
	}
	if json.Unmarshal(view, &v) != nil {
		return nil
	}
	for _, known := range v.Maps {
		hashes := make([]uint64, 0, len(names))
		for _, name := range names {
			if h, ok := known[strconv.FormatUint(name, 10)]; ok {
				hashes = append(hashes, h)
			}
		}
		if len(hashes) == len(names) && len(names) > 0 {
			body := bytes.Replace(d.fleet.Config.queryHead(), []byte(`"token_ids":[`), []byte(`"seq_hashes":`), 1)
			list, _ := json.Marshal(hashes) // integers always have a JSON form
			return append(append(body, list...), '}')
		}
	}
	return nil
}

func (d *driver) sample(ctx context.Context, method, path string, body []byte) (Sample, error) {
	got, err := d.client.do(ctx, method, path, body)
	if err != nil {
		return Sample{}, err
	}
	command := "curl -s " + d.client.base + path
	if body != nil {
		command = fmt.Sprintf("curl -s %s%s --json '%s'", d.client.base, path, body)
	}
	return Sample{Command: command, Answer: string(bytes.TrimSpace(got))}, nil
}

// firstService returns the first row of an answer of /services as the server
// wrote it, the whole answer if it has no rows.
func firstService(b []byte) string {
	var s struct {
		Services []json.RawMessage `json:"services"`
	}
	if json.Unmarshal(b, &s) != nil || len(s.Services) == 0 {
		return string(b)
	}
	return string(s.Services[0])
}

// hit returns a short prompt whose last block some rank holds on its device,
// and that rank's names of the blocks; nil if there is none.
func (d *driver) hit() (prompt []uint32, names []uint64) {
	d.fleet.mu.Lock()
	defer d.fleet.mu.Unlock()
	for n, r := range d.fleet.ranks {
		found := truth.Root
		tree := r.instance.tree
		tree.Each(n, func(id truth.ID, held truth.Tier) {
			if found == truth.Root && held&truth.Device != 0 && len(tree.Path(id)) == sampleBlocks*d.fleet.BlockSize+tree.Ahead() {
				found = id
			}
		})
		if found != truth.Root {
			prompt = tree.Path(found)
			for _, name := range r.engine.Names(tree.Walk(prompt, nil)) {
				names = append(names, r.algorithm.Event(name))
			}
			return prompt, names
		}
	}
	return nil, nil
}
