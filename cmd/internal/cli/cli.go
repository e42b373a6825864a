// Package cli holds what the commands of both programs share: exit statuses, mistakes of a
// command line, output, and the flags of commands that ask a server.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"example.com/conductor/redact"
)

// Exit statuses of every command.
const (
	ExitFine  = 0
	ExitError = 1 // it failed, or it found something
	ExitUsage = 2 // the command line cannot be understood
)

// ExitHelp ends the help of the server's commands.
const ExitHelp = `

Exit status: 0 if all is well, 1 after an error or if the command looked for something and found it
(doctor, diff, config check), 2 if the command line cannot be understood.

Environment: CONDUCTOR_SERVER is the server that commands ask, CONDUCTOR_TOKEN_FILE the file of the token that they
send, CONDUCTOR_WAIT how long they wait for a server that does not listen yet (10s; 0s is not at all), and NO_COLOR
turns colours off. Commands that print for people print JSON with --json.`

// ErrReported is returned by a command that has already printed its errors: Execute prints nothing more.
var ErrReported = errors.New("reported")

// usageError is a mistake in a command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Usagef returns a usageError.
func Usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// Execute runs the command that args name, and returns its exit status. Errors go to errs.
func Execute(root *cobra.Command, errs io.Writer) int {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	explainMistakes(root)
	understood := false // the command, its flags and its arguments are known
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkFlags(cmd); err != nil {
			return err
		}
		understood = true
		return nil
	}
	cmd, err := root.ExecuteC()
	if err == nil {
		return ExitFine
	}
	switch {
	case errors.Is(err, ErrReported):
	case errors.Is(err, context.Canceled):
		fmt.Fprintf(errs, "%s: interrupted\n", root.Name())
	default:
		fmt.Fprintf(errs, "%s: %s\n", root.Name(), printableLines(HideWords(err.Error(), cmd.Flags().Args())))
	}
	if usage := (usageError{}); !understood || errors.As(err, &usage) {
		return ExitUsage
	}
	return ExitError
}

// HideWords returns a text about words of a command line without the passwords in them.
func HideWords(text string, words []string) string {
	for _, word := range words {
		if shown := redact.Word(word); shown != word {
			text = strings.ReplaceAll(text, word, shown)
		}
	}
	return redact.Text(text)
}

// Coloured reports whether text for w may have colours: w is a terminal, NO_COLOR is not set, and TERM is not dumb.
func Coloured(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(file.Fd()))
}

// JSONFlag adds the flag --json.
func JSONFlag(cmd *cobra.Command, meaning string) *bool {
	return cmd.Flags().Bool("json", false, meaning)
}

// UntilSignal returns a context of cmd that SIGINT and SIGTERM end. The third signal ends the process at once, whatever hangs. After
// stop each does.
func UntilSignal(cmd *cobra.Command) (ctx context.Context, stop context.CancelFunc) {
	ctx, cancel := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	signals, stopped := make(chan os.Signal, 3), make(chan struct{})
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		for range cap(signals) {
			select {
			case <-signals:
			case <-stopped:
				return
			}
		}
		os.Exit(ExitError)
	}()
	return ctx, sync.OnceFunc(func() {
		signal.Stop(signals)
		close(stopped)
		cancel()
	})
}
