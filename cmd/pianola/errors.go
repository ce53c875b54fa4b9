package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// Exit statuses of all commands except diff.
const (
	statusDone        = 0
	statusFailed      = 1
	statusUsage       = 2
	statusInterrupted = 130 // as a shell reports SIGINT
)

// usageError reports a malformed command line, such as an unknown flag or too many arguments. A
// well-formed flag whose value does not suit the model is not a usageError.
type usageError struct{ command, what string }

func (e *usageError) Error() string {
	return fmt.Sprintf("%s (see %s --help)", e.what, e.command)
}

// usage returns a usageError of a command.
func usage(cmd *cobra.Command, format string, args ...any) error {
	return &usageError{cmd.CommandPath(), fmt.Sprintf(format, args...)}
}

// statusError ends the command with the given exit status. If err is nil, nothing is printed.
type statusError struct {
	status int
	err    error
}

func (e *statusError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.status)
	}
	return e.err.Error()
}

func (e *statusError) Unwrap() error { return e.err }

// exitStatus prints err, if it has a text, and returns the exit status for it.
func exitStatus(ctx context.Context, stderr io.Writer, err error) int {
	if err == nil {
		return statusDone
	}
	var own *statusError
	if errors.As(err, &own) {
		if own.err != nil {
			report(stderr, own.err)
		}
		return own.status
	}
	var wrong *usageError
	if errors.As(err, &wrong) {
		report(stderr, err)
		return statusUsage
	}
	if ctx.Err() != nil {
		report(stderr, errors.New("interrupted"))
		return statusInterrupted
	}
	report(stderr, err)
	return statusFailed
}

// report writes an error as one line that begins with the program's name once.
func report(w io.Writer, err error) {
	fmt.Fprintf(w, "pianola: %s\n", oneLine(strings.TrimPrefix(err.Error(), "pianola: ")))
}

// oneLine joins lines into one and escapes characters that are not printable, so that names in a
// file cannot send control sequences to the terminal.
func oneLine(s string) string {
	s = strings.ReplaceAll(strings.TrimSpace(s), "\n", "; ")
	var b strings.Builder
	for _, r := range s {
		if strconv.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		q := strconv.QuoteRune(r)
		b.WriteString(q[1 : len(q)-1])
	}
	return b.String()
}
