package pianola

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kvrows"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// attention describes an attention command, so that the host can compute its weights.
type attention struct {
	heads, kvHeads, dim int
	stride              int  // elements from one row of Q to the next
	window              int  // visible positions, or math.MaxInt
	chunked             bool // those that follow a multiple of window
	scale, softCap      float64
	cache               table.KVCache // of K

	q, turn, norm table.Binding // norm has the learned sink logits too

	// With sinks > 0, every row sees this many first positions, with Q rotated by turn.
	sinks, half int
	interleaved bool
	// fused is set if the command turns Q itself: it scales each head by its root mean square and by
	// norm if normed is set, and then rotates it by turn.
	fused, normed bool
	eps           float64
	learned       bool // each head has a sink logit
}

// attentionOf describes an attention command, or reports why its weights cannot be computed.
func attentionOf(t *table.Table, cmd int) (*attention, error) {
	c := &t.Cmds[cmd]
	k, ok := decl.Lookup(c.Kernel)
	if !ok || k.Name != "attn" && k.Name != "attn_tile" && k.Name != "attn_chunk" && k.Name != "rope_attn" {
		return nil, errors.New("it is not an attention command")
	}
	word := func(name string) int {
		if at, _, ok := k.Param(name); ok {
			return int(binary.LittleEndian.Uint32(c.Param[at:]))
		}
		return 0
	}
	float := func(name string) float64 { return float64(math.Float32frombits(uint32(word(name)))) }
	spec := func(name string) uint32 {
		if i, ok := k.Spec(name); ok && uint64(c.Spec) < uint64(len(t.Specs)) {
			return t.Specs[c.Spec].Values[i]
		}
		return 0
	}
	bind := func(name string) table.Binding {
		for i := range k.Bindings {
			if k.Bindings[i].Name == name {
				return c.Bind[i]
			}
		}
		return table.Binding{Slot: table.NoSlot}
	}
	a := &attention{
		heads: word("heads"), kvHeads: word("kv_heads"), dim: int(spec("head_dim")), stride: word("q_stride"), window: math.MaxInt,
		scale: float("scale"), softCap: float("soft_cap"), q: bind("q"), turn: bind("turn"), norm: bind("logits"),
		half: word("half"), interleaved: spec("layout") == decl.LayoutInterleaved, learned: spec("learned") != 0,
		fused: k.Name == "rope_attn", chunked: k.Name == "attn_chunk", normed: spec("qk_norm") != 0, eps: float("eps"),
	}
	if spec("windowed") != 0 {
		a.window = word("window")
	}
	if spec("sinks") != 0 {
		a.sinks = word("first")
	}
	if a.fused {
		a.stride, a.turn, a.norm = a.heads*a.dim, bind("angles"), bind("norm")
	}
	slot := bind("k_cache").Slot
	for _, cache := range t.KVCaches() {
		if cache.Slot == slot {
			a.cache = cache
		}
	}
	if a.cache.Heads == 0 || int(a.cache.Heads) != a.kvHeads || kvrows.Dim(&a.cache) != a.dim {
		return nil, errors.New("the layout of its KV cache is not supported")
	}
	return a, nil
}

// attentionInput holds what rows of an attention command share: the inputs, and K of the rows in use.
type attentionInput struct {
	*attention
	q, turn, norm []float32
	k             [][]float32 // [kvHeads][rows in use, dim]
}

// read reads the inputs of rows of an attention command, of which the last sees the given number of
// positions.
func (a *attention) read(rows, seen int, read replay.Reader) (in attentionInput, err error) {
	in.attention = a
	floats := func(b table.Binding, n int) (x []float32) {
		if err == nil && n > 0 {
			p := make([]byte, 4*n)
			x = make([]float32, n)
			err = read(b.Slot, b.Offset, p)
			decodeF32(x, p)
		}
		return x
	}
	in.q = floats(a.q, (rows-1)*a.stride+a.heads*a.dim)
	if a.fused || a.sinks > 0 {
		in.turn = floats(a.turn, rows*2*a.half)
	}
	n := 0
	if a.normed {
		n += 2 * a.dim
	}
	if a.learned {
		n += a.heads
	}
	in.norm = floats(a.norm, n)
	for h := range a.kvHeads {
		if err != nil {
			break
		}
		var k []float32
		k, err = kvrows.Head(&a.cache, h, int(a.cache.Used(seen)), func(offset uint64, p []byte) error { return read(a.cache.Slot, offset, p) })
		in.k = append(in.k, k)
	}
	return in, err
}

// weigh sets w, [heads, seen], to the attention weights of a row.
func (in *attentionInput) weigh(w []float32, row, seen int) {
	first := max(0, seen-in.window)
	if in.chunked {
		first = (seen - 1) / in.window * in.window
	}
	for h := range in.heads {
		q := make([]float64, in.dim)
		for i, x := range in.q[row*in.stride+h*in.dim:][:in.dim] {
			q[i] = float64(x)
		}
		if in.fused {
			in.prepare(q)
		}
		k := in.k[h/(in.heads/in.kvHeads)]
		scores, of := make([]float64, seen), w[h*seen:][:seen]
		for pos := range scores {
			scores[pos] = math.Inf(-1)
		}
		for pos := max(first, in.sinks); pos < seen; pos++ {
			scores[pos] = in.score(q, k, pos)
		}
		if in.sinks > 0 {
			in.rotate(q, in.turn[row*2*in.half:][:2*in.half])
			for pos := range min(in.sinks, seen) {
				scores[pos] = in.score(q, k, pos)
			}
		}
		most, sum := math.Inf(-1), 0.0
		for _, s := range scores {
			most = max(most, s)
		}
		if in.learned {
			logit := float64(in.norm[len(in.norm)-in.heads+h])
			most = max(most, logit)
			sum = math.Exp(logit - most)
		}
		for pos, s := range scores {
			scores[pos] = math.Exp(s - most)
			sum += scores[pos]
		}
		for pos, s := range scores {
			of[pos] = float32(s / sum)
		}
	}
}

// score returns the score of a position for Q.
func (in *attentionInput) score(q []float64, k []float32, position int) float64 {
	sum := 0.0
	for i, x := range k[kvrows.Row(&in.cache, position)*in.dim:][:in.dim] {
		sum += q[i] * float64(x)
	}
	sum *= in.scale
	if in.softCap > 0 {
		sum = in.softCap * math.Tanh(sum/in.softCap)
	}
	return sum
}

// prepare computes the Q that a fused command uses.
func (in *attentionInput) prepare(q []float64) {
	if in.normed {
		squares := 0.0
		for _, x := range q {
			squares += x * x
		}
		factor := 1 / math.Sqrt(squares/float64(in.dim)+in.eps)
		for i := range q {
			q[i] *= factor * float64(in.norm[i])
		}
	}
	in.rotate(q, in.turn)
}

// rotate rotates the pairs of a head by angles, each a cosine and a sine.
func (in *attentionInput) rotate(q []float64, angles []float32) {
	for i := range in.half {
		x, y := i, i+in.half
		if in.interleaved {
			x, y = 2*i, 2*i+1
		}
		cos, sin := float64(angles[2*i]), float64(angles[2*i+1])
		q[x], q[y] = q[x]*cos-q[y]*sin, q[y]*cos+q[x]*sin
	}
}

// showWeights computes and shows the attention weights of a command, row by row.
func (p *tapped) showWeights(env *table.Env, cmd int, step *table.Step, shown Activation, read replay.Reader) error {
	a, rows := p.attention[cmd], 1
	if n, ok := env.Value("rows"); ok {
		rows = int(n)
	}
	first := int(step.KVLen) + behind(env)
	in, err := a.read(rows, first+rows-1, read)
	if err != nil {
		return fmt.Errorf("pianola: attention weights of %s: %w", p.t.Label(cmd), err)
	}
	shown.Name = WeightsName
	for r := range rows {
		seen := first + r
		shown.Position, shown.Shape = seen-1, [2]int{a.heads, seen}
		p.values = resized(p.values, a.heads*seen)
		in.weigh(p.values, r, seen)
		shown.Values = p.values
		if err := p.of.Show(shown); err != nil {
			return err
		}
	}
	return nil
}

// behind returns the row of a program that a command computes alone, or 0.
func behind(env *table.Env) int {
	n, _ := env.Value("behind")
	return int(n)
}
