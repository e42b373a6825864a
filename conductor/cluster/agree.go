package cluster

import (
	"bytes"
	"encoding/json"
	"strconv"

	"example.com/conductor/conductor/membership"
	"example.com/conductor/redact"
)

// ownersName is the name of the fact that tells of Config.Owners.
const ownersName = "cluster_owners"

// ownersFact returns what this replica tells of Config.Owners in each beat.
func (c *Cluster) ownersFact() json.RawMessage {
	return strconv.AppendInt(nil, int64(c.cfg.Owners), 10)
}

// compareSettings warns of replicas that share shards by other settings than this one. They compute other owners from the
// same beats, so shards stay where they are not wanted, or have too few owners.
func (c *Cluster) compareSettings(all []membership.Replica) {
	differ := make(map[string]bool)
	for _, r := range all {
		_, shares := r.Facts[factName]
		owners, told := r.Facts[ownersName]
		if shares && (!told || bytes.Equal(owners, c.ownersFact())) { // older replicas do not tell
			continue
		}
		if differ[r.ID] = true; c.differ[r.ID] {
			continue
		}
		line := c.cfg.Log.Warn().Str("replica", r.ID).Str("url", redact.URL(r.URL)).Int("owners", c.cfg.Owners)
		if !shares {
			line.Msg("a replica of this store shares no shards: all replicas need the same cluster.mode")
		} else {
			line.RawJSON("its_owners", owners).Msg("a replica of this store has another cluster.owners: all replicas need the same")
		}
	}
	c.differ = differ
	c.differing.Store(int64(len(differ)))
}
