// Package invalid has the error for bad input that names its field, whichever room finds it. Dialects word it.
package invalid

import "fmt"

// FieldError is bad input that names its field. Reason is one of missing,
// invalid_type, invalid_value, out_of_range, conflict, unknown_field.
type FieldError struct {
	Field   string
	Index   int // element of an array field, -1 when the field itself is wrong
	Reason  string
	Message string
}

func (e *FieldError) Error() string { return e.Message }

// Field returns a FieldError for a whole field.
func Field(field, reason, format string, args ...any) *FieldError {
	return &FieldError{Field: field, Index: -1, Reason: reason, Message: fmt.Sprintf(format, args...)}
}
