// Package registration says what a source is: where an engine or a pool publishes, and what its blocks are.
//
//	settings file, POST /register, gRPC --> Registration --Normalize--> the same in its canonical form, or a fault
//	Registration --AppendFields--> snapshots, the tape --ReadFields--> Registration
//	             --JSON---------> the registry that replicas share
//
// To add a field:
//
//   - add it to the struct (registration.go) and to the lists in fields.go, and say in Normalize what values it may have.
//     Snapshots, the tape, the comparison of two registrations and the fingerprint that replicas compare follow from
//     these lists, and a test fails for a field that they lack;
//   - let requests read it: conductor/http/registration.go, the dialects that have it, openapi.yaml;
//   - let the settings file have it: config/source.go, and registrationOf in cmd/conductor/options.go;
//   - show it where people look: conductor/http/services.go, cmd/conductor/config.go, client/registry.go and
//     clients/python.
//
// Values are plain: a Registration does not change once a source runs, but for its aliases, which the source has apart.
// Nothing here opens a socket or asks the clock.
package registration
