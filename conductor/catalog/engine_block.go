package catalog

import "example.com/conductor/tiers"

// An engine's block may be several registered blocks, which the engine announces and uses together. Where its blocks have
// several sizes, as where an engine has shorter ones at the ends of prompts, what counts is their greatest common divisor.

// NoteEngineBlock notes that the source's engine has blocks of a size on its device, in registered blocks.
func (ns *Namespace) NoteEngineBlock(size int) {
	ns.Deployment.mu.Lock()
	defer ns.Deployment.mu.Unlock()
	ns.EngineBlock = tiers.Divisor(size, ns.EngineBlock)
}

// EngineBlockOf returns how many registered blocks the engines of an instance of a deployment use together, 1 if that is not known.
func EngineBlockOf(d *Deployment, instance int32) (size int) {
	if d.MostParts() == 0 {
		return 1
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, ns := range d.holders {
		if ns.InstanceID == instance {
			size = tiers.Divisor(size, ns.EngineBlock)
		}
	}
	return max(size, 1)
}

// DroppedBlockOf returns how many registered blocks the engines of an instance of a deployment would drop of each hit on the
// device for a drafter.
func DroppedBlockOf(d *Deployment, instance int32) int {
	for _, o := range d.Owners() {
		if o.Instance == instance && o.Cache != nil && o.Cache.Tier == tiers.Device && o.Cache.HasFull() {
			return o.Cache.DroppedBlock()
		}
	}
	return EngineBlockOf(d, instance)
}
