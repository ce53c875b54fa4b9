package conform

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// compiled reports whether the emulator that tests use has the kernels of a weight type.
func compiled(t dtype.Type) bool { return exhaustive.On || emu.Sampled(t) }

// types returns the types of matrices that the emulator has: those without variants, and sampled
// ones of the families whose types have several group sizes and scale types.
func types() (list []dtype.Type) {
	for _, t := range dtype.All() {
		if t.Family() == t && t <= dtype.BF16 || t.Quantized() && t < dtype.MLX2 {
			list = append(list, t)
		}
	}
	return slices.DeleteFunc(append(list, sampled()...), func(t dtype.Type) bool { return !compiled(t) })
}

// sampled returns types of families that together cover every group size and every scale type.
func sampled() (list []dtype.Type) {
	for _, c := range []struct {
		bits, group int
		scale       dtype.Type
	}{
		{2, 128, dtype.F16}, {3, 32, dtype.BF16}, {4, 64, dtype.BF16}, {4, 32, dtype.F32}, {5, 128, dtype.BF16}, {6, 64, dtype.F16}, {8, 32, dtype.BF16},
		{3, 128, dtype.F32}, {8, 64, dtype.F16},
	} {
		t, _ := dtype.MLXType(c.bits, c.group, c.scale)
		list = append(list, t)
	}
	for _, group := range []int{32, 128} {
		t, _ := dtype.FP8Type(group)
		list = append(list, t)
	}
	return list
}

// seeds returns the number of random products of a type that a test tries, at most most.
func seeds(t dtype.Type, most uint64) uint64 {
	if !exhaustive.On {
		return 1
	}
	if t >= dtype.MLX2 {
		return most / 2
	}
	return most
}

// matrix is a random matrix of a type.
type matrix struct {
	t        dtype.Type
	out, in  int
	rows     []byte // in layout dtype.Rows
	elements []float32
}

func newMatrix(r *rand.Rand, t dtype.Type, out, in int) *matrix {
	size, _ := t.Bytes(uint64(out * in))
	m := &matrix{t: t, out: out, in: in, rows: make([]byte, size), elements: make([]float32, out*in)}
	var err error
	if t.Quantized() {
		err = dtype.RandomBlocks(t, m.rows, r.Uint64(), 1)
	} else {
		err = dtype.Quantize(t, m.rows, normal(r, out*in, 1))
	}
	if err == nil {
		err = dtype.Dequantize(t, m.elements, m.rows)
	}
	if err != nil {
		panic(err)
	}
	return m
}

// bytes returns the matrix in a layout.
func (m *matrix) bytes(l dtype.Layout) []byte {
	if l == dtype.Rows {
		return m.rows
	}
	size, _ := l.Bytes(m.t, uint64(m.out), uint64(m.in))
	tiles := make([]byte, size)
	if err := dtype.Tile(m.t, tiles, m.rows, m.out, m.in); err != nil {
		panic(err)
	}
	return tiles
}

// productOf describes a product of a random matrix and random rows.
type productOf struct {
	kernel   decl.ID
	t        dtype.Type
	act      uint32
	layout   dtype.Layout
	out, in  int
	rows     int
	group    int // group size of the emulated command
	ahead    uint32
	stage    uint32
	single   bool // gemv's form for one row
	paired   bool // with two shares for each SIMD group
	threads  int  // its threads
	rowGroup int
	silu     bool
	gelu     bool // GELU instead of SiLU
	norm     bool // only gemv has norm and add
	bias     bool
	add      bool
	apple    appleProduct
	merge    attention // attention whose splits the input is merged from; only for gemv with one row
	scale    float64
}

// command returns the command with the given group size, and the product in float64.
func (p *productOf) command(r *rand.Rand) (command, []float64) {
	m := newMatrix(r, p.t, p.out, p.in)
	width := p.out
	if p.apple.gated {
		width /= 2
	}
	xs, ys := p.in+pick(r, 0, 0, 4, 3), width+pick(r, 0, 5)
	n := (p.rows-1)*xs + p.in
	x, x2, b := normal(r, n, p.scale), normal(r, n, 1), normal(r, p.out, 1)
	input := uint32(decl.InputPlain)
	switch {
	case p.silu:
		input = decl.InputSiLUMul
	case p.norm:
		input, x2 = decl.InputNorm, normal(r, p.in, 1)
	}
	if p.merge.splits > 0 {
		input = decl.InputMerge
		parts := p.merge.randomParts(r)
		for i := range parts {
			parts[i] *= float32(p.scale)
		}
		n := p.merge.kvHeads * p.merge.splits
		x, x2 = parts[:n*p.merge.headDim], parts[n*p.merge.headDim:]
	}
	splits := p.merge.splits
	if p.apple.sums > 0 {
		input, splits = decl.InputScaled, p.apple.sums
		x2 = squaresOf(r, p.rows, splits, p.scale)
	}
	y := make([]float32, (p.rows-1)*ys+width)
	if p.add {
		y = normal(r, len(y), p.scale)
	}
	c := command{
		kernel: p.kernel, apple: p.apple != appleProduct{} && !p.single,
		specs: []uint32{uint32(p.t), p.act, input, one(p.bias), uint32(p.layout), p.output(), one(p.gelu)},
		params: kernels.GEMVParams{
			In: uint32(p.in), Out: uint32(p.out), XStride: uint32(xs), YStride: uint32(ys), Group: uint32(p.group), RowGroup: uint32(p.rowGroup),
			Eps: 1e-6, Ahead: p.ahead, Stage: p.stage, Heads: uint32(p.merge.kvHeads), HeadDim: uint32(p.merge.headDim), Splits: uint32(splits), Span: uint32(p.merge.span),
			Window: uint32(p.merge.window),
		},
		second: pianolaSecond{kvLen: uint32(p.merge.kvLen), rows: uint32(p.rows)},
		input: map[string][]byte{
			"x": f32(x), "x2": f32(x2), "w": m.bytes(p.layout), "b": f32(b), "y": f32(y),
		},
	}
	if p.single {
		c.threads = uint32(p.threads)
		c.specs = append(c.specs, decl.SingleOn)
		if p.paired {
			c.specs[len(c.specs)-1] = decl.SinglePaired
		}
	}
	if p.apple.addScaled {
		c.input["next"] = f32(normal(r, p.out, 1))
	} else {
		c.absent = append(c.absent, "next", "scaled", "squares")
	}
	if input == decl.InputPlain {
		c.absent = append(c.absent, "x2")
		delete(c.input, "x2")
	}
	if !p.bias {
		c.absent = append(c.absent, "b")
		delete(c.input, "b")
	}
	if input == decl.InputMerge {
		x = p.merge.merged(x, x2)
	}
	want := floats(f32(y))
	for row := range p.rows {
		var squares float64
		for _, v := range x[row*xs:][:p.in] {
			squares += float64(v) * float64(v)
		}
		if input == decl.InputScaled {
			squares = 0
			for _, v := range x2[row*((splits+3)/4*4):][:splits] {
				squares += float64(v)
			}
		}
		norm := 1 / math.Sqrt(squares/float64(p.in)+1e-6)
		sums := make([]float64, p.out)
		for o := range p.out {
			var sum float64
			for i := range p.in {
				v := float64(x[row*xs+i])
				switch input {
				case decl.InputSiLUMul:
					v = gatedOf(one(p.gelu), v) * float64(x2[row*xs+i])
				case decl.InputNorm:
					v *= norm * float64(x2[i])
				}
				sum += float64(m.elements[o*p.in+i]) * v
			}
			if input == decl.InputScaled {
				sum *= norm
			}
			if p.bias {
				sum += float64(b[o])
			}
			sums[o] = sum
		}
		for o := range width {
			if p.apple.gated {
				sums[o] = gatedOf(one(p.gelu), sums[o]) * sums[width+o]
			}
			want[row*ys+o] += sums[o]
		}
	}
	return c, want
}

// withGroup returns the command with another group size.
func (c command) withGroup(group int) command {
	p := c.params.(kernels.GEMVParams)
	p.Group = uint32(group)
	c.params = p
	return c
}

// check compares the command in three orders with the CPU device and with
// float64.
func (p *productOf) check(t *testing.T, e *emu.Program, seed uint64, threads int, device, exact float64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, uint64(p.t)))
	c, want := p.command(r)
	k, _ := decl.Lookup(p.kernel)
	onCPU := c
	if p.layout == dtype.Tiled16 { // the CPU device requires groups of whole strips
		onCPU = c.withGroup((p.group + 15) / 16 * 16)
	}
	tab, slots := onCPU.tableOf(t)
	contents := onCPU.contents(t, tab, slots, r)
	cpu := onCPU.onCPU(t, tab, slots, contents)
	tab, _ = c.tableOf(t)
	var first *outcome
	for _, o := range []emu.Order{emu.Forward, emu.Reverse, emu.Random} {
		got := c.emulated(t, e, tab, contents, launch{threads: threads, order: o, seed: seed})
		if first == nil {
			first = got
			if err := compare(k, got, cpu, map[string]tolerance{"y": {p.out, device, false}, "scaled": {p.out, device, false}, "squares": {1 << 20, 4 * device, false}}); err != nil {
				t.Fatalf("seed %d, %d threads, %+v: beside the CPU device: %v", seed, threads, *p, err)
			}
			if err := near(floats(got.bindings[kernels.GEMVBindY]), want, len(want), exact); err != nil {
				t.Fatalf("seed %d, %d threads, %+v: beside float64: %v", seed, threads, *p, err)
			}
		} else if err := compare(k, got, first, nil); err != nil {
			t.Fatalf("seed %d, %+v: order %d gives another result: %v", seed, *p, o, err)
		}
	}
}

// kindOf selects the input and the output of the product at random.
func (p *productOf) kindOf(r *rand.Rand) {
	p.silu, p.gelu, p.norm, p.bias, p.add = false, false, false, r.IntN(2) == 1, r.IntN(3) == 0
	switch r.IntN(5) {
	case 0:
		p.silu, p.gelu = true, r.IntN(2) == 1
	case 1, 2:
		p.norm = true
	case 3:
		p.mergeOf(r)
	}
}

// mergeOf makes the input the result of merging splits, if the columns can be divided into
// heads.
func (p *productOf) mergeOf(r *rand.Rand) {
	var sizes []int
	for _, d := range []int{4, 8, 20, 32, 64, 80, 96, 128, 256} {
		if p.in%d == 0 {
			sizes = append(sizes, d)
		}
	}
	if len(sizes) == 0 {
		return
	}
	d := pick(r, sizes...)
	p.rows = 1
	p.merge = attention{headDim: d, kvHeads: p.in / d, shared: 1, rows: 1, splits: 1 + r.IntN(8), span: pick(r, 1, 16, 32, 40), window: pick(r, 0, 0, 1+r.IntN(500))}
	p.merge.kvLen = max(1, pick(r, 1, p.merge.span, p.merge.splits*p.merge.span, 16*p.merge.splits, r.IntN(5000))+r.IntN(3)-1)
}

// merged returns the merged splits of a row.
func (a attention) merged(values, states []float32) []float32 {
	begin, d := 0, a.headDim
	if a.window > 0 {
		begin = max(0, a.kvLen-a.window)
	}
	var out []float32
	for h := range a.kvHeads * a.shared {
		top, weight, sum := math.Inf(-1), 0.0, make([]float64, d)
		for pass := range 2 {
			for s := range a.splits {
				u := h*a.splits + s
				from, to := a.split(s, begin, a.kvLen)
				if from >= to {
					continue
				}
				if pass == 0 {
					top = max(top, float64(states[2*u]))
					continue
				}
				factor := math.Exp(float64(states[2*u]) - top)
				weight += factor * float64(states[2*u+1])
				for i := range d {
					sum[i] += factor * float64(values[u*d+i])
				}
			}
		}
		for _, v := range sum {
			out = append(out, float32(v/weight))
		}
	}
	return out
}

// TestTiledGEMV compares products of tiles with those of the CPU device, which multiplies
// the same integers in a different order of sums. With silu or a norm, an integer may
// differ by one.
func TestTiledGEMV(t *testing.T) {
	e := inBoth(t)
	for _, typ := range types() {
		elems, _ := typ.Block()
		if !dtype.Tiled16.Has(typ, dtype.TileRows, uint64(elems)) {
			continue
		}
		t.Run(typ.String(), func(t *testing.T) {
			for seed := range seeds(typ, 16) + 5 {
				r := rand.New(rand.NewPCG(seed, 1))
				p := productOf{
					kernel: kernels.GEMV, t: typ, act: decl.ActQ8, layout: dtype.Tiled16,
					out: 16 * (1 + r.IntN(5)), in: elems * pick(r, 1, 2, 3, 5, 16/(elems/32)+1, 1024/elems),
					rows: pick(r, 1, 1, 3), rowGroup: pick(r, 1, 2), group: pick(r, 8, 16, 24, 32, 48), ahead: uint32(pick(r, 0, 10240)),
					scale: pick(r, 1, 1, 1e-3, 1e4),
				}
				p.kindOf(r)
				device, exact := 2e-6, 3e-2
				if p.silu || p.norm || p.merge.splits > 0 {
					device, exact = 1e-2, 8e-2
				}
				p.check(t, e.of(t, typ, seed), seed, pick(r, 32, 64, 96, 192, 256), device, exact)
			}
		})
	}
}

// TestRowsGEMV compares products of rows with those of the CPU device, which sums in a
// different order.
func TestRowsGEMV(t *testing.T) {
	e := inBoth(t)
	for _, typ := range types() {
		t.Run(typ.String(), func(t *testing.T) {
			elems, _ := typ.Block()
			for seed := range seeds(typ, 16) + 5 {
				r := rand.New(rand.NewPCG(seed, 2))
				p := productOf{
					kernel: kernels.GEMV, t: typ, act: decl.ActF32, layout: dtype.Rows,
					out: 1 + r.IntN(70), in: elems * pick(r, 1, 2, 3, 9, 5000/elems),
					rows: pick(r, 1, 1, 3), rowGroup: pick(r, 1, 2), group: pick(r, 1, 2, 4, 7, 8, 16, 32), ahead: uint32(pick(r, 0, 10240)),
					scale: pick(r, 1, 1, 1e-3, 1e4),
				}
				if elems == 1 {
					p.in = pick(r, 1, 7, 8, 32, 100, 256, 264, 1016, 2056, 4100, 4352)
				}
				p.kindOf(r)
				p.check(t, e.of(t, typ, seed), seed, pick(r, 32, 64, 96, 192, 256), 2e-5, 2e-5)
			}
		})
	}
}

// TestGEMM compares products of chunks. Products of tiles use the same integers as the CPU
// device, products of rows use pairs of float16. Only exhaustive tests use the sanitizers,
// which make the emulator several times slower.
func TestGEMM(t *testing.T) {
	e := inBoth(t)
	for _, typ := range types() {
		elems, _ := typ.Block()
		for _, layout := range []dtype.Layout{dtype.Rows, dtype.Tiled16} {
			if !layout.Has(typ, dtype.TileRows, uint64(elems)) {
				continue
			}
			t.Run(typ.String()+"/"+layout.String(), func(t *testing.T) {
				for seed := range seeds(typ, 4) {
					r := rand.New(rand.NewPCG(seed, 3))
					p := productOf{
						kernel: kernels.GEMM, t: typ, act: decl.ActF32, layout: layout,
						out: 1 + r.IntN(100), in: elems * pick(r, 1, 2, 3, 5),
						rows: pick(r, 1, 5, 16, 70), rowGroup: pick(r, 7, 32, 64, 128), group: pick(r, 16, 33, 64, 128),
						silu: r.IntN(4) == 0, bias: r.IntN(2) == 1, scale: pick(r, 1, 1, 1e-9, 1e9),
					}
					device, exact := 1e-5, 1e-5
					if elems == 1 {
						p.in = pick(r, 1, 7, 8, 24, 32, 100, 136, 300)
					}
					if layout == dtype.Tiled16 {
						p.act, p.out, p.group = decl.ActQ8, (p.out+15)/16*16, (p.group+7)/8*8
						device, exact = 4e-6, 3e-2
						p.gelu = p.silu && r.IntN(2) == 1
						if p.silu {
							device, exact = 1e-2, 8e-2
						}
					}
					p.check(t, e.of(t, typ, seed), seed, pick(r, 32, 64, 256), device, exact)
				}
			})
		}
	}
}

// TestNarrow compares products of chunks with float32 matrices of few rows, such as those of routers.
func TestNarrow(t *testing.T) {
	e := inBoth(t)
	for seed := range uint64(exhaustive.Pick(30, 6)) {
		r := rand.New(rand.NewPCG(seed, 35))
		p := productOf{
			kernel: kernels.GEMM, t: dtype.F32, act: decl.ActF32, layout: dtype.Rows, out: 1 + r.IntN(40), in: 4 * (1 + r.IntN(200)),
			rows: pick(r, 1, 2, 4, 5, 8, 9, 21), rowGroup: pick(r, 1, 3, 8), group: pick(r, 1, 5, 8), bias: r.IntN(2) == 1, scale: pick(r, 1, 1, 1e-9, 1e9),
		}
		p.check(t, e.of(t, dtype.F32, seed), seed, pick(r, 32, 64, 256), 1e-5, 1e-5)
	}
}

// TestEmbedTypes looks up rows of every type in both layouts. For types without a minimum all
// bits must be equal, because an element is a single product.
func TestEmbedTypes(t *testing.T) {
	e := inBoth(t)
	k, _ := decl.Lookup(kernels.Embed)
	for _, typ := range types() {
		elems, _ := typ.Block()
		for _, layout := range []dtype.Layout{dtype.Rows, dtype.Tiled16} {
			if !layout.Has(typ, dtype.TileRows, uint64(elems)) {
				continue
			}
			t.Run(typ.String()+"/"+layout.String(), func(t *testing.T) {
				for seed := range seeds(typ, 4) {
					r := rand.New(rand.NewPCG(seed, uint64(typ)))
					n, vocab, ring, rows := elems*pick(r, 1, 2, 3, 5), 16*(1+r.IntN(3)), 1+r.IntN(9), 1+r.IntN(4)
					if layout == dtype.Rows {
						vocab -= r.IntN(16)
					}
					tokens := make([]uint32, ring)
					for i := range tokens {
						tokens[i] = pick(r, uint32(r.IntN(vocab)), uint32(r.IntN(vocab)), uint32(vocab), math.MaxUint32)
					}
					c := command{
						kernel: kernels.Embed, specs: []uint32{uint32(typ), uint32(layout)},
						params: kernels.EmbedParams{N: uint32(n), Vocab: uint32(vocab), Ring: uint32(ring), Scale: pick(r, float32(1), 33.9)},
						second: pianolaSecond{index: uint32(r.IntN(ring + 2)), rows: uint32(rows)},
						input:  map[string][]byte{"w": newMatrix(r, typ, vocab, n).bytes(layout), "tokens": u32(tokens...)},
					}
					tab, slots := c.tableOf(t)
					contents := c.contents(t, tab, slots, r)
					want := c.onCPU(t, tab, slots, contents)
					var tol map[string]tolerance
					switch typ {
					case dtype.Q4_1, dtype.Q5_1, dtype.Q2_K, dtype.Q4_K, dtype.Q5_K:
						tol = map[string]tolerance{"out": {n, 1e-6, false}}
					}
					if typ.Family() != typ || typ >= dtype.MLX2 && typ.Integers() {
						tol = map[string]tolerance{"out": {n, 1e-6, false}}
					}
					for _, o := range []emu.Order{emu.Forward, emu.Random} {
						got := c.emulated(t, e.of(t, typ, seed), tab, contents, launch{threads: pick(r, 32, 256), extra: 1, order: o, seed: seed})
						if err := compare(k, got, want, tol); err != nil {
							t.Fatalf("seed %d: %+v: %v", seed, c.params, err)
						}
					}
				}
			})
		}
	}
}

// gatedOf returns an activation of x, of decl, in float64.
func gatedOf(activation uint32, x float64) float64 {
	if activation == decl.ActivationGELUTanh {
		return x / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
	}
	return x / (1 + math.Exp(-x))
}
