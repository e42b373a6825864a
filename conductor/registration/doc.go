// Package registration says what a source is: where an engine or a pool publishes, and what its blocks are.
//
//	settings file, POST /register, gRPC --> Registration --Normalize--> the same in its canonical form, or a fault
//	Registration --AppendFields--> snapshots, the tape --ReadFields--> Registration
//	             --JSON---------> the registry that replicas share
//
// To add a field:
//
//   - add it to the struct (registration.go), with the comment that people who register engines read, and with the tags
//     that fields.go lists. Snapshots, the tape, the comparison of two registrations, the fingerprint that replicas
//     compare, POST /register and the settings file then have it;
//   - say in Validate what values it may have, where the tags do not;
//   - make docs, which writes it into openapi.yaml, docs/settings.md and client/registry.go;
//   - show it where people look: the row of /services in conductor/status/service.go, summarize in cmd/conductor/config.go and
//     clients/python.
//
// Values are plain: a Registration does not change once a source runs, but for its live fields, which the source has apart.
// Nothing here opens a socket or asks the clock.
package registration
