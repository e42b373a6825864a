// Package status has what operators see of sources, as values: the row of one source, the counts of the fleet, whether
// the server is ready, and the metrics that follow from them.
//
//	stream.Status --embedded--> Source --Service--> Service --> JSON of /services, openapi.yaml, the Go client, the commands
//	                                   --> conductor/watch --> the page, /admin/stats, conductor top
//	                                   --> Fleet.Send --> metrics of single sources, and of the fleet
//	SourceState --Readiness.Count--> Readiness --> /ready, Summary
//
// A row is copied when it is made and never changes. It embeds the status of the stream, so that a field which a stream
// reports is a field of the row at once. Package ingest makes rows; this package knows no running source. What clients see of a
// row is the struct Service (service.go), the only list of these fields.
package status
