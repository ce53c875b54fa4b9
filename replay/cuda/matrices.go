package cuda

import (
	"fmt"

	"github.com/pianola-engine/pianola/internal/cuda/driver"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/table"
)

// mapMatrices describes the matrices of commands to the GPU's copy unit. It passes the descriptors
// of a command, one for each matrix of the kernel's declaration, in the buffer after its bindings, and
// returns their size. KV caches, which move, are not described.
func (d *Device) mapMatrices(t *table.Table) (size uint64, err error) {
	var all []byte
	at := map[int]int{} // the offset of each command's descriptors
	err = device.EachCmd(name, t, func(i int, p *table.Program, c *table.Cmd) error {
		k, ok := decl.Lookup(c.Kernel)
		if !ok || !d.kernels[i].maps || len(k.Matrices) == 0 {
			return nil
		}
		env, err := t.NewEnv(c, p)
		if err != nil {
			return err
		}
		at[i] = len(all)
		for m := range k.Matrices {
			b, ok, err := k.Boxes(m, env)
			if err != nil {
				return err
			}
			var one [driver.MapSize]byte
			if ok {
				one, err = d.drv.Map(driver.Matrix{At: d.args[i].bindings[b.Binding], Rows: b.Rows, Columns: b.Columns, Stride: b.Stride})
				if err != nil {
					return fmt.Errorf("descriptor of %s: %w", k.Matrices[m].Binding, err)
				}
			}
			all = append(all, one[:]...)
		}
		return nil
	})
	if err != nil || len(all) == 0 {
		return 0, err
	}
	base, err := d.own.memory(uint64(len(all)))
	if err == nil {
		err = d.send(base, all)
	}
	if err != nil {
		return 0, fmt.Errorf("cuda: descriptors of matrices: %w", err)
	}
	for i, offset := range at {
		k, _ := decl.Lookup(t.Cmds[i].Kernel)
		d.args[i].bindings[len(k.Bindings)] = base + driver.Ptr(offset)
	}
	return uint64(len(all)), nil
}
