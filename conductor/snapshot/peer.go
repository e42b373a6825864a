package snapshot

import (
	"io"

	"kvconductor/conductor"
	"kvconductor/conductor/replica"
)

// Path is where a server sends snapshots to peers.
const Path = "/admin/snapshot"

// Format is how peers of this program send snapshots.
func Format() replica.Format {
	return replica.Format{
		Path: Path, Accept: MediaType, Resumes: true,
		Read: func(body io.Reader, _ string, into *conductor.Recovery, _ func(string)) error {
			_, err := Read(body, Reading{Into: into})
			return err
		},
	}
}
