package reply

import (
	"errors"
	"strconv"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/server"
)

// ReadFlag reads a boolean of the query string; absent is false. It returns a *invalid.FieldError if the value is none.
func ReadFlag(g *gin.Context, name string) (bool, error) {
	on, ok := server.Flag(g, name)
	if !ok {
		return false, invalid.Field(name, "invalid_value", "%s must be 1 or 0, got %q", name, g.Query(name))
	}
	return on, nil
}

// ReadNumber reads a number from least to most of the query string, otherwise if it is absent. It returns a
// *invalid.FieldError if the value is no such number.
func ReadNumber(g *gin.Context, name string, least, most, otherwise uint64) (uint64, error) {
	text, given := g.GetQuery(name)
	if !given {
		return otherwise, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) || err == nil && (n < least || n > most):
		return 0, invalid.Field(name, "out_of_range", "%s must be from %d to %d, got %s", name, least, most, text)
	case err != nil:
		return 0, invalid.Field(name, "invalid_value", "%s must be a number, got %q", name, text)
	}
	return n, nil
}
