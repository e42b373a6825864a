package feedback

import (
	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/tiers"
)

// drops says how often an engine lacked exactly the last block that an answer promised of its device. One whose drafter has that
// block computed again lacks it each time, and its events do not say so.
type drops struct {
	block   int // that would be lacking, in tokens
	reports int // of prompts with a hit
	last    int // reports that lacked the last block alone, since one that lacked nothing
	more    int // reports that lacked something else since then: the engine had evicted it
}

// checkDrops counts a report of the device. If nearly all of the latest reports lack exactly the last block, and none lacks nothing,
// the sources of the instance get a finding, which goes with the next report that lacks nothing. t.mu is held.
func (t *Table) checkDrops(of *instance, r *Report, members []*catalog.Member) {
	if r.Matched == 0 || r.Medium != "" && tiers.ParseMedium(r.Medium).Tier != tiers.Device {
		return
	}
	d := &of.drops
	if d.reports%enoughReports == 0 { // it is not known before the first blocks
		d.block = droppedBlock(members)
	}
	d.reports++
	switch {
	case r.Cached >= r.Matched:
		if d.last >= enoughReports {
			for _, m := range members {
				m.Findings.Withdraw(doctor.FindingDrops)
			}
		}
		d.last, d.more = 0, 0
		return
	case r.Matched-r.Cached != d.block:
		d.more++
		return
	}
	d.last++
	if d.last < enoughReports || d.last < 4*d.more {
		return
	}
	for _, m := range members {
		if m.Registration.Drafter == "" && !m.Registration.IsApproximate() && !m.Registration.IsPool() {
			m.Findings.Report(doctor.FindingDrops,
				"%d reports of prompts with a hit lack the last %d tokens, which are one block, and no report since lacks nothing: if the "+
					"engine has a drafter (EAGLE, MTP), register it again with drafter: drops_last_block", d.last, d.block)
			m.LogFindings(t.opts.Log)
		}
	}
}

// droppedBlock returns how many tokens an instance would drop of each hit for a drafter, 0 if it has no source.
func droppedBlock(members []*catalog.Member) int {
	for _, m := range members {
		if m.Home != nil {
			return catalog.DroppedBlockOf(m.Home, m.InstanceID) * m.Registration.BlockSize
		}
	}
	return 0
}
