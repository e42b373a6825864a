package image

import (
	"example.com/conductor/conductor/registration"
	"example.com/conductor/events/tape"
)

// The version of a snapshot is the oldest one whose readers know all that is in it, so that a program which would lose a part
// refuses the whole: it would write what it knows over the rest. A field that is added gets a version here, or by the tag
// since in conductor/registration, and history/format.go reads that version from then on. Fields that change neither an
// answer nor what is followed, such as who registered a source, need none.
const firstVersion = 2

// sinceVersion has the versions of the fields of sources, deployments and holders, those of registrations included.
var sinceVersion = func() map[string]uint32 {
	since := map[string]uint32{fieldZeroHash: 3, fieldFull: 3, fieldChunk: 3, fieldSpec: 3, fieldListed: 3, fieldVersion: 3}
	for i := range registration.Table {
		if f := &registration.Table[i]; f.Since > firstVersion {
			since[f.Name] = f.Since
		}
	}
	return since
}()

// Version returns the oldest version whose readers know all fields of the parts of a snapshot.
func Version(parts ...[]tape.Field) uint32 {
	version := uint32(firstVersion)
	for _, fields := range parts {
		for i := range fields {
			version = max(version, sinceVersion[fields[i].Name])
		}
	}
	return version
}
