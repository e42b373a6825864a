package registration

import (
	"fmt"

	"example.com/conductor/redact"
)

// ConflictError says that the key is taken by a registration that differs.
type ConflictError struct {
	Key   Key
	Field string // the first field that differs, by its wire name
	Have  string
	Want  string
	Why   string // what else is wrong than that the fields differ; "" for nothing
}

func (e *ConflictError) Error() string {
	if e.Why != "" {
		return fmt.Sprintf("%s cannot be registered: %s", e.Key, e.Why)
	}
	if IsSecret(e.Field) {
		return fmt.Sprintf("%s is registered with another %s", e.Key, e.Field)
	}
	return fmt.Sprintf("%s is registered with another %s: have %q, got %q", e.Key, e.Field, redact.URL(e.Have), redact.URL(e.Want))
}
