//go:build softmetal

package metal_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/metal/soft"
	"github.com/pianola-engine/pianola/internal/sparse"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/replay/metal"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/weights"
)

// in compiles a model for an M4 Pro with the given largest buffer size.
func in(t *testing.T, path string, buffer uint64, context int, o compiler.Options) model {
	t.Helper()
	c, err := chip.Lookup("m4-pro")
	if err != nil {
		t.Fatal(err)
	}
	c.PrefillChunk, c.MaxBufferBytes = 16, buffer
	return forChip(t, path, c, context, o)
}

// forChip compiles a model for a chip.
func forChip(t *testing.T, path string, c *chip.Chip, context int, o compiler.Options) model {
	t.Helper()
	dir, err := weights.OpenDirectory(path)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := arch.Builtin().Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	o.Context = context
	tab, err := compiler.Compile(compiler.Input{Config: cfg, Tensors: dir, Chip: c, Options: o})
	if err != nil {
		t.Fatal(err)
	}
	src, err := dir.Map()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := src.Close(); err != nil {
			t.Error(err)
		}
	})
	return model{tab, src}
}

// TestSplitWeights replays tables whose products are divided by rows, on a GPU with the same
// small buffer limit. Tokens and logits must equal those with whole matrices.
func TestSplitWeights(t *testing.T) {
	const short = 360 << 10
	for _, name := range []string{"llama", "qwen2"} { // qwen2 has biases
		path := testmodels.Path(t, filepath.Join("..", "..", "testdata", "tiny", name))
		for _, mode := range metal.Modes() {
			checked(t)
			var tokens [2][]uint32
			var logits [2][]byte
			for i, buffer := range []uint64{1 << 30, short} {
				soft.SetLimits(buffer, 0)
				m := in(t, path, buffer, 16, compiler.Options{})
				quick(t, m.t)
				parts := 0
				for _, label := range m.t.Labels {
					if strings.Contains(label, ".part") {
						parts++
					}
				}
				if (parts > 0) != (i == 1) {
					t.Errorf("%s: %d parts with buffers of %d bytes", name, parts, buffer)
				}
				d := load(t, options(t, mode), m)
				id := begun(t, d)
				tokens[i] = chains(t, d, m.t, id, 6, 3)
				slot := slotOf(t, m.t, table.SlotLogits)
				logits[i] = make([]byte, m.t.Slots[slot].Size)
				if err := d.Read(id, slot, 0, logits[i]); err != nil {
					t.Fatal(err)
				}
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			}
			if !slices.Equal(tokens[0], tokens[1]) || !slices.Equal(logits[0], logits[1]) {
				t.Errorf("%s, %s: %v in parts, %v whole", name, mode, tokens[1], tokens[0])
			}
		}
	}
}

// TestLargeModel loads a 70B model of float16 whose weights are a sparse file. All matrices
// must be used in place, in few buffers, none larger than the GPU's limit.
func TestLargeModel(t *testing.T) {
	for _, buffer := range []uint64{64 << 30, 3 << 30} {
		checked(t)
		soft.SetLimits(buffer, 0)
		path := t.TempDir()
		if err := sparse.Llama70B().Write(path); err != nil {
			t.Fatal(err)
		}
		m := in(t, path, buffer, 512, compiler.Options{NoFuse: true}) // fusion would copy Q, K and V
		d := load(t, options(t, "encode"), m)
		id := begun(t, d)
		limit := min(buffer, 4<<30)
		ends, tensors := map[unsafe.Pointer]uint64{}, 0
		var stay uint64
		for i, s := range m.t.Slots {
			at := span(t, d, id, uint32(i))
			length := soft.Length(at.Buffer)
			if length > limit || at.Offset+at.Size > length {
				t.Errorf("slot %s: %d bytes at %d of a buffer of %d", s.Name, at.Size, at.Offset, length)
			}
			if s.Kind == table.SlotWeight && s.Size > 1<<20 {
				ends[at.Buffer] = max(ends[at.Buffer], at.Offset+at.Size)
				tensors++
				stay += s.Size
			}
		}
		least := int((stay + limit - 1) / limit)
		if mapped := d.Memory().Mapped; mapped != stay || len(ends) < least || len(ends) > least*5/4 {
			t.Errorf("buffers of %d bytes: %d matrices in %d buffers, at least %d; %d of %d bytes stay", buffer, tensors, len(ends), least, mapped, stay)
		}
		for p := range m.t.Programs {
			for i := range m.t.ProgramCmds(&m.t.Programs[p]) {
				c := &m.t.Cmds[int(m.t.Programs[p].First)+i]
				env, err := m.t.NewEnv(c, &m.t.Programs[p])
				if err != nil {
					t.Fatal(err)
				}
				for b, bind := range c.Bind[:c.Bindings] {
					if bind.Slot == table.NoSlot {
						continue
					}
					n, err := env.Extent(b)
					if at := span(t, d, id, bind.Slot); err != nil || at.Offset+bind.Offset+n > limit {
						t.Fatalf("%s: binding %d ends at %d, %v", m.t.Label(i), b, at.Offset+bind.Offset+n, err)
					}
				}
			}
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}
