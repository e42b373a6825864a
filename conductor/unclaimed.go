package conductor

import "example.com/conductor/conductor/explain"

// UnclaimedTopics returns the topics without a source of the last ten minutes, the latest first. Only
// clients that may name all tenants see them, for they are no tenant's.
func (v Inspection) UnclaimedTopics() []explain.UnclaimedTopic {
	if !v.reader.Tenants.All() {
		return nil
	}
	all := v.conductor.UnclaimedTopics()
	if !v.reader.Secrets {
		for i := range all {
			all[i].Endpoint, all[i].From = "", ""
		}
	}
	return all
}

// UnclaimedTopics is Inspection.UnclaimedTopics for a client that sees everything.
func (c *Conductor) UnclaimedTopics() []explain.UnclaimedTopic {
	if c.opts.Strays == nil {
		return nil
	}
	return explain.UnclaimedTopics(c.opts.Strays(), c.now())
}
