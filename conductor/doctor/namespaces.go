package doctor

import "example.com/conductor/tiers"

// SGLang keeps blocks apart by the extra_key of their request, which has the number of the adapter's load at
// its end. Its events name a salt and an adapter, and nothing else of that key: the same tokens under two of
// them are one block to Conductor. They show all the same, because a tree has each block once: whatever it
// stores on a device that has it already is of another key.

// extraLeast is how many such blocks make a finding.
const extraLeast = Sample

// observeNamespaces counts blocks that SGLang stored again. If a removal may be missing, it counts nothing until
// the device has been empty.
func (d *Doctor) observeNamespaces(o *Observation) {
	c := &d.copies
	if !d.reg.SGLang || !c.empty || o.Medium.Tier != tiers.Device || o.Event.Envelope || c.apart >= extraLeast {
		return
	}
	if c.apart += o.Copies / o.Parts; c.apart >= extraLeast {
		d.Findings.Report(FindingExtraKey,
			"the device announced blocks that it already had, although SGLang keeps each block once. So its requests have an extra_key, "+
				"or an adapter was loaded again. Events do not tell such blocks apart, and answers can be too long: let requests send "+
				"cache_salt in place of extra_key, and flush the cache after loading an adapter again")
	}
}
