package server

import (
	"strconv"

	"github.com/gin-gonic/gin"
)

// Flag reads a boolean of the query string. It is false if it is absent, true if it has no value. ok is
// false if its value is no boolean.
func Flag(g *gin.Context, name string) (on, ok bool) {
	if g.Request.URL.RawQuery == "" {
		return false, true // as a rule
	}
	text, given := g.GetQuery(name)
	if !given || text == "" {
		return given, true
	}
	on, err := strconv.ParseBool(text)
	return on, err == nil
}
