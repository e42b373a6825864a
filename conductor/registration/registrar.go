package registration

import (
	"cmp"
	"strconv"
	"time"
)

// Registrar says who registered a source, and when.
type Registrar struct {
	// Kind is one of the constants below.
	Kind string
	// Name is that of the client's credentials, the URL that discovery asked, or the id of the replica; "" if there
	// is none.
	Name string
	// At is when the source was registered first. A restart of the server keeps it if the registrations are kept.
	At time.Time
}

// Kinds of Registrar.
const (
	ByConfiguration = "configuration" // the settings file, or a file of discovery.sources_dir
	ByClient        = "client"        // POST /register of a dialect
	ByDiscovery     = "discovery"     // an engine that was asked where it publishes
	ByReplica       = "replica"       // another replica, through the store they share
	ByPeer          = "peer"          // not registered here: it came with the blocks of a peer
)

// WithDefaults fills in what the caller of Register left out.
func (r Registrar) WithDefaults(static bool, now time.Time) Registrar {
	if static {
		r.Kind = cmp.Or(r.Kind, ByConfiguration)
	}
	r.Kind = cmp.Or(r.Kind, ByClient)
	if r.At.IsZero() {
		r.At = now.Truncate(time.Millisecond) // as a snapshot keeps it
	}
	return r
}

// Fields of a Registrar in a snapshot.
const (
	fieldRegisteredBy = "registered.by"
	fieldRegistrar    = "registered.name"
	fieldRegisteredAt = "registered.at" // ms since 1970
)

func (r *Registrar) WriteTo(w *FieldWriter) {
	w.Text(fieldRegisteredBy, r.Kind)
	w.Text(fieldRegistrar, r.Name)
	if !r.At.IsZero() {
		w.Text(fieldRegisteredAt, strconv.FormatInt(r.At.UnixMilli(), 10))
	}
}

func (r *Registrar) ReadFrom(f *FieldReader) {
	r.Kind, r.Name = f.Text(fieldRegisteredBy), f.Text(fieldRegistrar)
	if at := f.Number(fieldRegisteredAt, 64); at > 0 {
		r.At = time.UnixMilli(at)
	}
}
