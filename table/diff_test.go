package table_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/kernels"
	. "github.com/pianola-engine/pianola/table"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
)

func diffText(t *testing.T, a, b *Table) string {
	t.Helper()
	var w bytes.Buffer
	if err := WriteDiff(&w, Diff(a, b)); err != nil {
		t.Fatal(err)
	}
	return w.String()
}

func TestDiffEqual(t *testing.T) {
	if d := Diff(smallTable(), smallTable()); d != nil {
		t.Errorf("equal tables: %v", d)
	}
	r := rand.New(rand.NewPCG(9, 10))
	for range 200 {
		a := randomTable(r)
		b, err := Decode(mustEncode(t, a))
		if err != nil {
			t.Fatal(err)
		}
		if d := Diff(a, b); d != nil {
			t.Fatalf("equal tables: %v", d)
		}
	}
}

// swap exchanges two commands with their labels.
func swap(t *Table, i, j int) {
	t.Cmds[i], t.Cmds[j] = t.Cmds[j], t.Cmds[i]
	t.Labels[i], t.Labels[j] = t.Labels[j], t.Labels[i]
}

// remove deletes a command of the first program.
func remove(t *Table, i int) {
	t.Cmds = slices.Delete(t.Cmds, i, i+1)
	t.Labels = slices.Delete(t.Labels, i, i+1)
	t.Programs[0].Count--
	for p := 1; p < len(t.Programs); p++ {
		t.Programs[p].First--
	}
}

func TestDiff(t *testing.T) {
	const qkv, rope, mix, norm = 3, 4, 5, 2
	label := func(s string) string { return "decode: layer.0." + s }
	for _, tt := range []struct {
		name string
		edit func(b *Table)
		want []string // lines
	}{
		{"header", func(b *Table) { b.Header.Context, b.Header.Options = 128, "no-fuse" },
			[]string{"~ header: context 64 -> 128, options - -> no-fuse"}},
		{"fingerprint", func(b *Table) { b.Header.ChipFP[31] = 1 },
			[]string{"~ header: chip_fingerprint abcd" + strings.Repeat("0", 60) + " -> abcd" + strings.Repeat("0", 58) + "01"}},
		{"slot size", func(b *Table) { b.Slots[4].Size = 16384 },
			[]string{"~ slot scratch: size 12544 -> 16384"}},
		{"slot renamed", func(b *Table) { b.Slots[14].Name = "down" }, []string{
			"- slot blk.0.ffn_down.weight", "+ slot down",
			"- upload to blk.0.ffn_down.weight", "+ upload to down",
			"~ " + label("ffn.down") + ": binding w blk.0.ffn_down.weight -> down",
			"~ prefill: layer.0.ffn.down: binding w blk.0.ffn_down.weight -> down",
		}},
		{"slots in another order", func(b *Table) {
			b.Slots[5], b.Slots[6] = b.Slots[6], b.Slots[5]
			for i := range b.Cmds {
				for j := range b.Cmds[i].Bind {
					if s := &b.Cmds[i].Bind[j].Slot; *s == 5 || *s == 6 {
						*s = 11 - *s
					}
				}
			}
		}, []string{"~ slots: order slot kv.0.k before slot kv.0.v -> slot kv.0.v before slot kv.0.k"}},
		{"program", func(b *Table) { b.Programs[1].Name, b.Programs[0].MaxRows = "verify", 2 },
			[]string{"~ program decode: max_rows 1 -> 2", "- program prefill", "+ program verify"}},
		{"upload", func(b *Table) { b.Uploads[2].Type, b.Uploads[2].SrcOffset = dtype.BF16, 64 },
			[]string{"~ upload to blk.0.attn_norm.weight: type F16 -> BF16, source_offset 0 -> 64"}},
		{"constants", func(b *Table) { b.Const[3]++ }, []string{"~ header: constants 32 bytes "}},
		{"constant", func(b *Table) { b.Specs[b.Cmds[rope].Spec].Values[kernels.QKRoPEKVSpecLayout] = decl.LayoutHalf }, []string{
			"~ " + label("attn.rope_kv") + ": constant layout interleaved -> half",
			"~ prefill: layer.0.attn.rope_kv: constant layout interleaved -> half",
		}},
		{"weight type", func(b *Table) { b.Specs[b.Cmds[0].Spec].Values[kernels.EmbedSpecWType] = uint32(dtype.F16) }, []string{
			"~ header: arithmetic activations float32 (gemv), q8 blocks of 32 (gemm, gemv); weights Q8_0, Q4_0 -> activations float32 (gemv), q8 blocks of 32 (gemm, gemv); weights F16, Q8_0, Q4_0",
			"~ decode: embed: constant wtype Q8_0 -> F16",
			"~ prefill: embed: constant wtype Q8_0 -> F16",
		}},
		{"parameters", func(b *Table) {
			p := kernels.AddRMSNormParamsOf(&b.Cmds[norm])
			p.N, p.Eps = 32, 1e-5
			p.Put(&b.Cmds[norm])
		}, []string{"~ " + label("attn.norm") + ": param n 64 -> 32, param eps 1e-06 -> 1e-05"}},
		{"grid and threadgroup", func(b *Table) {
			b.Cmds[qkv].Grid, b.Cmds[qkv].Threadgroup, b.Cmds[qkv].TGMem = [3]uint32{4, 1, 2}, [3]uint32{32, 2, 1}, 1024
		}, []string{"~ " + label("attn.qkv") + ": grid 16 -> 4x1x2, threadgroup 32 -> 32x2, tgmem 0 -> 1024"}},
		{"patch", func(b *Table) { b.Cmds[mix].Patch |= PatchRows }, []string{"~ " + label("attn.mix") + ": patch kv_len -> kv_len+rows"}},
		{"no patch", func(b *Table) { b.Cmds[mix].Patch = PatchNone }, []string{"~ " + label("attn.mix") + ": patch kv_len -> none"}},
		{"patch offset", func(b *Table) { b.Cmds[mix].PatchOffset[0] = 8 }, []string{"~ " + label("attn.mix") + ": patch kv_len -> kv_len(second[8])"}},
		{"secondary field", func(b *Table) { b.Cmds[mix].PutSecond(decl.SecondRows, 3) }, []string{"~ " + label("attn.mix") + ": second rows 1 -> 3"}},
		{"barrier", func(b *Table) { b.Cmds[qkv].Barrier = 0 }, []string{"~ " + label("attn.qkv") + ": barrier true -> false"}},
		{"moved", func(b *Table) {
			b.Cmds[qkv].Bind[kernels.GEMVBindX].Offset = 0
			b.Cmds[qkv].Bind[kernels.GEMVBindY].Offset = 0xa00
		},
			[]string{"> " + label("attn.qkv") + ": x +0x500 -> +0x0, y +0x900 -> +0xa00"}},
		{"moved and changed", func(b *Table) { b.Cmds[qkv].Bind[kernels.GEMVBindX].Offset = 0; b.Cmds[qkv].Grid[0] = 8 },
			[]string{"~ " + label("attn.qkv") + ": grid 16 -> 8, binding x scratch+0x500 -> scratch"}},
		{"moved to another slot", func(b *Table) { b.Cmds[qkv].Bind[kernels.GEMVBindY] = Binding{Slot: 1} },
			[]string{"~ " + label("attn.qkv") + ": binding y scratch+0x900 -> logits"}},
		{"moved in weights", func(b *Table) { b.Cmds[qkv].Bind[kernels.GEMVBindW].Offset = 34 },
			[]string{"~ " + label("attn.qkv") + ": binding w blk.0.attn_qkv.weight -> blk.0.attn_qkv.weight+0x22"}},
		{"binding added", func(b *Table) { b.Cmds[qkv].Bind[kernels.GEMVBindB] = Binding{Slot: 9} },
			[]string{"~ " + label("attn.qkv") + ": binding b - -> blk.0.attn_norm.weight"}},
		{"moves last", func(b *Table) { b.Cmds[1].Bind[2].Offset = 4; b.Cmds[qkv].Barrier = 0 },
			[]string{"~ " + label("attn.qkv") + ": barrier true -> false", "> decode: rope_angles: out +0x0 -> +0x4"}},
		{"command removed", func(b *Table) { remove(b, norm) },
			[]string{"~ program decode: count 12 -> 11", "- " + label("attn.norm")}},
		{"command renamed", func(b *Table) { b.Labels[norm] = "layer.0.norm" },
			[]string{"- " + label("attn.norm"), "+ " + label("norm")}},
		{"order", func(b *Table) { swap(b, norm, qkv) },
			[]string{"~ decode: order " + label("attn.norm") + " before " + label("attn.qkv") + " -> " + label("attn.qkv") + " before " + label("attn.norm")}},
		{"kernel", func(b *Table) {
			b.Cmds[norm].Kernel, b.Cmds[norm].Spec = kernels.Add, uint16(len(b.Specs))
			b.Specs = append(b.Specs, Spec{Kernel: kernels.Add})
		}, []string{"~ " + label("attn.norm") + ": kernel add_rmsnorm -> add, binding w blk.0.attn_norm.weight -> -, param eps 1e-06 -> -, param scale 0 -> -, param delta_scale 0 -> 1e-06, binding out scratch+0x500 -> -"}},
		{"region", func(b *Table) { b.Regions[1].Last = 2 },
			[]string{"~ regions: 1 x at scratch+0x100[1024], commands 0 to 11 -> x at scratch+0x100[1024], commands 0 to 2"}},
		{"spec that no command has", func(b *Table) { b.Specs = append(b.Specs, Spec{}) }, []string{"~ specs: numbering 13 specs -> 14 specs"}},
		{"byte that no kernel has", func(b *Table) { b.Cmds[norm].Param[60] = 1 },
			[]string{"~ command 2 (layer.0.attn.norm): bytes some -> others that its kernel does not declare"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := smallTable(), smallTable()
			tt.edit(b)
			got := strings.Split(strings.TrimSuffix(diffText(t, a, b), "\n"), "\n")
			if len(got) != len(tt.want) {
				t.Fatalf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
			for i := range got {
				if got[i] != tt.want[i] && tt.name != "constants" || !strings.HasPrefix(got[i], tt.want[i]) {
					t.Errorf("got\n%s\nwant\n%s", got[i], tt.want[i])
				}
			}
			// In the other direction there must be as many differences, with the sides exchanged.
			back := Diff(b, a)
			if forth := Diff(a, b); len(back) != len(forth) {
				t.Errorf("%d differences, %d the other way round", len(forth), len(back))
			}
			for _, d := range back {
				for _, c := range d.What {
					if c.A == c.B {
						t.Errorf("%s: %s does not differ: %q", d.Where, c.Field, c.A)
					}
				}
			}
		})
	}
}

// TestDiffReportsEveryByte changes one byte of a roll at a time. If the roll still decodes, Diff
// must report a difference.
func TestDiffReportsEveryByte(t *testing.T) {
	a := smallTable()
	raw := mustEncode(t, a)
	decoded := 0
	tried := 0
	// Steps of 5 meet every byte position of records whose size is a power of 2.
	for i := RollPrefix + SectionCount*RollEntry; i < len(raw)-RollHashLen; i += 5 {
		tried++
		in := bytes.Clone(raw)
		in[i] ^= 1
		b, err := Decode(sealed(in))
		if err != nil {
			continue
		}
		decoded++
		if d := Diff(a, b); len(d) == 0 {
			t.Errorf("byte %d changed and no difference", i)
		}
	}
	if decoded < tried/2 {
		t.Errorf("only %d of %d bytes could be changed", decoded, tried)
	}
}

func TestDiffUnvalidatedTables(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for range 300 {
		a, b := randomTable(r), randomTable(r)
		if bytes.Equal(mustEncode(t, a), mustEncode(t, b)) {
			continue
		}
		if d := Diff(a, b); len(d) == 0 {
			t.Fatalf("no difference between\n%+v\n%+v", a, b)
		}
		diffText(t, a, b)
	}
}

func TestWriteDiffError(t *testing.T) {
	b := smallTable()
	b.Header.Arch = "other"
	if err := WriteDiff(&failWriter{3}, Diff(smallTable(), b)); err == nil {
		t.Error("no error from a writer that fails")
	}
}

func TestDifferenceKindString(t *testing.T) {
	var got []string
	for k := OnlyA; k <= Moved+1; k++ {
		got = append(got, k.String())
	}
	if s := strings.Join(got, ","); s != "only in A,only in B,changed,moved,invalid" {
		t.Error(s)
	}
}

// exampleTable returns a table with one command: x += delta for n elements.
func exampleTable(n uint32) *Table {
	c := Cmd{
		Kernel: kernels.Add, Bindings: 2, Barrier: 1, PatchOffset: [2]uint8{NoPatch, NoPatch},
		Grid: [3]uint32{1, 1, 1}, Threadgroup: [3]uint32{32, 1, 1},
	}
	c.Bind[kernels.AddBindX] = Binding{Slot: 0, Offset: 0}
	c.Bind[kernels.AddBindDelta] = Binding{Slot: 0, Offset: 4096}
	kernels.AddParams{N: n}.Put(&c)
	c.PutSecond(decl.SecondRows, 1)
	return &Table{
		Header:   Header{Context: 1, Chunk: 1},
		Slots:    []Slot{{"scratch", SlotScratch, ScopeExecutor, 8192}},
		Specs:    []Spec{{Kernel: kernels.Add}},
		Programs: []Program{{ProgramDecode, 0, 1, 1, 0}},
		Cmds:     []Cmd{c},
		Labels:   []string{"layer.0.residual"},
		Regions:  []Region{{Name: "x", Size: 4096}, {Name: "ffn_out", Offset: 4096, Size: 4096}},
	}
}

func ExampleTable_Dump() {
	if err := exampleTable(1024).Dump(os.Stdout, DumpOptions{Grep: "residual"}); err != nil {
		fmt.Println(err)
	}
	// Output:
	// program decode: 1 commands, rows 1
	//     0 | layer.0.residual  add  x=scratch:x[4K] delta=scratch+0x1000:ffn_out[4K]  n=1024 rows=1  grid=1 tg=32
}

func ExampleDiff() {
	if err := WriteDiff(os.Stdout, Diff(exampleTable(1024), exampleTable(512))); err != nil {
		fmt.Println(err)
	}
	// Output:
	// ~ decode: layer.0.residual: param n 1024 -> 512
}
