package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// result is the outcome of a step.
type result struct {
	done   bool
	fault  string // why it failed; "" if it succeeded
	output string
	took   time.Duration
}

// run runs the command unless steps that it needs have failed. The output is that of both streams,
// in the order in which it was written.
func (s *step) run(ctx context.Context, failed []string) result {
	if len(failed) > 0 {
		return result{done: true, fault: "not run: it needs " + strings.Join(failed, " and ")}
	}
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.args[0], s.args[1:]...)
	cmd.Env = append(os.Environ(), s.env...)
	// An interrupted go command ends the program that it runs. WaitDelay is for what does not end.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	start := time.Now()
	err := cmd.Run()
	r := result{done: true, output: out.String(), took: time.Since(start)}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		r.fault = fmt.Sprintf("it was ended after %v", s.limit)
	case ctx.Err() != nil:
		r.fault = "it was interrupted"
	case err != nil:
		r.fault = err.Error()
	}
	return r
}
