package pianola

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"path"

	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// Taps select the activations and attention weights that a session shows to the caller while it
// runs. Their patterns select commands by label, in the syntax of path.Match: "layer.3.*" matches
// the commands of layer 3, "layer.*.attn.out" the command attn.out of every layer. The command
// "pianola dump" prints the labels.
//
// A fused command writes no intermediate results. TableOptions.NoFuse compiles one command for
// each operation.
type Taps struct {
	// Activations selects commands whose float32 results are shown, logits included.
	Activations []string
	// Attention selects attention commands whose attention weights are shown. The host computes
	// the weights in float64 from the command's Q and the K cache, as the command sees it.
	Attention []string
	// Show is called for each result of a selected command and for each row of attention
	// weights, in the order in which the commands ran. Other sessions wait during the call,
	// and Show must not use this one. An error ends the session's call, which returns it.
	Show func(Activation) error
}

// Activation is a result of a command, or one row of attention weights.
type Activation struct {
	Program string // "prefill", "decode", "head", "sample" or another program of the table
	Command int    // index of the command in the table
	Label   string // label of the command
	Name    string // name of the result, such as "out" or "y", or WeightsName for attention weights

	Position int // position of the first row in the context
	// Shape is [rows, columns]. For attention weights it is [heads, positions], where
	// the positions are 0 to Position; weights outside a sliding window are 0.
	Shape  [2]int
	Values []float32 // in row order; valid during the call of Taps.Show
}

// WeightsName is the value of Activation.Name for attention weights.
const WeightsName = "weights"

// TapError reports a pattern of Taps that is malformed, or that selects nothing that can be
// shown.
type TapError struct {
	Pattern string // the pattern, or "" if Taps.Show is nil
	Label   string // label of the command that cannot be shown, or ""
	Why     string // the reason, in words
	Err     error  // path.ErrBadPattern, or nil
}

// Error implements error.
func (e *TapError) Error() string {
	if e.Label != "" {
		return fmt.Sprintf("pianola: tap %.60q: command %s: %s", e.Pattern, e.Label, e.Why)
	}
	return fmt.Sprintf("pianola: tap %.60q: %s", e.Pattern, e.Why)
}

// Unwrap returns path.ErrBadPattern for a malformed pattern, and nil otherwise.
func (e *TapError) Unwrap() error { return e.Err }

// SetTaps sets the session's taps, which take effect with the next call; nil removes them. Taps
// do not change results, but the device then executes the commands one at a time. A session without
// them has no overhead. Fork does not copy them.
// The error is a *TapError, ErrBusy or ErrClosed.
func (s *Session) SetTaps(taps *Taps) error {
	if taps == nil {
		return s.s.SetTap(nil)
	}
	t := s.m.t
	p := &tapped{t: t, of: *taps, attention: make([]*attention, len(t.Cmds)), program: make([]*table.Program, len(t.Cmds))}
	p.tap.Cmds, p.tap.Show = make([]bool, len(t.Cmds)), p.show
	p.activations = make([]bool, len(t.Cmds))
	for i := range t.Programs {
		for c := range t.ProgramCmds(&t.Programs[i]) {
			p.program[int(t.Programs[i].First)+c] = &t.Programs[i]
		}
	}
	if taps.Show == nil {
		return &TapError{Why: "Taps.Show is nil"}
	}
	err := errors.Join(
		p.match(taps.Activations, p.activations, p.writes),
		p.match(taps.Attention, nil, p.attends),
	)
	if err != nil {
		return err
	}
	return s.s.SetTap(&p.tap)
}

// tapped holds the taps of a session.
type tapped struct {
	t   *table.Table
	of  Taps
	tap replay.Tap
	// By command. Commands whose weights are not shown have no attention.
	activations []bool
	attention   []*attention
	program     []*table.Program

	bytes  []byte
	values []float32
}

// match marks the commands that patterns select and that can be shown, in to unless it is nil. Each
// pattern must select at least one.
func (p *tapped) match(patterns []string, to []bool, can func(cmd int) error) error {
	for _, pattern := range patterns {
		found := false
		var last error
		for i := range p.t.Cmds {
			label := p.t.Label(i)
			ok, err := path.Match(pattern, label)
			if err != nil {
				return &TapError{Pattern: pattern, Why: "malformed pattern", Err: err}
			}
			if !ok || p.program[i] == nil {
				continue
			}
			if err := can(i); err != nil {
				last = &TapError{Pattern: pattern, Label: label, Why: err.Error()}
				continue
			}
			found, p.tap.Cmds[i] = true, true
			if to != nil {
				to[i] = true
			}
		}
		if !found && last != nil {
			return last
		}
		if !found {
			return &TapError{Pattern: pattern, Why: "matches no command of the table"}
		}
	}
	return nil
}

// writes returns an error if a command has no results that can be shown.
func (p *tapped) writes(cmd int) error {
	all, err := p.t.Written(cmd, p.program[cmd], &table.Step{KVLen: 1, Rows: 1})
	if err == nil && len(all) == 0 {
		err = errors.New("it writes no float32 results")
	}
	return err
}

// attends returns an error if the attention weights of a command cannot be shown.
func (p *tapped) attends(cmd int) (err error) {
	p.attention[cmd], err = attentionOf(p.t, cmd)
	return err
}

// show implements replay.Tap.Show.
func (p *tapped) show(cmd int, step *table.Step, read replay.Reader) error {
	a := Activation{
		Program: p.program[cmd].Name, Command: cmd, Label: p.t.Label(cmd), Position: int(step.Position),
	}
	if f := p.program[cmd].Flags; f.Has(table.FlagReadsRow) && !f.Has(table.FlagChooses) { // the step record is that of the chunk
		a.Position += int(step.Row)
	}
	env, err := p.t.EnvAt(cmd, p.program[cmd], step)
	if err != nil {
		return err
	}
	row := behind(env)
	if row > 0 && row >= int(step.Rows) {
		return nil // the command computes an inactive row
	}
	a.Position += row
	if p.activations[cmd] {
		all, err := p.t.Written(cmd, p.program[cmd], step)
		if err != nil {
			return err
		}
		for _, w := range all {
			if err := p.read(&w, read); err != nil {
				return err
			}
			a.Name, a.Shape, a.Values = w.Name, [2]int{w.Rows, w.Cols}, p.values
			if err := p.of.Show(a); err != nil {
				return err
			}
		}
	}
	if p.attention[cmd] != nil {
		return p.showWeights(env, cmd, step, a, read)
	}
	return nil
}

// read sets p.values to a result of a command, [rows, cols].
func (p *tapped) read(w *table.Written, read replay.Reader) error {
	p.bytes = resized(p.bytes, int(w.Size()))
	if err := read(w.Slot, w.Offset, p.bytes); err != nil {
		return err
	}
	p.values = resized(p.values, w.Rows*w.Cols)
	for r := range w.Rows {
		decodeF32(p.values[r*w.Cols:][:w.Cols], p.bytes[uint64(r)*w.Stride:])
	}
	return nil
}

// decodeF32 decodes float32.
func decodeF32(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

// resized returns a slice of n elements, s if it has room for them.
func resized[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
