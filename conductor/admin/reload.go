package admin

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/ingest"
	"example.com/conductor/conductor/reply"
)

// Results of a reload.
const (
	ReloadApplied   = "applied"
	ReloadUnchanged = "unchanged"
	ReloadRefused   = "refused" // a change needs a restart, or a source cannot be registered: nothing was changed
	ReloadInvalid   = "invalid" // the settings have mistakes: nothing was changed
)

// Reload is the outcome of a reload.
type Reload struct {
	Result  string   `json:"result"`
	Errors  []string `json:"errors"`
	Changes []Change `json:"changes"`
	// Added, Changed and Removed are keys of sources.
	Added   []string `json:"added"`
	Changed []string `json:"changed"`
	Removed []string `json:"removed"`
	// Files are the faults of files of discovery.sources_dir, by name.
	Files map[string]string `json:"files,omitempty"`
}

// Change is a setting that differs from the one in use.
type Change struct {
	Path string `json:"path"`
	Was  string `json:"was"`
	Is   string `json:"is"`
	Live bool   `json:"live"`
}

// reload reads the settings again: POST /admin/reload[?dry_run=1].
func (a *api) reload(g *gin.Context) (any, error) {
	if a.opts.Reload == nil {
		return nil, ingest.ErrPast
	}
	dry, err := reply.ReadFlag(g, "dry_run")
	if err != nil {
		return nil, err
	}
	r := a.opts.Reload(dry)
	for _, list := range []*[]string{&r.Errors, &r.Added, &r.Changed, &r.Removed} {
		*list = append([]string{}, *list...) // never null
	}
	r.Changes = append([]Change{}, r.Changes...)
	status := http.StatusOK
	if len(r.Errors) > 0 {
		status = http.StatusConflict
	}
	return reply.Result{Status: status, Body: r}, nil
}
