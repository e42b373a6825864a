// Package image is what a snapshot says before and between the chunks of blocks, as values: the sources with their marks,
// the deployments with their identities, and who holds blocks there. Fields are written and read by name, so that another
// release can pass over those it does not know; docs/formats.md lists them.
//
//	ingest.Snapshots.WriteImage --Head, chunks--> history (file, peer, store) --Head, chunks--> ingest.Recovery
package image
