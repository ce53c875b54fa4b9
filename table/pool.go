package table

import (
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/sequence"
)

// sequences checks how a command uses the state of sequences. The step block is bound to every command, so
// no binding proves that the page tables are within it.
func (v *validator) sequences(i int, c *Cmd, p *Program, env *Env) {
	of, ok := env.Value("sequences")
	if !ok {
		return
	}
	pool, pooled := sequence.Of(v.t.Header.Options, int(v.t.Header.Context))
	if pooled != (of != decl.SequencesOwn) {
		v.add(i, "it works on sequences of kind %d, and the table has %d sequences", of, pool.Sequences)
		return
	}
	if !pooled {
		return
	}
	if many := of == decl.SequencesMany; many != p.Flags.Has(FlagBatch) {
		v.add(i, "its rows have row records: %t, those of its program: %t", many, p.Flags.Has(FlagBatch))
	}
	if n, ok := env.Value("pool"); ok && n != uint64(pool.Sequences) {
		v.add(i, "it has %d sequences, the table has %d", n, pool.Sequences)
	}
	tables, ok := env.Value("tables")
	if !ok {
		return
	}
	entries, _ := env.Value("table")
	size := 4 * uint64(pool.Sequences) * entries
	if tables < pool.TablesAt(0) || size > pool.Size() || tables > pool.Size()-size {
		v.add(i, "its page tables, %d bytes at %d, are not within those of the step block, %d to %d", size, tables, pool.TablesAt(0), pool.Size())
	}
	if rows, ok := env.Value("cap"); ok && rows != uint64(pool.Pages)*sequence.PagePositions {
		v.add(i, "its cache has %d rows, the table's pools have %d pages", rows, pool.Pages)
	}
}
