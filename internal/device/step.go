package device

import (
	"encoding/binary"

	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// Layout of the step block; it matches shaders/params.h.
const (
	StepPlace = 32 // number of leading bytes that hold the current position
	StepStop  = 32
	StepCount = 36

	stepRow     = 24
	stepDrafted = 44
	stepTrust   = 52
	stepUntil   = 56

	// StepSequence is the offset of the sequence that the rows of a pooled table's programs belong to.
	StepSequence = 60
)

// Values of the stop flag. Kernels only test whether it is 0.
const (
	StopID  = 0xff    // mask of the values that argmax writes
	StopDry = 1 << 16 // set from the start: replay without executing kernels
)

// PutStep encodes a step block, or only its first StepPlace bytes if b is not longer.
func PutStep(b []byte, s *table.Step) {
	le := binary.LittleEndian
	le.PutUint64(b, s.RNG)
	for i, v := range [...]uint32{s.Position, s.KVRow, s.KVLen, s.TokenIndex, s.Row, s.Rows} {
		le.PutUint32(b[8+4*i:], v)
	}
	if len(b) == StepPlace {
		return
	}
	le.PutUint32(b[StepStop:], s.Stop)
	le.PutUint32(b[StepCount:], s.Count)
	clear(b[StepCount+4 : table.StepSize])
	le.PutUint32(b[stepTrust:], uint32(s.Trust))
	le.PutUint32(b[stepUntil:], s.Until)
	le.PutUint32(b[StepSequence:], s.Sequence)
}

// stepAt decodes a step block, except for the results of the submission.
func stepAt(b []byte) (s table.Step) {
	le := binary.LittleEndian
	s.RNG = le.Uint64(b)
	for i, v := range [...]*uint32{&s.Position, &s.KVRow, &s.KVLen, &s.TokenIndex, &s.Row, &s.Rows} {
		*v = le.Uint32(b[8+4*i:])
	}
	s.Trust, s.Until, s.Sequence = le.Uint32(b[stepTrust:]), le.Uint32(b[stepUntil:]), le.Uint32(b[StepSequence:])
	return s
}

// Result decodes the step block at the end of a submission and returns its result and its stop
// flag.
func Result(b []byte) (r replay.Result, stop uint32) {
	word := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
	stop = word(StepStop)
	r = replay.Result{
		Count: int(word(StepCount)), Stopped: stop&StopID != 0,
		Drafted: int(word(stepDrafted)), Accepted: int(word(stepDrafted + 4)), Row: int(word(stepRow)),
		Trust: word(stepTrust),
	}
	return r, stop
}

// Advance moves a step on by a number of tokens, as the kernel patch does after each token.
func Advance(s *table.Step, tokens uint32) {
	n := s.Rows * tokens
	s.Position += n
	s.KVRow += n
	s.KVLen += n
	s.TokenIndex += n
}

// WarmRun returns a run of a program on an empty context with as few rows as the program allows. In a
// batch its row, which ends with the run, has the record that Base writes before the warm-up's runs.
func WarmRun(t *table.Table, program int) replay.Run {
	r := replay.Run{Program: uint32(program), Count: 1, Step: table.Step{KVLen: 1, Rows: 1}}
	if p := &t.Programs[program]; p.Flags.Has(table.FlagAdvances) {
		r.Step.Rows = p.MaxRows
	}
	return r
}

// PatchSize is the size in bytes of a patch in a patch list.
const PatchSize = 8

// AppendPatch appends a patch to a list in the form that the kernel patch reads: the record of
// secondary bytes to write to, the patch kind without PatchRows, whether the rows are written to
// byte 12, and the offset that the value is written to.
func AppendPatch(b []byte, record uint32, kind table.Patch, rows bool, offset uint8) []byte {
	flag := byte(0)
	if rows {
		flag = 1
	}
	b = binary.LittleEndian.AppendUint32(b, record)
	return append(b, byte(kind), flag, offset, 0)
}

// AppendPatches appends the patches of all commands of a program.
func AppendPatches(b []byte, t *table.Table, p *table.Program) []byte {
	for i := range t.ProgramCmds(p) {
		if c := &t.Cmds[int(p.First)+i]; c.Patch != table.PatchNone {
			b = AppendPatch(b, p.First+uint32(i), c.Patch.Kind(), c.Patch&table.PatchRows != 0, c.PatchOffset[0])
		}
	}
	return b
}
