package main

import (
	"fmt"
	"math"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/table"
)

// registerCheck adds --check-activations to a command.
func (f *modelFlags) registerCheck(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.checkActivations, "check-activations", false,
		"fail at the first command with a NaN or infinite result, and name it; commands then run one at a time")
}

// watch makes a session check its activations if --check-activations was given.
func (f *modelFlags) watch(m *pianola.Model, s *pianola.Session) error {
	if !f.checkActivations {
		return nil
	}
	return s.SetTaps(&pianola.Taps{Activations: []string{"*"}, Show: func(a pianola.Activation) error { return finite(m.Table(), &a) }})
}

// notFiniteError reports the first command with a NaN or infinite result.
type notFiniteError struct {
	pianola.Activation
	nan, infinite int // number of such values
	first         int // index of the first one
}

func (e *notFiniteError) Error() string {
	cols := e.Shape[1]
	return fmt.Sprintf("%s: command %d (%s): result %s at position %d: %d values are NaN and %d infinite of %d; the first is element %d of its row",
		e.Program, e.Command, e.Label, e.Name, e.Position+e.first/cols, e.nan, e.infinite, len(e.Values), e.first%cols)
}

// finite returns a *notFiniteError if a result contains NaN or infinity. Of attention whose positions
// are split it checks nothing, because splits without a position write nothing; attn_merge follows.
func finite(t *table.Table, a *pianola.Activation) error {
	c := &t.Cmds[a.Command]
	if k, ok := decl.Lookup(c.Kernel); ok {
		if i, ok := k.Spec("split"); ok && t.Specs[c.Spec].Values[i] != 0 {
			return nil
		}
	}
	e := notFiniteError{Activation: *a}
	for i, v := range a.Values {
		x := float64(v)
		switch {
		case math.IsNaN(x):
			e.nan++
		case math.IsInf(x, 0):
			e.infinite++
		default:
			continue
		}
		if e.nan+e.infinite == 1 {
			e.first = i
		}
	}
	if e.nan+e.infinite > 0 {
		return &e
	}
	return nil
}
