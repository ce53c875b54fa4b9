package compiler

import (
	"errors"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/sparse"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/weights"
)

// checkSizes checks a table with a limit on slots: no slot is larger, no binding extends past its
// slot, and exactly one upload reads each byte of a tensor.
func checkSizes(t *testing.T, tab *table.Table, dir Tensors, limit uint64) {
	t.Helper()
	for _, s := range tab.Slots {
		if s.Size > limit {
			t.Errorf("slot %s: %d bytes, the limit is %d", s.Name, s.Size, limit)
		}
	}
	for pi := range tab.Programs {
		p := &tab.Programs[pi]
		for i := range tab.ProgramCmds(p) {
			c := &tab.Cmds[int(p.First)+i]
			env, err := tab.NewEnv(c, p)
			if err != nil {
				t.Fatal(err)
			}
			for b, bind := range c.Bind[:c.Bindings] {
				if bind.Slot == table.NoSlot {
					continue
				}
				n, err := env.Extent(b)
				if err != nil {
					t.Fatal(err)
				}
				if end := bind.Offset + n; end < n || end > min(limit, tab.Slots[bind.Slot].Size) || end > math.MaxUint32 && limit <= 4<<30 {
					t.Errorf("%s: binding %d ends at %d, the limit is %d", tab.Label(int(p.First)+i), b, end, limit)
				}
			}
		}
	}
	ranges := map[string][][2]uint64{}
	for _, u := range tab.Uploads {
		if u.Op != table.UploadConst {
			ranges[u.Tensor] = append(ranges[u.Tensor], [2]uint64{u.SrcOffset, u.SrcOffset + u.SrcSize})
		}
	}
	for name, list := range ranges {
		slices.SortFunc(list, func(a, b [2]uint64) int { return int(int64(a[0]) - int64(b[0])) })
		end := uint64(0)
		for _, r := range list {
			if r[0] != end {
				t.Errorf("%s: %v does not begin where the part before ends, at %d", name, r, end)
			}
			end = r[1]
		}
		if of, _ := dir.Tensor(name); of.Size != end {
			t.Errorf("%s: %d of %d bytes", name, end, of.Size)
		}
	}
}

// parted returns the number of a program's commands that are parts of a split product.
func parted(tab *table.Table, program string) (n int) {
	p, _, _ := tab.Program(program)
	for i := range tab.ProgramCmds(p) {
		if strings.Contains(tab.Label(int(p.First)+i), ".part") {
			n++
		}
	}
	return n
}

// limited returns a copy of a chip with another largest slot.
func limited(t testing.TB, name string, slot uint64) *chip.Chip {
	t.Helper()
	c := chipOf(t, name)
	c.MaxBufferBytes = slot
	if c.Device == chip.Metal {
		c.MaxBufferBytes = min(2*slot, slot+(slot-c.LargestSlot()))
		for c.LargestSlot() < slot {
			c.MaxBufferBytes++
		}
	}
	if c.LargestSlot() != slot {
		t.Fatalf("%s: slots of %d, want %d", name, c.LargestSlot(), slot)
	}
	return c
}

// TestSplitWeights compiles tiny models with the smallest slots that the slots that cannot be split
// allow, and verifies the state after each pass.
func TestSplitWeights(t *testing.T) {
	for _, path := range tiny(t) {
		for _, name := range chips {
			for _, o := range []Options{{Context: 16}, {Context: 16, NoFuse: true}} {
				in := input(t, path, name, o)
				least, largest := uint64(0), uint64(0)
				for _, s := range mustCompile(t, in).Slots {
					if s.Kind != table.SlotWeight || s.Name == "embed" {
						least = max(least, s.Size)
					}
					largest = max(largest, s.Size)
				}
				in.Chip = limited(t, name, least)
				s, err := newState(in)
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range passes {
					if err := p.apply(s); err != nil {
						t.Fatalf("%s, %s, %+v: %s: %v", path, name, o, p.name, err)
					}
					if err := verify(s, p.name); err != nil {
						t.Errorf("%s, %s, %+v: %v", path, name, o, err)
					}
				}
				checkSizes(t, s.t, in.Tensors, least)
				for _, p := range []string{table.ProgramDecode, table.ProgramPrefill} {
					if parted(s.t, p) == 0 && !o.NoFuse && largest > least {
						t.Errorf("%s, %s: program %s has no parts with slots of %d bytes", path, name, p, least)
					}
				}
			}
		}
	}
}

// TestSlotError checks that the error names the slot that cannot be split, with advice.
func TestSlotError(t *testing.T) {
	path := tiny(t)[0]
	inputs := testmodels.Path(t, filepath.Join("..", "testdata", "variants", "gemma4_e_untied"))
	for _, c := range []struct {
		path  string
		limit uint64
		o     Options
		slot  string
		hint  string
	}{
		{path, 200 << 10, Options{Context: 16}, "embed", "use a type with fewer bits"},
		{inputs, 150 << 10, Options{Context: 16}, "inputs.embed", "use a type with fewer bits"},
		{path, 256 << 10, Options{Context: 128, AllLogits: true}, "scratch", ""},
	} {
		in := input(t, c.path, "m4-pro", c.o)
		in.Chip = limited(t, "m4-pro", c.limit)
		_, err := Compile(in)
		var e *SlotError
		if !errors.As(err, &e) || e.Slot != c.slot || e.Limit != c.limit || e.Size <= c.limit || !strings.HasSuffix(err.Error(), c.hint) {
			t.Errorf("%d bytes, context %d: %v, want slot %s", c.limit, c.o.Context, err, c.slot)
		}
	}
}

// large returns the compiler's input for a model whose weights are a hole in a file.
func large(t *testing.T, l sparse.Llama, c *chip.Chip, o Options) Input {
	t.Helper()
	path := t.TempDir()
	if err := l.Write(path); err != nil {
		t.Fatal(err)
	}
	dir, err := weights.OpenDirectory(path)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := arch.Builtin().Read(dir)
	if err == nil {
		err = cfg.Check(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	return Input{Config: cfg, Tensors: dir, Chip: c, Options: o}
}

// TestLargeModels compiles models of full size for Macs with large and small buffers.
func TestLargeModels(t *testing.T) {
	wide := sparse.Llama70B()
	wide.Layers, wide.FF = 2, 200_000 // gate and up together have 6.6 GB
	talkative := sparse.Llama70B()
	talkative.Layers, talkative.Vocab = 2, 600_000 // embedding and head are 9.8 GB each
	tied := talkative
	tied.Tied = true
	small := sparse.Llama70B()
	small.Layers, small.Vocab = 1, 1000
	for _, c := range []struct {
		what   string
		model  sparse.Llama
		buffer uint64
		parts  []string // labels of the split products in decode
		err    string   // slot in the expected error
	}{
		{"70B", sparse.Llama70B(), 64 << 30, nil, ""},
		{"70B", sparse.Llama70B(), 4 << 30, nil, ""},
		{"70B", sparse.Llama70B(), 2 << 30, nil, ""},
		{"70B", sparse.Llama70B(), 1 << 30, nil, "embed"},
		{"70B", sparse.Llama70B(), 256 << 20, nil, "embed"},
		{"wide", wide, 64 << 30, []string{"layer.0.ffn.gate_up", "layer.1.ffn.gate_up"}, ""},
		{"wide", wide, 4 << 30, []string{"layer.0.ffn.gate_up", "layer.1.ffn.gate_up"}, ""},
		{"talkative", talkative, 64 << 30, nil, "embed"},
		{"tied", tied, 64 << 30, nil, "embed"},
		{"small", small, 256 << 20, []string{"layer.0.ffn.down", "layer.0.ffn.gate_up"}, ""},
		{"long", small, 256 << 20, nil, "kv.0.k"},
	} {
		ch := chipOf(t, "m3-ultra")
		ch.MaxBufferBytes = c.buffer
		context := 8192
		if c.what == "long" {
			context = 131_072 // the K cache of a layer has 256 MiB
		}
		in := large(t, c.model, ch, Options{Context: context})
		tab, err := Compile(in)
		if c.err != "" {
			var e *SlotError
			if !errors.As(err, &e) || e.Slot != c.err {
				t.Errorf("%s, buffers of %d: %v, want slot %s", c.what, c.buffer, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s, buffers of %d: %v", c.what, c.buffer, err)
			continue
		}
		checkSizes(t, tab, in.Tensors, min(c.buffer, 4<<30))
		p, _, _ := tab.Program(table.ProgramDecode)
		found := map[string]bool{}
		for i := range tab.ProgramCmds(p) {
			if of, _, ok := strings.Cut(tab.Label(int(p.First)+i), ".part"); ok {
				found[of] = true
			}
		}
		if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, c.parts) {
			t.Errorf("%s, buffers of %d: parts of %q, want %q", c.what, c.buffer, got, c.parts)
		}
	}
}

// TestSlice slices matrices that consist of several tensors.
func TestSlice(t *testing.T) {
	w := &weight{name: "w", cols: 64, typ: dtype.F16}
	for i, rows := range []uint64{128, 64, 256} {
		w.parts = append(w.parts, part{tensor: weights.Tensor{Name: string(rune('a' + i)), Shape: []uint64{rows, 64}, Type: dtype.F16, Size: rows * 128}})
		w.rows += int(rows)
	}
	for first := 0; first < w.rows; first += 64 {
		for rows := 64; first+rows <= w.rows; rows += 64 {
			s := w.slice("s", first, rows)
			at, n := 0, 0
			for _, p := range s.parts {
				base := map[string]int{"a": 0, "b": 128, "c": 192}[p.tensor.Name]
				offset, size := p.source(w)
				if base+p.first != first+n || offset != uint64(p.first)*128 || size != uint64(p.rows)*128 || p.rows == 0 {
					t.Errorf("rows %d to %d: part %d is rows %d to %d of %s", first, first+rows, at, p.first, p.first+p.rows, p.tensor.Name)
				}
				at, n = at+1, n+p.rows
			}
			if n != rows || s.rows != rows {
				t.Errorf("rows %d to %d: %d", first, first+rows, n)
			}
			// A slice of a slice equals a slice of the whole matrix.
			if rows > 64 {
				if again := s.slice("t", 64, 64); again.parts[0].tensor.Name == s.parts[0].tensor.Name && again.parts[0].first != s.parts[0].first+64 {
					t.Errorf("rows %d to %d, from 64 on: %+v", first, first+rows, again.parts[0])
				}
			}
		}
	}
}
