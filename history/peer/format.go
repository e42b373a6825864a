package peer

import (
	"io"
	"net/url"
	"strconv"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/scope"
	"example.com/conductor/history"
)

// SnapshotPath is where a server sends snapshots to peers.
const SnapshotPath = "/admin/snapshot"

// OwnFormat is how peers of this program send snapshots.
func OwnFormat() Format {
	return Format{
		Path: SnapshotPath, Accept: history.MediaType, Resumes: true,
		Read: func(body io.Reader, _ string, into *conductor.Recovery, _ func(string)) error {
			_, err := history.Read(body, history.Reading{Into: into, MaxHead: history.MaxHead})
			return err
		},
	}
}

// DeploymentFormat is OwnFormat for the sources of one deployment. Sources of others, which a peer that does
// not know the query sends, are left out.
func DeploymentFormat(d scope.Deployment) Format {
	f := OwnFormat()
	f.Path += "?" + url.Values{"tenant_id": {d.Tenant}, "model": {d.Model}, "block_size": {strconv.Itoa(d.BlockSize)}}.Encode()
	f.Read = func(body io.Reader, _ string, into *conductor.Recovery, _ func(string)) error {
		_, err := history.Read(body, history.Reading{Into: into, MaxHead: history.MaxHead, Sources: history.Only(d)})
		return err
	}
	return f
}
