package ingest

import (
	"fmt"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/doctor"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/events"
)

// vLLM before 0.14 announces an adapter by lora_id, the number it has in its process,
// and not by name. Blocks of such an adapter are no blocks of the base model, and
// number 3 of one process is another adapter than number 3 of the next. So they have a
// name of their source's own:
//
//	lora_id:3@prefill-1|default|0     the number, the key of the source
//
// A registration that names an adapter names it for every number.

// nameAdapter gives the adapter of a stored event a name if it has a number alone: the
// one that an earlier event gave the number. Blocks known by their hash, or behind a known
// parent, have their adapter by that. Else the number is the name.
func (a *applier) nameAdapter(ns *namespace, e *events.Event) {
	if e.LoraID == 0 || a.reg.Lora != "" || len(e.Hashes) == 0 {
		return
	}
	if a.adapters == nil {
		a.adapters = make(map[uint64]*string)
	}
	name := a.adapters[e.LoraID]
	if e.LoraName != nil {
		if name == nil && len(a.adapters) < catalog.MaxAdapters || name != nil && *name != *e.LoraName {
			a.adapters[e.LoraID] = e.LoraName
		}
		return
	}
	if name == nil {
		if id := ns.Names.Known(e); id != nil && id.Lora != "" {
			e.LoraName = &id.Lora
			return
		}
		text := fmt.Sprintf("%s%d@%s", scope.UnnamedPrefix, e.LoraID, a.reg.Key())
		name = &text
		if len(a.adapters) < catalog.MaxAdapters {
			a.adapters[e.LoraID] = name
		}
		a.doctor.Findings.Report(doctor.FindingAdapter,
			"blocks of the adapter with lora_id %d carry no name: they count for adapter %q of this source alone, and queries for the "+
				"adapter's name find nothing; update vLLM to 0.14 or later, or register lora_name if the engine serves one adapter",
			e.LoraID, text)
	}
	e.LoraName = name
}
