package dynamo

import (
	"math"
	"net/http"
	"slices"
	"strings"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/tiers"
)

// query answers for a prompt given as tokens: POST /query.
func (d *Dialect) query(r *exchange) error {
	var (
		q                    match.Query
		routingGroup, tenant string
		lora, salt           *string
	)
	if err := r.decode("QueryRequest",
		tokens, model(&q.Model), stringMember("routing_group", &routingGroup), stringMember("tenant_id", &tenant),
		stringOrNull("lora_name", &lora), stringOrNull("cache_salt", &salt),
	); err != nil {
		return err
	}
	r.gin.Set(ModelKey, q.Model)
	q.Tokens = r.in.Tokens
	if lora != nil {
		q.Lora = *lora
	}
	if salt != nil {
		q.Salt = *salt
	}
	return d.ask(r, q, group{&routingGroup, &tenant})
}

// queryByHash answers for a prompt given as local hashes: POST /query_by_hash.
func (d *Dialect) queryByHash(r *exchange) error {
	q, in, salt, err := d.hashQuery(r, "QueryByHashRequest")
	if err != nil {
		return err
	}
	if salt != nil {
		return refusef(http.StatusBadRequest,
			"cache_salt is not accepted by /query_by_hash; block_hashes must already include the intended cache salt")
	}
	return d.ask(r, q, in)
}

// hashQuery reads a query by local hashes. They say by themselves which adapter and
// salt they are of.
func (d *Dialect) hashQuery(r *exchange, kind string) (q match.Query, in group, salt *string, err error) {
	var routingGroup, tenant string
	err = r.decode(kind,
		blockHashes, model(&q.Model), stringMember("routing_group", &routingGroup), stringMember("tenant_id", &tenant),
		stringOrNull("cache_salt", &salt),
	)
	if err != nil {
		return q, in, nil, err
	}
	r.gin.Set(ModelKey, q.Model)
	q.ByClientHash, q.ClientHashes = true, r.in.Hashes
	return q, group{&routingGroup, &tenant}, salt, nil
}

// ask answers a query in tokens.
func (d *Dialect) ask(r *exchange, q match.Query, in group) error {
	p := scope.Shard{Tenant: in.name(), Model: q.Model}
	sizes, err := r.view(d).BlockSizes(p)
	if err != nil {
		return err
	}
	if len(sizes) == 0 {
		return unknownPartition(p)
	}
	q.Tenant = p.Tenant
	var found []rankMatch
	for _, size := range sizes {
		q.BlockSize = size
		if found, err = d.match(r.view(d), found, q, size); err != nil {
			return err
		}
	}
	if len(sizes) > 1 {
		found = merge(found)
	}
	held := func(worker string, rank int32) (n int) {
		for _, size := range sizes {
			n += d.conductor.Held(p, size, worker, rank)
		}
		return n
	}
	writeAnswer(&r.in.Encoder, found, held)
	return nil
}

// match appends what a query of one block size matches, in units: a block
// has unit of them.
func (d *Dialect) match(view conductor.View, dst []rankMatch, q match.Query, unit int) ([]rankMatch, error) {
	q.MinMatched = 1 // who matches nothing is not in the answer
	take := func(ans *match.Answer) { dst = appendMatches(dst, ans, unit) }
	if err := view.Answer(&q, take); err != nil {
		return nil, err
	}
	if q.SearchUnscoped = d.conductor.HasUnscoped(); q.SearchUnscoped && (q.ByClientHash || q.Lora != "" || q.Salt != "") {
		if err := view.Answer(&q, take); err != nil {
			return nil, err
		}
		return merge(dst), nil
	}
	return dst, nil
}

func unknownPartition(p scope.Shard) error {
	return refusef(http.StatusNotFound, "no indexer for model=%s routing_group=%s", p.Model, p.Tenant)
}

// rankMatch is how far one rank of a worker reaches, from its device down; cumulative,
// so device <= host <= disk <= external.
type rankMatch struct {
	worker                       string
	rank                         int32
	device, host, disk, external uint32
}

// appendMatches appends the ranks that match anything, sorted by worker and rank,
// in units: a block has unit of them.
func appendMatches(dst []rankMatch, ans *match.Answer, unit int) []rankMatch {
	for i := range ans.Rows {
		row := &ans.Rows[i]
		for _, r := range row.Ranks {
			if r.External > 0 {
				dst = append(dst, matchOf(row.Instance, &r, unit))
			}
		}
	}
	return dst
}

func matchOf(worker string, r *tiers.Rank, unit int) rankMatch {
	of := func(blocks int) uint32 { return uint32(min(uint64(blocks)*uint64(unit), math.MaxUint32)) }
	return rankMatch{worker: worker, rank: r.Rank, device: of(r.Device), host: of(r.Host), disk: of(r.Disk), external: of(r.External)}
}

// merge makes one match of those of a rank that is registered with several block
// sizes: the larger of each number.
func merge(all []rankMatch) []rankMatch {
	slices.SortStableFunc(all, func(a, b rankMatch) int {
		if n := strings.Compare(a.worker, b.worker); n != 0 {
			return n
		}
		return int(a.rank) - int(b.rank)
	})
	merged := all[:0]
	for _, m := range all {
		if n := len(merged); n > 0 && merged[n-1].worker == m.worker && merged[n-1].rank == m.rank {
			last := &merged[n-1]
			last.device, last.host = max(last.device, m.device), max(last.host, m.host)
			last.disk, last.external = max(last.disk, m.disk), max(last.external, m.external)
			continue
		}
		merged = append(merged, m)
	}
	return merged
}

// queryTieredByHash answers in blocks, tier by tier, for a router that adds them
// up: POST /query_tiered_by_hash. Blocks have one size in such an answer; of
// several it is the one with the longest match.
func (d *Dialect) queryTieredByHash(r *exchange) error {
	q, in, _, err := d.hashQuery(r, "QueryTieredByHashRequest")
	if err != nil {
		return err
	}
	p := scope.Shard{Tenant: in.name(), Model: q.Model}
	sizes, err := r.view(d).BlockSizes(p)
	if err != nil {
		return err
	}
	if len(sizes) == 0 {
		return unknownPartition(p)
	}
	q.Tenant = p.Tenant
	var best []rankMatch
	size, most := sizes[0], uint64(0)
	for _, s := range sizes {
		q.BlockSize = s
		found, err := d.match(r.view(d), nil, q, 1)
		if err != nil {
			return err
		}
		for i := range found {
			if n := uint64(found[i].external) * uint64(s); n > most {
				best, size, most = found, s, n
			}
		}
	}
	writeTiered(&r.in.Encoder, best, size)
	return nil
}
