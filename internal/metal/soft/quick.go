//go:build softmetal

package soft

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/table"
)

// Quicken replaces a table's matrix products with vector products, because the emulator takes a
// hundred times as long for the former.
func Quicken(t *table.Table) error {
	const group = 8
	for i := range t.Programs {
		p := &t.Programs[i]
		for j := range t.ProgramCmds(p) {
			c := &t.Cmds[int(p.First)+j]
			if c.Kernel != kernels.GEMM {
				continue
			}
			spec := t.Specs[c.Spec]
			spec.Kernel = kernels.GEMV
			at := slices.Index(t.Specs, spec)
			if at < 0 {
				at = len(t.Specs)
				t.Specs = append(t.Specs, spec)
			}
			c.Kernel, c.Spec = kernels.GEMV, uint16(at)
			out := binary.LittleEndian.Uint32(c.Param[4:])
			binary.LittleEndian.PutUint32(c.Param[16:], group)
			binary.LittleEndian.PutUint32(c.Param[20:], 1)
			c.Grid = [3]uint32{(out + group - 1) / group, p.MaxRows, 1}
			env, err := t.NewEnv(c, p)
			if err != nil {
				return err
			}
			n, err := env.ThreadgroupBytes()
			if err != nil {
				return err
			}
			c.TGMem = uint32(n)
		}
	}
	// An unused specialisation would be a fault of the table.
	used := make([]int, len(t.Specs))
	for i := range t.Cmds {
		used[t.Cmds[i].Spec]++
	}
	var specs []table.Spec
	for i := range t.Specs {
		if used[i] > 0 {
			specs = append(specs, t.Specs[i])
		}
		used[i] = len(specs) - 1
	}
	for i := range t.Cmds {
		t.Cmds[i].Spec = uint16(used[t.Cmds[i].Spec])
	}
	t.Specs = specs
	return errors.Join(t.Validate()...)
}
