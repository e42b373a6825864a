package registration

import (
	"fmt"
)

// ConflictError says that the key is taken by a registration that differs.
type ConflictError struct {
	Key   Key
	Field string // the first field that differs, by its wire name
	Have  string
	Want  string
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s is registered with another %s: have %q, got %q", e.Key, e.Field, e.Have, e.Want)
}
