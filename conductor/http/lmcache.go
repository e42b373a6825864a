package http

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/lmcache"
	"example.com/conductor/conductor/reply"
)

// lmcacheRow is what became of the batches of a request. The first three are LMCache's.
type lmcacheRow struct {
	Applied    int              `json:"applied"`
	Duplicates int              `json:"duplicates"`
	Stale      int              `json:"stale"`
	Rejected   int              `json:"rejected,omitempty"`  // batches that cannot be read, or of one instance too many
	Unclaimed  int              `json:"unclaimed,omitempty"` // entries that no source is registered for
	Errors     []*lmcache.Fault `json:"errors,omitempty"`    // of batches and entries, the first ones
}

// maxFaults bounds the errors of an answer.
const maxFaults = 16

// lmcacheEvents takes what instances of LMCache report: POST /lmcache/events. A fault costs its
// batch or its entry: a sender drops all batches of a request that fails.
func (a *api) lmcacheEvents(g *gin.Context) (answer any, err error) {
	defer func() {
		if err != nil {
			_, row := reply.DescribeError(err)
			a.conductor.Sources().Pushes().CountRefused("request", row.Reason)
		}
	}()
	in := body.Get()
	defer in.Release()
	if err := in.Fill(g.Writer, g.Request, a.opts.MaxBody); err != nil {
		return nil, err
	}
	var request struct {
		Batches *[]json.RawMessage `json:"batches"`
	}
	if err := json.Unmarshal(in.Src, &request); err != nil {
		var wrong *json.UnmarshalTypeError
		if json.Valid(in.Src) && errors.As(err, &wrong) && wrong.Field == "batches" {
			return nil, invalid.Field("batches", "invalid_type", "batches must be an array")
		}
		return nil, wordSyntaxError(in.Src, &body.Error{Index: -1, Reason: body.Syntax, Err: err})
	}
	switch {
	case request.Batches == nil:
		return nil, invalid.Field("batches", "missing", "batches is required")
	case len(*request.Batches) > lmcache.MaxBatches:
		return nil, invalid.Field("batches", "out_of_range", "batches has %d elements, at most %d are allowed", len(*request.Batches),
			lmcache.MaxBatches)
	case a.conductor.Ready().Recovering:
		return nil, reply.ErrRecovering
	}
	view := access.View(a.conductor, g)
	row := new(lmcacheRow)
	refuse := func(part string, batch int, f *lmcache.Fault) {
		a.conductor.Sources().Pushes().CountRefused(part, f.Reason)
		if f.Batch = batch; len(row.Errors) < maxFaults {
			row.Errors = append(row.Errors, f)
		}
	}
	for i, raw := range *request.Batches {
		b, bad, fault := lmcache.Parse(raw)
		for _, f := range bad {
			refuse("entry", i, f)
		}
		if fault != nil {
			row.Rejected++
			refuse("batch", i, fault)
			continue
		}
		p, err := view.PushLMCache(g.Request.Context(), &b)
		if err != nil {
			return nil, err
		}
		row.Unclaimed += p.Unclaimed
		switch p.Outcome {
		case lmcache.Applied:
			row.Applied++
		case lmcache.Duplicate:
			row.Duplicates++
		case lmcache.Stale:
			row.Stale++
		case lmcache.Refused:
			row.Rejected++
			refuse("batch", i, &lmcache.Fault{
				Field: "instance_id", Reason: "limit",
				Message: fmt.Sprintf("no room for the instance %.64q: %d are followed", b.Instance, lmcache.MaxInstances),
			})
		}
	}
	return row, nil
}
