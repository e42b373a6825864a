package cluster

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"example.com/conductor/conductor/membership"
)

// TestReplicasWithOtherSettingsAreNamed holds that each replica with another cluster.mode or cluster.owners is
// named once, and counted as long as it is there.
func TestReplicasWithOtherSettingsAreNamed(t *testing.T) {
	var log bytes.Buffer
	c := New(Config{Group: membership.New(membership.Config{}), Owners: 2, Log: zerolog.New(&log)})
	replica := func(id string, facts ...string) membership.Replica {
		r := membership.Replica{ID: id, URL: "http://" + id, Facts: make(map[string]json.RawMessage)}
		for i := 0; i < len(facts); i += 2 {
			r.Facts[facts[i]] = json.RawMessage(facts[i+1])
		}
		return r
	}
	same, older := replica("same", factName, "{}", ownersName, "2"), replica("older", factName, "{}")
	all := []membership.Replica{same, older, replica("mode"), replica("owners", factName, "{}", ownersName, "1")}
	for range 3 {
		c.compareSettings(all)
	}
	if n, lines := c.differing.Load(), strings.Count(log.String(), "\n"); n != 2 || lines != 2 ||
		!strings.Contains(log.String(), `"url":"http://mode"`) || !strings.Contains(log.String(), `"its_owners":1`) {
		t.Errorf("%d replicas differ: %s", n, log.String())
	}
	c.compareSettings(all[:2])
	if n := c.differing.Load(); n != 0 {
		t.Errorf("%d replicas differ, and they are gone", n)
	}
	log.Reset()
	c.compareSettings(all)
	if lines := strings.Count(log.String(), "\n"); lines != 2 {
		t.Errorf("replicas that come back: %s", log.String())
	}
}

// TestManyReplicasWithOtherSettingsAreFewLines lets a thousand replicas give a long list in place of the number of owners.
func TestManyReplicasWithOtherSettingsAreFewLines(t *testing.T) {
	var log bytes.Buffer
	c := New(Config{Group: membership.New(membership.Config{}), Owners: 2, Log: zerolog.New(&log)})
	var all []membership.Replica
	for i := range 1000 {
		all = append(all, membership.Replica{ID: strconv.Itoa(i), Facts: map[string]json.RawMessage{factName: json.RawMessage("{}"),
			ownersName: json.RawMessage("[\n1" + strings.Repeat(" ", 1000) + "]")}})
	}
	c.compareSettings(all)
	c.compareSettings(all)
	if n, lines := c.differing.Load(), strings.Count(log.String(), "\n"); n != 1000 || lines != mostLines+1 || log.Len() > lines*500 {
		t.Errorf("%d replicas differ, %d lines: %.1000s", n, lines, log.String())
	}
}
