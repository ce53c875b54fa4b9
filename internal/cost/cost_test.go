package cost_test

import (
	"testing"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/cost"
	"github.com/pianola-engine/pianola/internal/synth"
	"github.com/pianola-engine/pianola/table"
)

// compile returns the table of a shape, and the chip that it was compiled for.
func compile(t testing.TB, shape, quant, chipName string, o compiler.Options) (*table.Table, *chip.Chip) {
	t.Helper()
	s, ok := synth.FindShape(shape)
	if !ok {
		t.Fatalf("no shape %s", shape)
	}
	return compileShape(t, s, quant, chipName, o)
}

func compileShape(t testing.TB, s synth.Shape, quant, chipName string, o compiler.Options) (*table.Table, *chip.Chip) {
	t.Helper()
	dir, err := synth.NewDirectory(s, quant)
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
	return tab, c
}

// predict returns the cost of each command of a program, and of all together.
func predict(t testing.TB, tab *table.Table, c *chip.Chip, program string, at cost.Point) ([]cost.Command, cost.Total) {
	t.Helper()
	p, _, ok := tab.Program(program)
	if !ok {
		t.Fatalf("no program %s", program)
	}
	commands, err := cost.Program(tab, p, c, at)
	if err != nil {
		t.Fatal(err)
	}
	var total cost.Total
	for i := range commands {
		total.Add(&commands[i])
	}
	return commands, total
}

// TestModelBytes compares the compulsory bytes of weights and KV caches with table.Reads, which
// computes them from the extents alone. The newest row of a cache is written, and read only by
// commands that do not write it.
func TestModelBytes(t *testing.T) {
	for _, name := range []string{"m4-pro", "h200", "cpu"} {
		tab, c := compile(t, "qwen3-0.6b", "Q4_0", name, compiler.Options{})
		for _, depth := range []int{0, 1, 63, 1000, 4095} {
			_, total := predict(t, tab, c, table.ProgramDecode, cost.Point{Position: depth, Rows: 1})
			reads, err := tab.Reads(table.ProgramDecode)
			if err != nil {
				t.Fatal(err)
			}
			want := uint64(0)
			for _, r := range reads {
				want += r.Bytes(depth + 1)
			}
			if c.Device == chip.CPU {
				want += 28 * 2 * 8 * 128 * 2 // written by a command of its own: layers, K and V, heads, elements, bytes
			}
			if total.Model != want {
				t.Errorf("%s after %d: %d bytes, want %d", name, depth, total.Model, want)
			}
		}
	}
}

// TestMultiplyAdds compares the multiply-adds with the sizes of the matrices and of attention.
func TestMultiplyAdds(t *testing.T) {
	const layer = 1024*(2048+2*1024) + 2048*1024 + 3*1024*3072 // qkv, o, gate, up and down of qwen3-0.6b
	const head = 1024 * 151_936
	const attention = 2 * 16 * 128 // per position
	for _, name := range []string{"m4-pro", "h200", "cpu"} {
		tab, c := compile(t, "qwen3-0.6b", "Q4_0", name, compiler.Options{})
		_, total := predict(t, tab, c, table.ProgramDecode, cost.Point{Position: 99, Rows: 1})
		if want := uint64(28*(layer+100*attention) + head); total.Matrix+total.Vector != want {
			t.Errorf("%s: a token has %d multiply-adds, want %d", name, total.Matrix+total.Vector, want)
		}
		_, total = predict(t, tab, c, table.ProgramPrefill, cost.Point{Position: 10, Rows: 90})
		if want := uint64(28 * (90*layer + (11+100)*90/2*attention)); total.Matrix+total.Vector != want {
			t.Errorf("%s: a chunk has %d multiply-adds, want %d", name, total.Matrix+total.Vector, want)
		}
	}
}

// TestWindows checks that a window limits the bytes and the multiply-adds of attention.
func TestWindows(t *testing.T) {
	tab, c := compile(t, "gemma-3-1b", "Q4_0", "m4-pro", compiler.Options{})
	at := func(depth int) cost.Total {
		_, total := predict(t, tab, c, table.ProgramDecode, cost.Point{Position: depth, Rows: 1})
		return total
	}
	// 4 of 26 layers see all positions, the others the last 512; a position has 1 head of 256 for
	// each of K and V in float16, and 4 Q heads.
	short, long := at(999), at(1999)
	if got, want := long.Model-short.Model, uint64(1000*4*2*256*2); got != want {
		t.Errorf("1000 positions add %d bytes, want %d", got, want)
	}
	if got, want := long.Vector-short.Vector, uint64(1000*4*2*4*256); got != want {
		t.Errorf("1000 positions add %d multiply-adds, want %d", got, want)
	}
}

// TestBatch checks that the rows of a batch share the weights but not the caches.
func TestBatch(t *testing.T) {
	tab, c := compile(t, "qwen3-0.6b", "Q4_0", "m4-pro", compiler.Options{})
	at := func(rows int) cost.Total {
		_, total := predict(t, tab, c, table.ProgramPrefill, cost.Point{Position: 999, Rows: rows, Sequences: true})
		return total
	}
	const cache = 28 * 2 * 8 * 128 * 2    // per position
	const row = 1024/256*210 + 1000*cache // an embedding in Q6_K, and the cache
	if got, want := at(8).Model-at(4).Model, uint64(4*(row+cache)); got != want {
		t.Errorf("4 more rows add %d bytes, want %d", got, want)
	}
}

// TestBatchPrograms checks that the rows of a batch program see the positions of the point, though no
// command has their number.
func TestBatchPrograms(t *testing.T) {
	const cache = 28 * 2 * 8 * 128 * 2    // per position
	const row = 1024/256*210 + 1000*cache // an embedding in Q6_K, and the cache
	for _, name := range []string{"m4-pro", "h200"} {
		tab, c := compile(t, "qwen3-0.6b", "Q4_0", name, compiler.Options{Context: 2048, Sequences: 32})
		at := func(depth, rows int) cost.Total {
			_, total := predict(t, tab, c, "batch.32", cost.Point{Position: depth, Rows: rows})
			return total
		}
		written := uint64(cache)
		if name == "h200" { // one command of its own, which does not read what it writes
			written = 0
		}
		if got, want := at(999, 8).Model-at(999, 4).Model, 4*(row+written); got != want {
			t.Errorf("%s: 4 more rows add %d bytes, want %d", name, got, want)
		}
		if got, want := at(1999, 32).Model-at(999, 32).Model, uint64(32*1000*cache); got != want {
			t.Errorf("%s: 1000 more positions add %d bytes, want %d", name, got, want)
		}
		if short, long := at(0, 32), at(2047, 32); long.Seconds <= short.Seconds || long.Requested <= short.Requested {
			t.Errorf("%s: the end of the context costs no more than its beginning: %+v, %+v", name, long, short)
		}
	}
}

// TestPredictions checks on every chip that predictions are plausible: positive, and growing with
// the depth and the rows; a chip with more bandwidth and cores is not slower.
func TestPredictions(t *testing.T) {
	seconds := map[string]float64{}
	for _, name := range chip.Names() {
		tab, c := compile(t, "llama-3.2-1b", "Q4_0", name, compiler.Options{})
		last := 0.0
		for _, depth := range []int{0, 512, 4000} {
			commands, total := predict(t, tab, c, table.ProgramDecode, cost.Point{Position: depth, Rows: 1})
			for i := range commands {
				if s := commands[i].Seconds; !(s > 0) || s > 1 {
					t.Errorf("%s: command %d takes %v s", name, i, s)
				}
			}
			if total.Seconds < last {
				t.Errorf("%s: a token after %d takes %v s, before %v", name, depth, total.Seconds, last)
			}
			last = total.Seconds
		}
		_, few := predict(t, tab, c, table.ProgramPrefill, cost.Point{Rows: 64})
		_, many := predict(t, tab, c, table.ProgramPrefill, cost.Point{Rows: 512})
		if few.Seconds >= many.Seconds {
			t.Errorf("%s: 64 rows take %v s and 512 rows %v", name, few.Seconds, many.Seconds)
		}
		seconds[name] = many.Seconds + last
	}
	for _, pair := range [][2]string{{"m1", "m1-pro"}, {"m1-pro", "m1-max"}, {"m1-max", "m1-ultra"}, {"m1", "m4"}, {"m4", "m4-pro"}, {"m4-pro-16", "m4-pro"}, {"m4-pro", "m4-max"}, {"m4-max", "m5-max"}} {
		if seconds[pair[0]] <= seconds[pair[1]] {
			t.Errorf("%s takes %v s and %s %v", pair[0], seconds[pair[0]], pair[1], seconds[pair[1]])
		}
	}
}

// TestRange checks the errors for points outside of a program.
func TestRange(t *testing.T) {
	tab, c := compile(t, "gopher", "Q8_0", "m4-pro", compiler.Options{})
	p, _, _ := tab.Program(table.ProgramDecode)
	for _, at := range []cost.Point{{}, {Rows: 2}, {Position: -1, Rows: 1}, {Position: 2048, Rows: 1}} {
		if _, err := cost.Program(tab, p, c, at); err == nil {
			t.Errorf("no error for %+v", at)
		}
	}
}

// BenchmarkProgram measures a prediction for all commands of an 8B model's chunk.
func BenchmarkProgram(b *testing.B) {
	tab, c := compile(b, "llama-3.1-8b", "Q4_0", "m1", compiler.Options{})
	p, _, _ := tab.Program(table.ProgramPrefill)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := cost.Program(tab, p, c, cost.Point{Rows: 512}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(p.Count), "ns/command")
}

// TestFewRequests checks what gemm_few requests for 64 rows of 4,096 columns: the rows for each 64 rows of W in
// the wide form, which reads the weights once, and for each 32 in the other, which reads them twice.
func TestFewRequests(t *testing.T) {
	tab, c := compile(t, "llama-3.1-8b", "Q4_0", "h200", compiler.Options{Context: 256, Sequences: 64})
	commands, _ := predict(t, tab, c, "batch.64", cost.Point{Position: 128, Rows: 64})
	p, _, _ := tab.Program("batch.64")
	const weights = 4096 / 32 * 18 // bytes of a row
	want := map[string]uint64{
		"layer.1.ffn.gate_up": 28672/64*64*2*4096 + 28672*weights + 2*4*64*28672, // units, and results
		"layer.1.attn.o":      4096/32*64*2*4096 + 2*4096*weights + 2*4*64*4096,
	}
	for i := range commands {
		label := tab.Label(int(p.First) + i)
		if n, ok := want[label]; ok && commands[i].Requested != n {
			t.Errorf("%s requests %d bytes, want %d", label, commands[i].Requested, n)
		}
		delete(want, label)
	}
	if len(want) > 0 {
		t.Errorf("no commands %v", want)
	}
}
