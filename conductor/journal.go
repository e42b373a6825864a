package conductor

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/conductor/events/objectkey"
	"example.com/conductor/events/tape"
	"example.com/conductor/index"
)

// appendFields appends the registration as a journal keeps it: by wire names, without empty
// fields.
func (r *Registration) appendFields(to []tape.Field, static bool) []tape.Field {
	w := fieldWriter(to)
	for _, t := range r.texts() {
		w.text(t.field, *t.value)
	}
	w.text("block_size", strconv.Itoa(r.BlockSize))
	w.text("dp_rank", strconv.Itoa(r.Rank))
	w.number("capacity_blocks", int64(r.CapacityBlocks))
	if r.TTL != 0 {
		w.text("ttl", r.TTL.String())
	}
	for _, medium := range slices.Sorted(maps.Keys(r.MediaTTL)) {
		w.text("ttl."+medium, r.MediaTTL[medium].String())
	}
	for _, name := range r.Serves {
		w.text("serves", name)
	}
	for _, name := range r.Aliases {
		w.text("aliases", name)
	}
	for _, tenant := range r.MayAnnounce {
		w.text("may_announce", tenant)
	}
	w.flag("static", static)
	return w
}

// Fields returns the registration as a snapshot keeps it.
func (r Registration) Fields() []tape.Field { return r.appendFields(nil, false) }

// registrationOf reads what appendFields wrote.
func registrationOf(fields []tape.Field) (r Registration, static bool, err error) {
	if r, err = ReadRegistration(fields); err == nil {
		err = r.normalize(true)
	}
	if err != nil {
		return r, false, fmt.Errorf("the registration of %q cannot be read: %w", tape.Value(fields, tape.FieldSource), err)
	}
	return r, tape.Value(fields, "static") != "", nil
}

// ReadRegistration reads what Registration.Fields wrote. It does not check the registration.
func ReadRegistration(fields []tape.Field) (r Registration, err error) {
	v := func(name string) string { return tape.Value(fields, name) }
	for _, t := range r.texts() {
		*t.value = v(t.field)
	}
	if r.BlockSize, err = strconv.Atoi(v("block_size")); err == nil {
		r.Rank, err = strconv.Atoi(v("dp_rank"))
	}
	if capacity := v("capacity_blocks"); capacity != "" && err == nil {
		r.CapacityBlocks, err = strconv.Atoi(capacity)
	}
	if ttl := v("ttl"); ttl != "" && err == nil {
		r.TTL, err = time.ParseDuration(ttl)
	}
	for _, f := range fields {
		switch f.Name {
		case "serves":
			r.Serves = append(r.Serves, f.Value)
		case "aliases":
			r.Aliases = append(r.Aliases, f.Value)
		case "may_announce":
			r.MayAnnounce = append(r.MayAnnounce, f.Value)
		}
		if medium, ok := strings.CutPrefix(f.Name, "ttl."); ok && err == nil {
			if r.MediaTTL == nil {
				r.MediaTTL = make(map[string]time.Duration)
			}
			r.MediaTTL[medium], err = time.ParseDuration(f.Value)
		}
	}
	return r, err
}

// TapeSettings are the options that decide what an index holds, for
// tape.Options.
func (o Options) TapeSettings() []tape.Field {
	return []tape.Field{
		{Name: "hash.seed", Value: strconv.FormatUint(o.HashSeed, 10)},
		{Name: "stream.copies", Value: copiesWord(o.Copies)},
		{Name: "stream.stale_after", Value: o.Stream.StaleAfter.String()},
		{Name: "index.max_bytes", Value: strconv.Itoa(o.MaxBytes)},
		{Name: "index.max_bytes_total", Value: strconv.FormatInt(o.MaxBytesTotal, 10)},
		{Name: "index.ghost_bytes", Value: strconv.FormatInt(o.GhostBytes, 10)},
		{Name: "pool.completeness", Value: o.Completeness.String()},
		{Name: "pool.max_bytes", Value: strconv.FormatInt(o.PoolBytes, 10)},
		{Name: "limits.max_token_id", Value: strconv.FormatUint(uint64(o.MaxTokenID), 10)},
		{Name: "limits.max_contexts", Value: strconv.Itoa(o.MaxContexts)},
		{Name: "index.local_hashes", Value: strconv.FormatBool(o.KeepClientHashes)},
	}
}

// adopt takes over the settings that a journal names.
func (o *Options) adopt(settings []tape.Field) (err error) {
	for _, f := range settings {
		var e error
		switch f.Name {
		case "hash.seed":
			o.HashSeed, e = strconv.ParseUint(f.Value, 10, 64)
		case "stream.copies":
			o.Copies = index.CopyCount
			if f.Value == CopiesSet {
				o.Copies = index.CopySet
			}
		case "stream.stale_after":
			o.Stream.StaleAfter, e = time.ParseDuration(f.Value)
		case "index.max_bytes":
			o.MaxBytes, e = strconv.Atoi(f.Value)
		case "index.max_bytes_total":
			o.MaxBytesTotal, e = strconv.ParseInt(f.Value, 10, 64)
		case "index.ghost_bytes":
			o.GhostBytes, e = strconv.ParseInt(f.Value, 10, 64)
		case "pool.completeness":
			o.Completeness, e = objectkey.ParseCompleteness(f.Value)
		case "pool.max_bytes":
			o.PoolBytes, e = strconv.ParseInt(f.Value, 10, 64)
		case "limits.max_token_id":
			var most uint64
			most, e = strconv.ParseUint(f.Value, 10, 32)
			o.MaxTokenID = uint32(most)
		case "limits.max_contexts":
			o.MaxContexts, e = strconv.Atoi(f.Value)
		case "index.local_hashes":
			o.KeepClientHashes, e = strconv.ParseBool(f.Value)
		}
		if e != nil && err == nil {
			err = fmt.Errorf("the journal's setting %s cannot be read: %w", f.Name, e)
		}
	}
	return err
}
