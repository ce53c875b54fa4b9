// Package jinja renders the subset of Jinja2 that the chat templates of models use, configured
// like transformers: trim_blocks, lstrip_blocks, loop controls, the generation tag, and a
// sandbox.
//
// A template comes from a model's file and is hostile. It cannot read files and calls only this
// package's Go code. Every step and every byte of output counts against a budget, and neither a
// template nor its values can nest deeply enough to exhaust the stack. The package knows text and
// values. It must not know models.
//
// Unsupported features of Jinja2 are an *Error when the template is parsed, unless they are
// within an if: inheritance, inclusion and imports, {% do %}, {% autoescape %}, line statements,
// and filters for web pages. Text is never marked as escaped. Lists and dictionaries cannot be
// changed, as in transformers' sandbox.
package jinja

import (
	"errors"
	"fmt"
)

// Limits on templates.
const (
	MaxSource = 1 << 20 // bytes of a template
	maxDepth  = 100     // nesting of expressions, blocks and values
	maxCalls  = 50      // nesting of macro calls
	maxRange  = 100_000 // elements of a range, as in Jinja2's sandbox
)

// DefaultBudget is the number of steps of a render if Options.Budget is 0. One step is one
// node or 32 bytes of text.
const DefaultBudget = 2 << 20

// ErrBudget is returned if a template has used up its budget.
var ErrBudget = errors.New("jinja: the template takes too long or makes too much text")

// Error is an error in a template, found while it is parsed or rendered.
type Error struct {
	Line int // from 1
	Err  error
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("jinja: line %d: %v", e.Line, e.Err) }

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// RaisedError is the error of a template that calls raise_exception.
type RaisedError struct{ Message string }

// Error implements error.
func (e *RaisedError) Error() string { return e.Message }

// failure carries an error through a panic to Parse or Render, which recover it.
type failure struct{ err error }

func fail(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

// at is deferred to add the line to a failure.
func at(line int) {
	switch f := recover().(type) {
	case nil:
	case failure:
		var e *Error
		if !errors.As(f.err, &e) && !errors.Is(f.err, ErrBudget) {
			f.err = &Error{line, f.err}
		}
		panic(f)
	default:
		panic(f)
	}
}

// catch is deferred to recover a failure and store its error.
func catch(err *error) {
	switch f := recover().(type) {
	case nil:
	case failure:
		*err = f.err
	default:
		panic(f)
	}
}
