package server

import (
	"sync"

	"github.com/gin-gonic/gin"
)

var values = sync.Pool{New: func() any { return make(map[any]any) }}

// KeepValues is the middleware that lets requests use the map of their values (gin.Context.Set) after each other. It
// comes first. No handler may use its gin.Context once it has returned.
func KeepValues(g *gin.Context) {
	g.Keys = values.Get().(map[any]any)
	defer func() {
		clear(g.Keys)
		values.Put(g.Keys)
		g.Keys = nil
	}()
	g.Next()
}
