package explain

import (
	"time"

	"example.com/conductor/conductor/catalog"
	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/match"
	"example.com/conductor/conductor/scope"
)

// Inspector answers the questions of one client that are no queries.
type Inspector struct {
	Catalog *catalog.Catalog
	Sources *ingest.Sources
	Matcher *match.Matcher
	Now     func() time.Time
	Tenants scope.Tenants // that the client may name
	// Redact returns a text that stands for a salt. ShownSalts are those that the client may see.
	Redact     func(salt string) string
	ShownSalts func() map[string]bool
}
