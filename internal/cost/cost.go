// Package cost predicts what the commands of a table cost on a chip: the bytes that they must move,
// the bytes that their kernels request, their operations, and their time.
//
// The bytes that a command must move, and its multiply-adds, follow from the declaration of its
// kernel. The bytes that a kernel requests follow from formulas, which tests compare with counts of
// the emulated kernels. The time follows from both and from the rates of the chip.
//
// The package must not know the compiler or devices, so that both can use it.
package cost

import (
	"fmt"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/table"
)

// Point is the state of a sequence in which the cost of a program is predicted.
type Point struct {
	Position int // positions in the KV cache before the first row
	Rows     int // active rows, at least 1

	// Sequences predicts a step of a batch: each row is the next token of its own sequence, all of
	// them after Position positions.
	Sequences bool
}

// step returns the step record of a program at the point.
func (at Point) step() table.Step {
	position := uint32(at.Position)
	return table.Step{
		Position: position, KVRow: position, KVLen: position + 1, TokenIndex: position,
		Row: uint32(at.Rows - 1), Rows: uint32(at.Rows),
	}
}

// Bound is the resource that determines the time of a command.
type Bound uint8

// The bounds.
const (
	Latency Bound = iota // starting the command and waiting for the previous one
	Memory               // the bandwidth of the memory
	Cache                // the bandwidth of the last cache
	Matrix               // the rate of the matrix units
	Vector               // the rate of the vector units
)

// String returns the name of the bound.
func (b Bound) String() string {
	return [...]string{"latency", "memory", "cache", "matrix", "vector"}[b]
}

// Command is the cost of one command. Bytes are those of device memory.
type Command struct {
	Barrier      bool   // the command waits for all earlier commands
	Threadgroups uint64 // threadgroups with work

	// Compulsory bytes: what a kernel reads and writes that accesses each byte once.
	Read    uint64
	Written uint64
	Model   uint64 // the part of them that belongs to weights and KV caches, which no cache holds from token to token

	Requested uint64 // bytes that all threads together load and store

	Matrix uint64 // multiply-adds on matrix units
	Vector uint64 // multiply-adds on vector units
	Other  uint64 // other operations on vector units: one lane's arithmetic instruction each

	Seconds float64 // predicted time, from the end of the previous command to the end of this one
	Bound   Bound
}

// Compulsory returns the compulsory bytes.
func (c *Command) Compulsory() uint64 { return c.Read + c.Written }

// Program predicts the cost of the commands of a program, in order. It fails if the table has not
// been validated and a command is invalid, or if the point exceeds what the program is compiled for.
func Program(t *table.Table, p *table.Program, c *chip.Chip, at Point) ([]Command, error) {
	last := at.Position + at.Rows // positions that the last row sees
	if p.Flags.Has(table.FlagBatch) {
		at.Sequences, last = true, at.Position+1
	}
	if at.Rows < 1 || at.Rows > int(p.MaxRows) || at.Position < 0 || last > int(t.Header.Context) {
		return nil, fmt.Errorf("cost: %d rows after %d positions: program %s has at most %d rows and the context %d positions",
			at.Rows, at.Position, p.Name, p.MaxRows, t.Header.Context)
	}
	rates := RatesOf(c)
	step := at.step()
	commands := make([]Command, p.Count)
	for i := range commands {
		index := int(p.First) + i
		env, err := t.EnvAt(index, p, &step)
		if err == nil {
			v := &view{Env: env, t: t, c: &t.Cmds[index], sequences: at.Sequences}
			if p.Flags.Has(table.FlagBatch) {
				v.sees = uint64(at.Position + 1)
			}
			err = predict(&commands[i], v, &rates)
		}
		if err != nil {
			return nil, fmt.Errorf("cost: command %d (%s): %w", index, t.Label(index), err)
		}
	}
	return commands, nil
}

// predict predicts the cost of one command.
func predict(to *Command, v *view, rates *Rates) error {
	if err := v.read(); err != nil {
		return err
	}
	to.Barrier = v.c.Barrier != 0
	to.Threadgroups = v.threadgroups()
	v.bytes(to)
	v.operations(to, rates)
	r := v.requested(rates.device)
	to.Requested = r.sum()
	rates.time(to, v)
	return nil
}

// Total is the cost of several commands.
type Total struct {
	Commands, Barriers           int
	Compulsory, Requested, Model uint64
	Matrix, Vector, Other        uint64
	Seconds                      float64
}

// Add adds a command.
func (t *Total) Add(c *Command) {
	t.Commands++
	if c.Barrier {
		t.Barriers++
	}
	t.Compulsory += c.Compulsory()
	t.Requested += c.Requested
	t.Model += c.Model
	t.Matrix += c.Matrix
	t.Vector += c.Vector
	t.Other += c.Other
	t.Seconds += c.Seconds
}

// Amplification returns the requested bytes divided by the compulsory bytes.
func (t *Total) Amplification() float64 {
	if t.Compulsory == 0 {
		return 0
	}
	return float64(t.Requested) / float64(t.Compulsory)
}

// MatrixShare returns the share of the multiply-adds that matrix units execute.
func (t *Total) MatrixShare() float64 {
	if t.Matrix+t.Vector == 0 {
		return 0
	}
	return float64(t.Matrix) / float64(t.Matrix+t.Vector)
}
