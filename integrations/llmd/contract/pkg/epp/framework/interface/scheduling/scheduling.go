// Package scheduling declares what the plug-in uses of the router's package of this path.
package scheduling

import (
	"github.com/llm-d/llm-d-router/pkg/epp/framework/interface/datalayer"
	"github.com/llm-d/llm-d-router/pkg/epp/framework/interface/requesthandling"
)

// TokenizedRequest has the prompts of a request.
type TokenizedRequest = requesthandling.TokenizedRequest

// InferenceRequest is a request to schedule.
type InferenceRequest struct {
	TargetModel string
	Body        *requesthandling.InferenceRequestBody
}

// Endpoint is a candidate for a request.
type Endpoint interface {
	datalayer.AttributeMap
	GetMetadata() *datalayer.EndpointMetadata
}

type endpoint struct {
	datalayer.AttributeMap
	meta *datalayer.EndpointMetadata
}

func (e endpoint) GetMetadata() *datalayer.EndpointMetadata { return e.meta }

// NewEndpoint returns a candidate.
func NewEndpoint(meta *datalayer.EndpointMetadata, _ *datalayer.Metrics, attributes datalayer.AttributeMap) Endpoint {
	if attributes == nil {
		attributes = datalayer.NewAttributes()
	}
	return endpoint{attributes, meta}
}
