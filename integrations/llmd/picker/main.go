// Picker is llm-d's endpoint picker with Conductor as a producer of prefix matches.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/llm-d/llm-d-router/cmd/epp/runner"

	"example.com/conductor/integrations/llmd"
)

func main() {
	llmd.Register()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := runner.NewRunner().Run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
