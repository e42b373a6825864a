// Package llmd lets llm-d's endpoint picker ask Conductor which endpoints cache which prefix.
//
// The producer asks with the tokens of the router's token producer, and writes a
// PrefixCacheMatchInfo to each endpoint that Conductor has a row for. An endpoint's row is that of
// the instance address:port, else that of the instance named as its pod. If Conductor does not
// answer, no endpoint gets data, and the scorers of the other producers decide.
package llmd

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/llm-d/llm-d-router/pkg/epp/framework/interface/plugin"
	"github.com/llm-d/llm-d-router/pkg/epp/framework/interface/requestcontrol"
	"github.com/llm-d/llm-d-router/pkg/epp/framework/interface/scheduling"
	"github.com/llm-d/llm-d-router/pkg/epp/framework/plugins/datalayer/attribute/prefix"
	"github.com/llm-d/llm-d-router/pkg/epp/framework/plugins/requestcontrol/dataproducer/tokenizer"

	"example.com/conductor/client"
)

// Type is the type of the plug-in in the configuration of the picker.
const Type = "conductor-prefix-cache-producer"

// Parameters of the plug-in.
type Parameters struct {
	URL       string `json:"url"`       // base URL of Conductor
	BlockSize int    `json:"blockSize"` // tokens of a block, as registered
	// Model is the base model, as registered; a request for another model is one for the adapter of
	// that name. Without it the model of the request counts.
	Model     string `json:"model"`
	Tenant    string `json:"tenant"`
	TokenFile string `json:"tokenFile"` // bearer token, read for each request
	TimeoutMS int    `json:"timeoutMs"` // 50 unless set
}

// Producer is a DataProducer of the picker.
type Producer struct {
	Parameters
	name      string
	conductor *client.Client

	mu    sync.Mutex // guards state
	state state
}

// state is what DumpState shows.
type state struct {
	Asked  uint64 `json:"asked"`
	Failed uint64 `json:"failed"`
	Last   string `json:"last_failure,omitempty"`
}

var (
	_ requestcontrol.DataProducer         = (*Producer)(nil)
	_ requestcontrol.TimeoutAwareProducer = (*Producer)(nil)
	_ plugin.ConsumerPlugin               = (*Producer)(nil)
)

// Register makes the plug-in known to the picker, which needs --allow-experimental-plugins.
func Register() { plugin.Register(Type, plugin.StabilityAlpha, factory) }

func factory(name string, parameters *json.Decoder, _ plugin.Handle) (plugin.Plugin, error) {
	var p Parameters
	if parameters != nil {
		if err := parameters.Decode(&p); err != nil {
			return nil, fmt.Errorf("parameters of %q: %w", name, err)
		}
	}
	return New(name, p)
}

// New returns a producer.
func New(name string, p Parameters) (*Producer, error) {
	if p.TimeoutMS == 0 {
		p.TimeoutMS = 50
	}
	if p.BlockSize < 1 || p.TimeoutMS < 1 {
		return nil, fmt.Errorf("%q: blockSize %d and timeoutMs %d must be 1 or more", name, p.BlockSize, p.TimeoutMS)
	}
	options := []client.Option{client.WithMsgpack(), client.WithRetries(0)}
	if p.TokenFile != "" {
		options = append(options, client.WithTokens(func() (string, error) {
			token, err := os.ReadFile(p.TokenFile)
			return strings.TrimSpace(string(token)), err
		}))
	}
	c, err := client.New(p.URL, options...)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", name, err)
	}
	return &Producer{Parameters: p, name: name, conductor: c}, nil
}

// TypedName implements plugin.Plugin.
func (p *Producer) TypedName() plugin.TypedName { return plugin.TypedName{Type: Type, Name: p.name} }

func (p *Producer) key() plugin.DataKey {
	return prefix.PrefixCacheMatchInfoDataKey.WithNonEmptyProducerName(p.name)
}

// Produces implements plugin.ProducerPlugin.
func (p *Producer) Produces() map[plugin.DataKey]any {
	return map[plugin.DataKey]any{p.key(): prefix.PrefixCacheMatchInfo{}}
}

// Consumes implements plugin.ConsumerPlugin.
func (p *Producer) Consumes() plugin.DataDependencies {
	return plugin.DataDependencies{Required: map[plugin.DataKey]any{tokenizer.TokenizedPromptDataKey: scheduling.TokenizedRequest{}}}
}

// ProduceTimeout leaves Produce the time to return without an error.
func (p *Producer) ProduceTimeout() time.Duration { return 2 * p.timeout() }

func (p *Producer) timeout() time.Duration { return time.Duration(p.TimeoutMS) * time.Millisecond }

// DumpState implements plugin.StateDumper.
func (p *Producer) DumpState() (json.RawMessage, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return json.Marshal(p.state)
}

// Produce writes to each endpoint how much of the request's prompts it caches. It returns no error:
// the picker would give up the data of the other producers too.
func (p *Producer) Produce(ctx context.Context, request *scheduling.InferenceRequest, endpoints []scheduling.Endpoint) error {
	if request == nil || request.Body == nil || request.Body.TokenizedRequest == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout())
	defer cancel()
	prompts := request.Body.TokenizedRequest.Prompts
	total, answers := 0, make([]map[rankKey]client.Rank, 0, len(prompts))
	for i := range prompts {
		total += len(prompts[i].TokenIDs) / p.BlockSize
		q := client.Query{Model: request.TargetModel, BlockSize: p.BlockSize, Tenant: p.Tenant,
			Salt: request.Body.TokenizedRequest.CacheSalt, Tokens: prompts[i].TokenIDs}
		if p.Model != "" && p.Model != q.Model {
			q.Model, q.Adapter = p.Model, q.Model
		}
		// Tokens of an image stand for any image: what follows them is not asked for.
		if images := prompts[i].MultiModalFeatures; len(images) > 0 {
			q.Tokens = q.Tokens[:min(max(images[0].Offset, 0), len(q.Tokens))]
		}
		if len(q.Tokens) < p.BlockSize {
			continue
		}
		rows, err := p.conductor.Query(ctx, q)
		p.count(err)
		if err != nil {
			return nil
		}
		answers = append(answers, ranksOf(rows))
	}
	for _, e := range endpoints {
		if info := p.match(e, answers, total); info != nil {
			e.Put(p.key(), info)
		}
	}
	return nil
}

func (p *Producer) count(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state.Asked++; err != nil {
		p.state.Failed++
		p.state.Last = err.Error()
	}
}

// rankKey is a rank of an instance. The only rank of an instance has any number: its endpoint may
// count otherwise.
type rankKey struct {
	instance string
	rank     int
}

const onlyRank = -1

func ranksOf(rows client.Rows) map[rankKey]client.Rank {
	by := make(map[rankKey]client.Rank)
	for _, row := range rows {
		for _, r := range row.Ranks {
			by[rankKey{row.Instance, r.Rank}] = r
		}
		if len(row.Ranks) == 1 {
			by[rankKey{row.Instance, onlyRank}] = row.Ranks[0]
		}
	}
	return by
}

// match returns what an endpoint caches of all prompts, nil if Conductor does not know it.
func (p *Producer) match(e scheduling.Endpoint, answers []map[rankKey]client.Rank, total int) *prefix.PrefixCacheMatchInfo {
	at := e.GetMetadata()
	if at == nil {
		return nil
	}
	known, weighted, cached := false, 0.0, 0
	address := net.JoinHostPort(at.Address, at.Port)
	for _, by := range answers {
		for _, key := range []rankKey{
			{address, onlyRank}, {address, at.RankIndex}, {at.Name, onlyRank}, {at.Name, at.RankIndex},
		} {
			if r, ok := by[key]; ok {
				known = true
				cached += r.Disk / p.BlockSize
				weighted += (float64(r.GPU) + 0.75*float64(r.CPU-r.GPU) + 0.25*float64(r.Disk-r.CPU)) / float64(p.BlockSize)
				break
			}
		}
	}
	if !known {
		return nil
	}
	return prefix.NewPrefixCacheMatchInfo(int(weighted), total, p.BlockSize).WithCachedBlockCount(cached)
}
