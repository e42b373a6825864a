package mooncake

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/registration"
)

// services lists the registered sources, sorted by the text of their keys: GET
// /services.
func (d *handlers) services(g *gin.Context, codec body.Codec) {
	all := access.View(d.conductor, g).Registrations()
	slices.SortFunc(all, func(a, b registration.Registration) int {
		return strings.Compare(a.Key().String(), b.Key().String())
	})
	e := body.Encoder{Codec: codec}
	e.Map(2)
	e.IntField("count", len(all))
	e.Name("services")
	e.List(len(all))
	for _, r := range all {
		e.Map(11)
		e.TextField("Endpoint", r.Endpoint)
		e.TextField("ReplayEndpoint", r.ReplayEndpoint)
		e.TextField("Type", r.Type)
		e.TextField("ModelName", r.Model)
		e.TextField("LoraName", r.Lora)
		e.TextField("TenantID", r.Tenant)
		e.TextField("InstanceID", r.Instance)
		e.IntField("BlockSize", r.BlockSize)
		e.IntField("DPRank", r.Rank)
		e.Name("CacheGroup")
		e.Null()
		e.Name("HashProfile")
		writeProfile(&e, r.Profile)
		e.EndMap()
	}
	e.EndList()
	e.EndMap()
	respond(g, http.StatusOK, &e, "")
}

// space is what the dialect calls a context: whatever the salt.
type space struct {
	tenant, model, lora string
	blockSize           int
}

func (a space) compare(b space) int {
	return cmp.Or(strings.Compare(a.tenant, b.tenant), strings.Compare(a.model, b.model),
		strings.Compare(a.lora, b.lora), cmp.Compare(a.blockSize, b.blockSize))
}

// held is what there is in a space.
type held struct {
	blocks  int
	profile registration.HashProfile // of the engines registered for it
	ranks   map[string][]int         // of the instances registered for it
}

// globalView shows the contexts, with their instances: GET /global_view.
func (d *handlers) globalView(g *gin.Context, codec body.Codec) {
	spaces := make(map[space]*held)
	at := func(s space) *held {
		if spaces[s] == nil {
			spaces[s] = &held{ranks: make(map[string][]int)}
		}
		return spaces[s]
	}
	view := access.View(d.conductor, g)
	for _, r := range view.Registrations() {
		if !r.IsPool() {
			h := at(space{r.Tenant, r.Model, r.Lora, r.BlockSize})
			h.ranks[r.Instance] = append(h.ranks[r.Instance], r.Rank)
			if r.Profile != (registration.HashProfile{}) {
				h.profile = r.Profile // they all have the same
			}
		}
	}
	for _, x := range view.Inspect().Contexts() {
		at(space{x.Tenant, x.Model, x.Lora, x.BlockSize}).blocks += x.Blocks
	}
	e := body.Encoder{Codec: codec}
	e.Map(2)
	e.IntField("context_count", len(spaces))
	e.Name("contexts")
	e.List(len(spaces))
	for _, s := range slices.SortedFunc(maps.Keys(spaces), space.compare) {
		h := spaces[s]
		e.Map(7)
		e.TextField("model_name", s.model)
		e.TextField("lora_name", s.lora)
		e.IntField("block_size", s.blockSize)
		e.TextField("tenant_id", s.tenant)
		e.IntField("prefix_count", h.blocks)
		e.Name("hash_profile")
		writeProfile(&e, h.profile)
		e.Name("instances")
		e.Map(len(h.ranks))
		for _, name := range slices.Sorted(maps.Keys(h.ranks)) {
			slices.Sort(h.ranks[name])
			e.Key(name)
			e.List(len(h.ranks[name]))
			for _, rank := range h.ranks[name] {
				e.Int(rank)
			}
			e.EndList()
		}
		e.EndMap()
		e.EndMap()
	}
	e.EndList()
	e.EndMap()
	respond(g, http.StatusOK, &e, "\n")
}

// health says that the process is alive: GET /health.
func (d *handlers) health(g *gin.Context, codec body.Codec) {
	e := body.Encoder{Codec: codec}
	e.Map(2)
	e.TextField("status", "ok")
	e.TextField("version", d.cfg.Version)
	e.EndMap()
	respond(g, http.StatusOK, &e, "\n")
}
