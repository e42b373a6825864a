package pick

import (
	"context"

	"example.com/conductor/client"
)

// Conductor is what a Chooser asks and tells; a *client.Client is one. Errors of the server are *client.Error.
type Conductor interface {
	// Candidates asks where the prompt of a query may go. BlockSize 0 takes the one registered size.
	Candidates(context.Context, client.Query) (client.Candidates, error)
	// RoutedBatch makes up to 256 reports.
	RoutedBatch(context.Context, []client.Routed) (client.RoutedAnswer, error)
	TakeBack(ctx context.Context, tenant, requestID string) error
	// WatchInstances calls use with all instances, at once and after each change, and failed whenever it has lost Conductor, until ctx
	// ends or Conductor refuses for good.
	WatchInstances(ctx context.Context, use func([]client.Instance), failed func(error)) error
	// Services returns the sources that Conductor follows, with what is expected of their instances.
	Services(context.Context) ([]client.Service, error)
	Feedback(ctx context.Context, instance, tenant, medium string, matched, cached int) error
}
