package table_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/weights"
)

// compiled returns the table of a tiny model.
func compiled(t testing.TB, o compiler.Options) *table.Table {
	t.Helper()
	return compiledOn(t, "cpu", "tiny/qwen3", o)
}

// compiledOn returns the table of a model for a chip.
func compiledOn(t testing.TB, chipName, model string, o compiler.Options) *table.Table {
	t.Helper()
	dir, err := weights.OpenDirectory(testmodels.Path(t, filepath.Join("..", "testdata", model)))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := arch.Builtin().Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := chip.Lookup(chipName)
	if err != nil {
		t.Fatal(err)
	}
	tab, err := compiler.Compile(compiler.Input{Config: cfg, Tensors: dir, Chip: c, Options: o})
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

// command returns the index of the first command with a label.
func command(t testing.TB, tab *table.Table, label string) int {
	t.Helper()
	i := slices.Index(tab.Labels, label)
	if i < 0 {
		t.Fatalf("no command %s", label)
	}
	return i
}

// TestValidateFaults damages a valid table in one way at a time.
func TestValidateFaults(t *testing.T) {
	const qkv, rope, attn = "layer.0.attn.qkv", "layer.0.attn.rope_kv", "layer.1.attn.attention"
	slot := func(tab *table.Table, name string) uint32 {
		return uint32(slices.IndexFunc(tab.Slots, func(s table.Slot) bool { return s.Name == name }))
	}
	for _, c := range []struct {
		name  string
		label string // label of the damaged command
		brk   func(tab *table.Table, c *table.Cmd)
		want  string // part of the expected fault
	}{
		{"binding past its slot", qkv, func(tab *table.Table, c *table.Cmd) {
			c.Bind[kernels.GEMVBindY].Offset = tab.Slots[c.Bind[kernels.GEMVBindY].Slot].Size - 8
		}, "past the end of slot scratch"},
		{"binding offset that wraps", qkv, func(_ *table.Table, c *table.Cmd) { c.Bind[kernels.GEMVBindY].Offset = ^uint64(0) - 3 }, "past the end"},
		{"extent through a parameter", qkv, func(_ *table.Table, c *table.Cmd) { p := kernels.GEMVParamsOf(c); p.In *= 2; p.XStride *= 2; p.Put(c) }, "past the end"},
		{"slot that is not there", qkv, func(tab *table.Table, c *table.Cmd) { c.Bind[0].Slot = uint32(len(tab.Slots)) }, "binding x: slot"},
		{"binding that must be there", qkv, func(_ *table.Table, c *table.Cmd) { c.Bind[kernels.GEMVBindW].Slot = table.NoSlot }, "binding w: bound is false"},
		{"binding that must not be there", qkv, func(_ *table.Table, c *table.Cmd) { c.Bind[kernels.GEMVBindB].Slot = 0 }, "binding b: bound is true"},
		{"binding the kernel has not", "embed", func(_ *table.Table, c *table.Cmd) { c.Bind[7].Slot = 0 }, "binding 7 is set"},
		{"binding that the constants exclude", qkv, func(_ *table.Table, c *table.Cmd) { c.Bind[7].Slot = 0 }, "binding squares: bound is true"},
		{"misaligned binding", qkv, func(_ *table.Table, c *table.Cmd) { c.Bind[0].Offset += 2 }, "multiple of 4"},
		{"patch past the secondary bytes", rope, func(_ *table.Table, c *table.Cmd) { c.PatchOffset[0] = 13 }, "past the 16 secondary bytes"},
		{"patch of a field that is not there", rope, func(_ *table.Table, c *table.Cmd) { c.PatchOffset[0] = 0 }, "has no field kv_len at offset 0"},
		{"patch of another kind", rope, func(_ *table.Table, c *table.Cmd) { c.Patch = table.PatchToken }, "has no field token"},
		{"patch kind unknown", rope, func(_ *table.Table, c *table.Cmd) { c.Patch = 100 }, "patch kind 100"},
		{"patch offset that is not used", qkv, func(_ *table.Table, c *table.Cmd) { c.PatchOffset[1] = 4 }, "is not used"},
		{"missing barrier", attn, func(_ *table.Table, c *table.Cmd) { c.Barrier = 0 }, "a barrier is missing"},
		{"missing barrier between tokens", "embed", func(_ *table.Table, c *table.Cmd) { c.Barrier = 0 }, "a barrier is missing"},
		{"alias of a read-only binding", qkv, func(_ *table.Table, c *table.Cmd) { c.Bind[kernels.GEMVBindY] = c.Bind[kernels.GEMVBindX] }, "which another of its bindings touches"},
		{"write to weights", qkv, func(tab *table.Table, c *table.Cmd) {
			c.Bind[kernels.GEMVBindY] = table.Binding{Slot: slot(tab, "layer.1.attn.qkv")}
		}, "holds weights"},
		{"unknown kernel", qkv, func(tab *table.Table, c *table.Cmd) { c.Kernel = 500 }, "kernel 500 is unknown"},
		{"unknown kernel in a spec", qkv, func(tab *table.Table, c *table.Cmd) { tab.Specs[c.Spec].Kernel = 500 }, "kernel 500 is unknown"},
		{"another kernel's spec", qkv, func(tab *table.Table, c *table.Cmd) { c.Spec = tab.Cmds[command(t, tab, attn)].Spec }, "is not one of kernel gemv"},
		{"spec past the end", qkv, func(tab *table.Table, c *table.Cmd) { c.Spec = uint16(len(tab.Specs)) }, "spec"},
		{"params size of another kernel", qkv, func(_ *table.Table, c *table.Cmd) { c.ParamSize = 8 }, "8 bytes of parameters, kernel gemv has 60"},
		{"no secondary bytes", qkv, func(_ *table.Table, c *table.Cmd) { c.SecondSize = 0 }, "0 secondary bytes"},
		{"binding count", qkv, func(_ *table.Table, c *table.Cmd) { c.Bindings = 3 }, "3 bindings, kernel gemv has 8"},
		{"grid", qkv, func(_ *table.Table, c *table.Cmd) { c.Grid[0]++ }, "grid"},
		{"threadgroup", qkv, func(_ *table.Table, c *table.Cmd) { c.Threadgroup[1] = 2000 }, "threadgroup"},
		{"rows of y that overlap", qkv, func(_ *table.Table, c *table.Cmd) { p := kernels.GEMVParamsOf(c); p.YStride = 1; p.Put(c) }, "out <= y_stride does not hold"},
		{"a cache shorter than the context", attn, func(_ *table.Table, c *table.Cmd) { p := kernels.AttnParamsOf(c); p.Cap--; p.Put(c) }, "windowed || context <= cap does not hold"},
		{"no KV heads", attn, func(_ *table.Table, c *table.Cmd) { p := kernels.AttnParamsOf(c); p.KVHeads = 0; p.Put(c) }, "kv_heads >= 1 does not hold"},
		{"weight type", qkv, func(tab *table.Table, c *table.Cmd) { tab.Specs[c.Spec].Values[kernels.GEMVSpecWType] = 255 }, "weight type 255"},
		{"constant without meaning", qkv, func(tab *table.Table, c *table.Cmd) { tab.Specs[c.Spec].Values[kernels.GEMVSpecInput] = 9 }, "input is 9"},
		{"context of 0", qkv, func(tab *table.Table, _ *table.Cmd) { tab.Header.Context = 0 }, "context 0"},
		{"program past the end", qkv, func(tab *table.Table, _ *table.Cmd) { tab.Programs[len(tab.Programs)-1].Count++ }, "program 4"},
		{"program rows", qkv, func(tab *table.Table, _ *table.Cmd) { tab.Programs[1].MaxRows++ }, "rows are not in"},
		{"slot size 0", qkv, func(tab *table.Table, _ *table.Cmd) { tab.Slots[5].Size = 0 }, "size 0"},
		{"slot scope", qkv, func(tab *table.Table, _ *table.Cmd) { tab.Slots[5].Scope = table.ScopeModel }, "has scope"},
		{"two token rings", qkv, func(tab *table.Table, _ *table.Cmd) { tab.Slots[1] = tab.Slots[0] }, "2 slots of kind tokens"},
		{"label missing", qkv, func(tab *table.Table, _ *table.Cmd) { tab.Labels = tab.Labels[1:] }, "labels"},
		{"upload gap", qkv, func(tab *table.Table, _ *table.Cmd) { tab.Uploads[4].DstOffset += 8 }, "bytes are filled"},
		{"upload missing", qkv, func(tab *table.Table, _ *table.Cmd) { tab.Uploads = tab.Uploads[:len(tab.Uploads)-1] }, "uploads fill 0 of"},
		{"upload past the constants", qkv, func(tab *table.Table, _ *table.Cmd) { tab.Const = tab.Const[1:] }, "constants"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tab := compiled(t, compiler.Options{Context: 100})
			if faults := tab.Validate(); len(faults) > 0 {
				t.Fatal(faults)
			}
			i := command(t, tab, c.label)
			c.brk(tab, &tab.Cmds[i])
			faults := tab.Validate()
			if !slices.ContainsFunc(faults, func(err error) bool { return strings.Contains(err.Error(), c.want) }) {
				t.Errorf("got %v, want a fault with %q", faults, c.want)
			}
		})
	}
}

// TestValidateRandom changes random bytes of commands, slots and specs. Validate must return without
// a panic for all of them.
func TestValidateRandom(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	base, err := compiled(t, compiler.Options{Context: 64, AllLogits: true}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	for range 2000 {
		tab, err := table.Decode(base)
		if err != nil {
			t.Fatal(err)
		}
		for range 1 + rng.IntN(4) {
			c := &tab.Cmds[rng.IntN(len(tab.Cmds))]
			switch rng.IntN(8) {
			case 0:
				c.Param[rng.IntN(len(c.Param))] ^= byte(1 << rng.IntN(8))
			case 1:
				c.Second[rng.IntN(len(c.Second))] ^= byte(1 << rng.IntN(8))
			case 2:
				c.Bind[rng.IntN(len(c.Bind))].Offset ^= 1 << rng.IntN(64)
			case 3:
				c.Bind[rng.IntN(len(c.Bind))].Slot ^= 1 << rng.IntN(32)
			case 4:
				c.Kernel = decl.ID(rng.IntN(20))
			case 5:
				tab.Specs[rng.IntN(len(tab.Specs))].Values[rng.IntN(decl.MaxSpecs)] ^= 1 << rng.IntN(32)
			case 6:
				tab.Slots[rng.IntN(len(tab.Slots))].Size ^= 1 << rng.IntN(64)
			case 7:
				tab.Header.Context ^= 1 << rng.IntN(32)
			}
		}
		tab.Validate()
	}
}

// TestHazards checks the barriers against all pairs of commands in random sequences of programs.
func TestHazards(t *testing.T) {
	type access struct {
		slot   uint32
		lo, hi uint64
		write  bool
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for _, o := range []compiler.Options{{AllLogits: true, Hidden: true}, {NoFuse: true, AllLogits: true, Context: 70}} {
		tab := compiled(t, o)
		_, step, _ := tab.Slot(table.SlotStep)
		acc := make([][]access, len(tab.Cmds))
		for pi := range tab.Programs {
			p := &tab.Programs[pi]
			for i := p.First; i < p.First+p.Count; i++ {
				env, err := tab.NewEnv(&tab.Cmds[i], p)
				if err != nil {
					t.Fatal(err)
				}
				k, ok := decl.Lookup(env.Kernel())
				if !ok {
					t.Fatalf("command %d has kernel %d", i, env.Kernel())
				}
				for b, d := range k.Bindings {
					bind := tab.Cmds[i].Bind[b]
					if bind.Slot == table.NoSlot {
						continue
					}
					n, err := env.Extent(b)
					if err != nil {
						t.Fatal(err)
					}
					acc[i] = append(acc[i], access{bind.Slot, bind.Offset, bind.Offset + n, d.Role != decl.Read})
				}
				acc[i] = append(acc[i], access{step, 0, table.StepSize, k.Step})
			}
		}
		for range 20 {
			var seq []int
			for range 6 {
				p := tab.Programs[rng.IntN(len(tab.Programs))]
				for i := p.First; i < p.First+p.Count; i++ {
					seq = append(seq, int(i))
				}
			}
			lastBarrier := -1
			for j, cmd := range seq {
				if tab.Cmds[cmd].Barrier != 0 {
					lastBarrier = j
				}
				for i := lastBarrier; i < j; i++ {
					if i < 0 {
						continue
					}
					for _, a := range acc[seq[i]] {
						for _, b := range acc[cmd] {
							if a.slot == b.slot && (a.write || b.write) && a.lo < b.hi && b.lo < a.hi {
								t.Fatalf("%s and %s touch slot %s without a barrier between", tab.Label(seq[i]), tab.Label(cmd), tab.Slots[a.slot].Name)
							}
						}
					}
				}
			}
		}
	}
}

func TestPatch(t *testing.T) {
	step := table.Step{Position: 10, KVRow: 20, KVLen: 30, TokenIndex: 40, Row: 50, Rows: 60}
	for _, c := range []struct {
		patch   table.Patch
		offsets [2]uint8
		want    map[int]uint32
		name    string
	}{
		{table.PatchNone, [2]uint8{0, 4}, nil, "none"},
		{table.PatchToken, [2]uint8{0, table.NoPatch}, map[int]uint32{0: 40}, "token"},
		{table.PatchPosition, [2]uint8{4, table.NoPatch}, map[int]uint32{4: 10}, "position"},
		{table.PatchKVLen, [2]uint8{8, table.NoPatch}, map[int]uint32{8: 30}, "kv_len"},
		{table.PatchArgmax, [2]uint8{0, table.NoPatch}, map[int]uint32{0: 100}, "argmax"},
		{table.PatchRow, [2]uint8{0, table.NoPatch}, map[int]uint32{0: 50}, "row"},
		{table.PatchRows, [2]uint8{table.NoPatch, table.NoPatch}, map[int]uint32{12: 60}, "rows"},
		{table.PatchKVLen | table.PatchRows, [2]uint8{4, table.NoPatch}, map[int]uint32{4: 30, 12: 60}, "kv_len+rows"},
		{table.PatchToken, [2]uint8{13, table.NoPatch}, nil, "token"}, // past the end: ignored
	} {
		cmd := table.Cmd{Patch: c.patch, PatchOffset: c.offsets}
		second := cmd.Second
		cmd.Apply(&step, &second)
		for off := 0; off+4 <= len(second); off += 4 {
			if got := table.Field(&second, off); got != c.want[off] {
				t.Errorf("%s %v: offset %d is %d, want %d", c.patch, c.offsets, off, got, c.want[off])
			}
		}
		if c.patch.String() != c.name {
			t.Errorf("%s, want %s", c.patch, c.name)
		}
	}
}

// TestVerifyRuns checks the limits of verify runs and of the program's commands.
func TestVerifyRuns(t *testing.T) {
	tab := compiled(t, compiler.Options{Draft: 3, Context: 64})
	_, verify, _ := tab.Program(table.ProgramVerify)
	for _, c := range []struct {
		count, rows, until uint32
		want               string
	}{
		{1, 4, 0, ""}, {16, 4, 0, ""}, {17, 4, 0, "past the context"}, {1, 1, 0, ""}, {17, 1, 0, "past the context"},
		{1, 5, 0, "5 rows are not within 1 to 4"},
		{99, 4, 61, ""}, {1, 4, 62, "past the context"}, {1, 4, 4, ""}, {1, 4, 3, "past the end at 3"}, {1, 1, 65, "past the context"},
	} {
		run := replay.Run{Program: uint32(verify), Count: c.count, Step: table.Step{KVLen: 1, Rows: c.rows, Until: c.until}}
		err := replay.CheckRun(tab, &run)
		if got := run.Positions(); c.until > 0 && got != int(c.until)+table.MaxDraft {
			t.Errorf("until %d: %d positions", c.until, got)
		}
		if got := fmt.Sprint(err); (err == nil) != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%d of %d rows until %d: %v, want %q", c.count, c.rows, c.until, err, c.want)
		}
	}
	_, decode, _ := tab.Program(table.ProgramDecode)
	if err := replay.CheckRun(tab, &replay.Run{Program: uint32(decode), Count: 1, Step: table.Step{KVLen: 1, Rows: 1, Until: 9}}); err == nil {
		t.Error("CheckRun accepts Until in a run of decode")
	}
	find := func(tab *table.Table, label string) *table.Cmd { return &tab.Cmds[command(t, tab, label)] }
	for want, brk := range map[string]func(tab *table.Table){
		"draft < rows": func(tab *table.Table) {
			p := kernels.DraftParamsOf(find(tab, "verify.draft"))
			p.Draft = 4
			p.Put(find(tab, "verify.draft"))
		},
		"rows <= max_rows": func(tab *table.Table) {
			p := kernels.AcceptParamsOf(find(tab, "verify.accept"))
			p.MaxRows = 3
			p.Put(find(tab, "verify.accept"))
		},
		"its flags are chooses, its commands declare chooses,advances": func(tab *table.Table) {
			_, logits, _ := tab.Slot(table.SlotLogits)
			tab.Programs[verify].Flags, tab.Slots[logits].Size = table.FlagChooses, tab.Slots[logits].Size/4
		},
		"rows are not in 1..32": func(tab *table.Table) { tab.Programs[verify].MaxRows = 33 },
	} {
		tab := compiled(t, compiler.Options{Draft: 3, Context: 64})
		brk(tab)
		if got := fmt.Sprint(tab.Validate()); !strings.Contains(got, want) {
			t.Errorf("%q is not among %.300s", want, got)
		}
	}
}
