package http

import (
	"errors"

	"github.com/gin-gonic/gin"

	"example.com/conductor/conductor"
	"example.com/conductor/conductor/access"
	"example.com/conductor/conductor/body"
	"example.com/conductor/conductor/feedback"
	"example.com/conductor/conductor/forward"
	"example.com/conductor/conductor/invalid"
	"example.com/conductor/conductor/reply"
)

var feedbackFields = body.Of("instance_id", "tenant_id", "medium", "matched_tokens", "cached_tokens")

// feedback takes a report of what an instance found: POST /feedback.
func (a *api) feedback(g *gin.Context) (any, error) {
	in := body.Get()
	defer in.Release()
	f, err := a.readForm(g, in, feedbackFields)
	if err != nil {
		return nil, err
	}
	report := feedback.Report{
		Instance: f.required("instance_id"), Tenant: f.text("tenant_id"), Medium: f.text("medium"),
		Matched: f.integer("matched_tokens", 0), Cached: f.integer("cached_tokens", 0),
	}
	if f.err == nil && len(report.Medium) > maxMediumName {
		f.keepError(invalid.Field("medium", "out_of_range", "medium must have at most %d bytes", maxMediumName))
	}
	if f.err != nil {
		return nil, f.err
	}
	res, err := access.View(a.conductor, g).Feedback(report)
	if errors.As(err, new(*conductor.UnservedError)) {
		return reply.Sent{}, forward.Send(g, in.Src, err)
	}
	if err != nil {
		return nil, err
	}
	return gin.H{"precision": res.Precision, "recall": res.Recall, "reports": res.Reports, "resynced": res.Resynced}, nil
}

// maxMediumName bounds the name of a medium in bytes: it becomes a label.
const maxMediumName = 64
