package status

import (
	"cmp"
	"slices"
)

// Instance is one instance that queries about a model may have a row of: GET /instances.
type Instance struct {
	Tenant    string `json:"tenant_id"`
	Model     string `json:"model"`
	BlockSize int    `json:"block_size"` // tokens
	Name      string `json:"instance_id"`
	// Address is the base URL at which the engine takes requests, "" if that is not known.
	Address string `json:"address"`
	// State is that of the source of the instance that is furthest from synced.
	State string `json:"state"`
	// Approximate says that a source of the instance publishes no events.
	Approximate bool `json:"approximate,omitempty"`
	// Role is what the engine does where prompts are computed and answered by different ones: prefill or decode.
	Role  string  `json:"role,omitempty"`
	Ranks []int32 `json:"ranks"` // registered, ascending
	// Aliases and Adapters are further names that queries may have as their model, sorted.
	Aliases  []string `json:"aliases,omitempty"`
	Adapters []string `json:"adapters,omitempty"`
}

// Compare orders instances by what tells them apart: tenant, model, block size and name.
func (a *Instance) Compare(b *Instance) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Model, b.Model), a.BlockSize-b.BlockSize, cmp.Compare(a.Name, b.Name))
}

// Equal reports whether two rows say the same.
func (a *Instance) Equal(b *Instance) bool {
	return a.Compare(b) == 0 && a.Address == b.Address && a.State == b.State && a.Approximate == b.Approximate && a.Role == b.Role &&
		slices.Equal(a.Ranks, b.Ranks) && slices.Equal(a.Aliases, b.Aliases) && slices.Equal(a.Adapters, b.Adapters)
}
