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

// mostLines is how many replicas with other settings have a line of the log each when they come. Where replicas have no token,
// a client of the store can write many.
const mostLines = 10

// ownersFact returns what this replica tells of Config.Owners in each beat.
func (c *Cluster) ownersFact() json.RawMessage {
	return strconv.AppendInt(nil, int64(c.cfg.Owners), 10)
}

// compareSettings warns of replicas that share shards by other settings than this one. They compute other owners from the
// same beats, so shards stay where they are not wanted, or have too few owners.
func (c *Cluster) compareSettings(all []membership.Replica) {
	differ, lines := make(map[string]bool), 0
	for _, r := range all {
		_, shares := r.Facts[factName]
		owners, told := r.Facts[ownersName]
		if shares && (!told || bytes.Equal(owners, c.ownersFact())) { // older replicas do not tell
			continue
		}
		if differ[r.ID] = true; c.differ[r.ID] {
			continue
		}
		if lines++; lines > mostLines {
			continue
		}
		line := c.cfg.Log.Warn().Str("replica", r.ID).Str("url", redact.URL(r.URL)).Int("owners", c.cfg.Owners)
		if !shares {
			line.Msg("a replica of this store shares no shards: all replicas need the same cluster.mode")
		} else {
			its, _ := strconv.Atoi(string(owners)) // 0 for a text that is no number, which no replica tells
			line.Int("its_owners", its).Msg("a replica of this store has another cluster.owners: all replicas need the same")
		}
	}
	if lines > mostLines {
		c.cfg.Log.Warn().Int("replicas", lines-mostLines).
			Msg("further replicas of this store have another cluster.mode or cluster.owners: all replicas need the same")
	}
	c.differ = differ
	c.differing.Store(int64(len(differ)))
}
