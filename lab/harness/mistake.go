package harness

import (
	"errors"
	"fmt"
)

// A mistake is a load or a size that nothing can run with.
type mistake struct{ error }

func (m mistake) Unwrap() error { return m.error }

// Mistakef returns a mistake, for what a user asked for.
func Mistakef(format string, args ...any) error { return mistake{fmt.Errorf(format, args...)} }

// IsMistake reports whether an error is a mistake of the user.
func IsMistake(err error) bool {
	m := mistake{}
	return errors.As(err, &m)
}
