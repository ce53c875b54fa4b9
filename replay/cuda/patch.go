package cuda

import (
	"encoding/binary"

	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/table/decl"
)

// The kernel patch is how a recorded token finds out where it is. It runs first
// in each token, as one threadgroup: it writes the values of the step block to
// the seconds of the program's patched commands and moves the step block on to
// the next token. If the stop flag is set it does neither. Its arguments are
// those of any kernel:
//
//	binding 0   const pianola_patch *patches     [count]
//	binding 1   uint8_t *seconds                 [records * 16]
//	params      pianola_patch_params
//	step        pianola_step *step
//
//	typedef struct pianola_patch {
//	    uint32_t second;    // record of the seconds, below records
//	    uint8_t kind;       // a PIANOLA_PATCH kind, as table.Patch, without the flag rows
//	    uint8_t rows;       // 1: step->rows goes to byte 12
//	    uint8_t offset[2];  // bytes of the kind's first and second value, 0xff: none
//	} pianola_patch;
//
//	typedef struct pianola_patch_params {
//	    uint32_t count;
//	    uint32_t records;
//	} pianola_patch_params;
//
// The values are those of table.Step: token_index, position, kv_len, position
// and kv_len, token_index + rows, row. All threads read the step block before a
// barrier; behind it one adds rows to position, kv_row, kv_len and token_index.

const (
	patchSize    = 8
	patchThreads = 256
)

// patchList appends the patches of a program.
func patchList(b []byte, t *table.Table, p *table.Program) []byte {
	for i := range t.ProgramCmds(p) {
		c := &t.Cmds[int(p.First)+i]
		if c.Patch == table.PatchNone {
			continue
		}
		rows := byte(0)
		if c.Patch&table.PatchRows != 0 {
			rows = 1
		}
		b = binary.LittleEndian.AppendUint32(b, p.First+uint32(i))
		b = append(b, byte(c.Patch.Kind()), rows, c.PatchOffset[0], c.PatchOffset[1])
	}
	return b
}

// seconds returns the static secondary bytes of all commands.
func seconds(t *table.Table) []byte {
	b := make([]byte, 0, decl.SecondBytes*len(t.Cmds))
	for i := range t.Cmds {
		b = append(b, t.Cmds[i].Second[:]...)
	}
	return b
}

// Offsets of the step block, as shaders/params.h has them.
const (
	stepPlace = 32 // bytes at its start that say where a token is
	stepStop  = 32
	stepCount = 36
	// stepCancel is a word that Cancel sets to 1. Patch makes a stop of it, so that
	// the stop flag changes between tokens only.
	stepCancel = 40
)

// Values of the stop flag. A kernel looks only whether it is 0.
const (
	stopID  = 0xff    // mask of what argmax writes
	stopDry = 1 << 16 // set from the start: replaying without kernels
)

// putStep encodes a step block.
func putStep(b []byte, s *table.Step) {
	le := binary.LittleEndian
	le.PutUint64(b, s.RNG)
	for i, v := range [...]uint32{s.Position, s.KVRow, s.KVLen, s.TokenIndex, s.Row, s.Rows, s.Stop, s.Count} {
		le.PutUint32(b[8+4*i:], v)
	}
	clear(b[stepCount+4 : table.StepSize])
}

// advance moves a step to the next token, as the kernel patch does.
func advance(s *table.Step) {
	s.Position += s.Rows
	s.KVRow += s.Rows
	s.KVLen += s.Rows
	s.TokenIndex += s.Rows
}
