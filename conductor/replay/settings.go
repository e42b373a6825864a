package replay

import (
	"fmt"
	"strconv"
	"time"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/objectkey"
	"example.com/conductor/events/tape"
	"example.com/conductor/index"
)

// Settings returns the options that decide what an index holds, as a tape begins with them (tape.Options.Settings).
func Settings(o *conductor.Options) []tape.Field {
	return []tape.Field{
		{Name: "hash.seed", Value: strconv.FormatUint(o.HashSeed, 10)},
		{Name: "stream.copies", Value: registration.CopiesWord(o.Copies)},
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
func adopt(o *conductor.Options, settings []tape.Field) (err error) {
	for _, f := range settings {
		var e error
		switch f.Name {
		case "hash.seed":
			o.HashSeed, e = strconv.ParseUint(f.Value, 10, 64)
		case "stream.copies":
			o.Copies = index.CopyCount
			if f.Value == registration.CopiesSet {
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
