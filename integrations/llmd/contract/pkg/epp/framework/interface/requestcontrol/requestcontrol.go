// Package requestcontrol declares what the plug-in uses of the router's package of this path.
package requestcontrol

import (
	"context"
	"time"

	"github.com/llm-d/llm-d-router/pkg/epp/framework/interface/plugin"
	"github.com/llm-d/llm-d-router/pkg/epp/framework/interface/scheduling"
)

// DataProducer writes data about a request and its candidates before they are scored.
type DataProducer interface {
	plugin.ProducerPlugin
	Produce(ctx context.Context, request *scheduling.InferenceRequest, endpoints []scheduling.Endpoint) error
}

// TimeoutAwareProducer has a timeout of its own.
type TimeoutAwareProducer interface{ ProduceTimeout() time.Duration }
