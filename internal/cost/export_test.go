package cost

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/table"
)

// Requests returns the bytes that the formulas give for each binding of a command on a kind of device.
func Requests(t *table.Table, p *table.Program, index int, at Point, device string) (loads, stores [decl.MaxBindings]uint64, err error) {
	step := at.step()
	env, err := t.EnvAt(index, p, &step)
	if err != nil {
		return loads, stores, err
	}
	v := view{Env: env, t: t, c: &t.Cmds[index], sequences: at.Sequences}
	if err := v.read(); err != nil {
		return loads, stores, err
	}
	r := v.requested(device)
	return r.loads, r.stores, nil
}
