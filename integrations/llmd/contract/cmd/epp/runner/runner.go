// Package runner declares what the picker uses of the router's package of this path.
package runner

import (
	"context"
	"errors"
)

// Runner runs an endpoint picker.
type Runner struct{}

// NewRunner returns a runner.
func NewRunner() *Runner { return &Runner{} }

// Run returns an error: declarations route nothing.
func (*Runner) Run(context.Context) error {
	return errors.New("built against declarations: drop the replace of llm-d-router in go.mod to build a picker")
}
