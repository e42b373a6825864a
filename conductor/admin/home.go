package admin

import (
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/docs"
	"example.com/conductor/conductor/ui"
)

// homeRow says where things are on this server.
type homeRow struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Page    string `json:"page,omitempty"` // absent if ui.enabled is false
	Docs    string `json:"docs,omitempty"` // likewise
	OpenAPI string `json:"openapi"`
	Ready   string `json:"ready"`
	Metrics string `json:"metrics"`
}

// home leads browsers to the page, and tells all other clients where things are: GET /.
func (a *api) home(g *gin.Context) {
	g.Header("Vary", "Accept")
	if a.opts.Page != nil && g.NegotiateFormat(gin.MIMEJSON, gin.MIMEHTML) == gin.MIMEHTML {
		g.Header("Location", strings.TrimPrefix(ui.Root, "/")) // relative, for a proxy with a prefix
		g.Status(http.StatusFound)
		return
	}
	row := homeRow{Name: "conductor", Version: a.opts.Dialect.Version, OpenAPI: "/openapi.yaml", Ready: "/ready", Metrics: "/metrics"}
	if a.opts.Page != nil {
		row.Page = ui.Root
	}
	if a.opts.Docs != nil {
		row.Docs = docs.Root
	}
	g.JSON(http.StatusOK, row)
}
