package mooncake

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"kvconductor/conductor"
)

// services lists the registered sources, sorted by the text of their keys: GET
// /services.
func (d *Dialect) services(g *gin.Context) {
	all := d.conductor.Registrations()
	slices.SortFunc(all, func(a, b conductor.Registration) int {
		return strings.Compare(a.Key().String(), b.Key().String())
	})
	dst := appendIntField(appendMap(nil, 2), "count", len(all))
	dst = appendList(appendText(dst, "services"), len(all))
	for _, r := range all {
		dst = appendMap(dst, 11)
		dst = appendTextField(dst, "Endpoint", r.Endpoint)
		dst = appendTextField(dst, "ReplayEndpoint", r.ReplayEndpoint)
		dst = appendTextField(dst, "Type", r.Type)
		dst = appendTextField(dst, "ModelName", r.Model)
		dst = appendTextField(dst, "LoraName", r.Lora)
		dst = appendTextField(dst, "TenantID", r.Tenant)
		dst = appendTextField(dst, "InstanceID", r.Instance)
		dst = appendIntField(dst, "BlockSize", r.BlockSize)
		dst = appendIntField(dst, "DPRank", r.Rank)
		dst = appendNil(appendText(dst, "CacheGroup"))
		dst = appendProfile(appendText(dst, "HashProfile"), r.Profile)
	}
	d.answer(g, dst, "")
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
	profile conductor.HashProfile // of the engines registered for it
	ranks   map[string][]int      // of the instances registered for it
}

// globalView shows the contexts, with their instances: GET /global_view.
func (d *Dialect) globalView(g *gin.Context) {
	spaces := make(map[space]*held)
	at := func(s space) *held {
		if spaces[s] == nil {
			spaces[s] = &held{ranks: make(map[string][]int)}
		}
		return spaces[s]
	}
	for _, r := range d.conductor.Registrations() {
		if r.Type != conductor.TypeMooncake {
			h := at(space{r.Tenant, r.Model, r.Lora, r.BlockSize})
			h.ranks[r.Instance] = append(h.ranks[r.Instance], r.Rank)
			if r.Profile != (conductor.HashProfile{}) {
				h.profile = r.Profile // they all have the same
			}
		}
	}
	for _, x := range d.conductor.Contexts() {
		at(space{x.Tenant, x.Model, x.Lora, x.BlockSize}).blocks += x.Blocks
	}
	dst := appendIntField(appendMap(nil, 2), "context_count", len(spaces))
	dst = appendList(appendText(dst, "contexts"), len(spaces))
	for _, s := range slices.SortedFunc(maps.Keys(spaces), space.compare) {
		h := spaces[s]
		dst = appendMap(dst, 7)
		dst = appendTextField(dst, "model_name", s.model)
		dst = appendTextField(dst, "lora_name", s.lora)
		dst = appendIntField(dst, "block_size", s.blockSize)
		dst = appendTextField(dst, "tenant_id", s.tenant)
		dst = appendIntField(dst, "prefix_count", h.blocks)
		dst = appendProfile(appendText(dst, "hash_profile"), h.profile)
		dst = appendMap(appendText(dst, "instances"), len(h.ranks))
		for _, name := range slices.Sorted(maps.Keys(h.ranks)) {
			slices.Sort(h.ranks[name])
			dst = appendList(appendText(dst, name), len(h.ranks[name]))
			for _, rank := range h.ranks[name] {
				dst = appendInt(dst, rank)
			}
		}
	}
	d.answer(g, dst, "\n")
}

// health says that the process is alive: GET /health.
func (d *Dialect) health(g *gin.Context) {
	d.answer(g, appendTextField(appendTextField(appendMap(nil, 2), "status", "ok"), "version", d.cfg.Version), "\n")
}
