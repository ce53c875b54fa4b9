// Package jinja renders the subset of Jinja2 that the chat templates of models use. It is
// configured like transformers: trim_blocks, lstrip_blocks, loop controls, the generation tag,
// and a sandbox.
//
// A template comes from a model file and may be hostile. It cannot read files and calls only
// Go code of this package. Every step and every byte of output counts against a budget.
// Templates and their values cannot be nested deeply enough to exhaust the stack. The package
// knows text and values and must not import models.
//
// These features of Jinja2 are not supported and are an *Error when the template is parsed:
// inheritance, inclusion and imports, {% do %}, {% autoescape %}, line statements, and filters
// for web pages. An unknown filter or test inside an if is an *Error only when it is executed.
// Text is never marked as escaped. Lists and dictionaries are immutable, as in transformers'
// sandbox.
package jinja

import (
	"errors"
	"fmt"
)

// These constants limit the size and the nesting of templates and values.
const (
	MaxSource = 1 << 20 // bytes of a template
	maxDepth  = 100     // nesting of expressions, blocks and values
	maxCalls  = 50      // nesting of macro calls
	maxRange  = 100_000 // elements of a range, as in Jinja2's sandbox
)

// DefaultBudget is the number of steps of a render if Options.Budget is 0. A step is the
// evaluation of one node or 32 bytes of text.
const DefaultBudget = 2 << 20

// ErrBudget reports that a template has used up its budget.
var ErrBudget = errors.New("jinja: the template takes too long or produces too much text")

// Error is an error in a template, found while it is parsed or rendered.
type Error struct {
	Line int // line number, beginning at 1
	Err  error
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("jinja: line %d: %v", e.Line, e.Err) }

// Unwrap returns the underlying error.
func (e *Error) Unwrap() error { return e.Err }

// RaisedError reports that a template has called raise_exception.
type RaisedError struct{ Message string }

// Error implements error.
func (e *RaisedError) Error() string { return e.Message }

// failure is a panic value that carries an error to Parse or Render, which recover it.
type failure struct{ err error }

func fail(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

// at is deferred to add the line number to a failure.
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
