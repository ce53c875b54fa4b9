package cuda

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/table"
)

// The kernel patch advances a recorded token. It is the first command of each token and runs as
// one threadgroup. It writes the values of the step record to the secondary bytes of the
// program's patched commands and advances the step record to the next token. If the stop flag
// is set, it does neither. Its arguments have the same form as those of other kernels:
//
//	binding 0   const pianola_patch *patches     [count]
//	binding 1   uint8_t *secondary               [records * 16]
//	params      pianola_patch_params
//	step        pianola_step *step
//
//	typedef struct pianola_patch {
//	    uint32_t second;    // index of the command's secondary bytes, below records
//	    uint8_t kind;       // a PIANOLA_PATCH kind, as table.Patch, without PatchRows
//	    uint8_t rows;       // 1: step->rows is written to byte 12
//	    uint8_t offset;     // offset that the kind's value is written to; 0xff if there is none
//	    uint8_t reserved;
//	} pianola_patch;
//
//	typedef struct pianola_patch_params {
//	    uint32_t count;
//	    uint32_t records;
//	} pianola_patch_params;
//
// The values are fields of table.Step: token_index, position, kv_len, token_index + rows,
// row. All threads read the step block before a barrier; after it one thread
// adds rows to position, kv_row, kv_len and token_index.

const patchThreads = 256

// secondaryBytes returns the static secondary bytes of all commands.
func secondaryBytes(t *table.Table) []byte {
	b := make([]byte, 0, decl.SecondBytes*len(t.Cmds))
	for i := range t.Cmds {
		b = append(b, t.Cmds[i].Second[:]...)
	}
	return b
}

// stepCancel is the offset of the word in the step block that Cancel sets to 1. The kernel patch
// turns it into a stop, so that the stop flag changes only between tokens.
const stepCancel = device.StepCount + 4
