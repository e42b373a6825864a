package status

import (
	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/scope"
)

// Stats are the numbers of the whole server at about one moment. /admin/stats, the page and
// conductor top show them; metrics count the same.
type Stats struct {
	Sources []Source // sorted by key
	Tenants map[string]TenantStats
	Models  map[scope.Shard]catalog.QueryCounts // of the registered ones
	// Bytes is what all indexes take of Limit, 0 without a limit.
	Bytes, Limit int64
	Ready        Readiness
	Queries      catalog.QueryCounts // of all tenants, of models that are gone too
	Times        match.QueryTimes    // of the same
}

// TenantStats are the numbers of the models of one tenant.
type TenantStats struct {
	Blocks      int // unique blocks
	Memberships int // pairs of block and owner
	Queries     catalog.QueryCounts
}
