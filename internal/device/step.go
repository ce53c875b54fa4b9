package device

import (
	"encoding/binary"

	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// Offsets of the step block, as shaders/params.h has them.
const (
	StepPlace = 32 // bytes at its start that say where a token is
	StepStop  = 32
	StepCount = 36

	stepRow     = 24
	stepDrafted = 44
	stepTrust   = 52
	stepUntil   = 56
)

// Values of the stop flag. A kernel looks only whether it is 0.
const (
	StopID  = 0xff    // mask of what argmax writes
	StopDry = 1 << 16 // set from the start: replaying without kernels
)

// PutStep encodes a step block, or its first StepPlace bytes if b has no more.
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
}

// Result returns what a step block says at the end of a submission, and its stop
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

// Advance moves a step some tokens on, as the kernel patch does for each.
func Advance(s *table.Step, tokens uint32) {
	n := s.Rows * tokens
	s.Position += n
	s.KVRow += n
	s.KVLen += n
	s.TokenIndex += n
}

// WarmRun returns a run of a program on as few rows of an empty context as it can
// have.
func WarmRun(t *table.Table, program int) replay.Run {
	r := replay.Run{Program: uint32(program), Count: 1, Step: table.Step{KVLen: 1, Rows: 1}}
	if p := &t.Programs[program]; p.Moves() {
		r.Step.Rows = p.MaxRows
	}
	return r
}

// PatchSize is what a patch takes in a list.
const PatchSize = 8

// AppendPatch appends a patch to a list, as the kernel patch reads it: the record
// of secondary bytes that it writes to, its kind without the flag rows, whether
// the rows go to byte 12, and where its first and second value go.
func AppendPatch(b []byte, record uint32, kind table.Patch, rows bool, offsets [2]uint8) []byte {
	flag := byte(0)
	if rows {
		flag = 1
	}
	b = binary.LittleEndian.AppendUint32(b, record)
	return append(b, byte(kind), flag, offsets[0], offsets[1])
}

// AppendPatches appends the patches of a program.
func AppendPatches(b []byte, t *table.Table, p *table.Program) []byte {
	for i := range t.ProgramCmds(p) {
		if c := &t.Cmds[int(p.First)+i]; c.Patch != table.PatchNone {
			b = AppendPatch(b, p.First+uint32(i), c.Patch.Kind(), c.Patch&table.PatchRows != 0, c.PatchOffset)
		}
	}
	return b
}
