package snapshot

import (
	"io"
	"net/url"
	"strconv"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/replica"
	"example.com/conductor/conductor/scope"
)

// Path is where a server sends snapshots to peers.
const Path = "/admin/snapshot"

// MaxHead bounds the names in snapshots of others: 10,000 sources take some 10 MB, as many salts 2 MB.
const MaxHead = 256 << 20

// Format is how peers of this program send snapshots.
func Format() replica.Format {
	return replica.Format{
		Path: Path, Accept: MediaType, Resumes: true,
		Read: func(body io.Reader, _ string, into *conductor.Recovery, _ func(string)) error {
			_, err := Read(body, Reading{Into: into, MaxHead: MaxHead})
			return err
		},
	}
}

// FormatOf is Format for the sources of one deployment. Sources of others, which a peer that does
// not know the query sends, are left out.
func FormatOf(d scope.Deployment) replica.Format {
	f := Format()
	f.Path += "?" + url.Values{"tenant_id": {d.Tenant}, "model": {d.Model}, "block_size": {strconv.Itoa(d.BlockSize)}}.Encode()
	f.Read = func(body io.Reader, _ string, into *conductor.Recovery, _ func(string)) error {
		_, err := Read(body, Reading{Into: into, MaxHead: MaxHead, Sources: Only(d)})
		return err
	}
	return f
}

// Only leaves out the sources that are registered for other deployments.
func Only(d scope.Deployment) func([]conductor.SourceMark) {
	return func(all []conductor.SourceMark) {
		for i := range all {
			if all[i].Deployment() != d {
				all[i] = conductor.SourceMark{}
			}
		}
	}
}
