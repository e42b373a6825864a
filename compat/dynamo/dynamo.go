// Package dynamo is the room of NVIDIA Dynamo's standalone-indexer dialect.
//
// Its listener is up so that its port is taken and monitored from the start;
// every endpoint of the dialect answers 501 in the dialect's own error shape,
// {"error": text}, and names the Conductor dialect as the way to ask today.
package dynamo

import (
	"net/http"

	"github.com/gin-gonic/gin"
)

// endpoints are the paths Dynamo's indexer serves beyond the common ones.
var endpoints = []struct{ method, path string }{
	{http.MethodPost, "/register"},
	{http.MethodPost, "/unregister"},
	{http.MethodGet, "/workers"},
	{http.MethodPost, "/query"},
	{http.MethodPost, "/query_by_hash"},
	{http.MethodPost, "/query_tiered_by_hash"},
	{http.MethodGet, "/dump"},
	{http.MethodPost, "/register_peer"},
	{http.MethodPost, "/deregister_peer"},
	{http.MethodGet, "/peers"},
}

// Mount adds the dialect to r: a listener's root or a prefix of it.
func Mount(r gin.IRouter) {
	for _, e := range endpoints {
		r.Handle(e.method, e.path, unavailable)
	}
}

func unavailable(g *gin.Context) {
	g.JSON(http.StatusNotImplemented, gin.H{
		"error": "the Dynamo dialect is not served by this version; the Conductor dialect is under /conductor/v1 on this port",
	})
}
