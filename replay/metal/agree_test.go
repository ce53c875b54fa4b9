//go:build softmetal

package metal_test

import (
	"context"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/metal/soft"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/cpu"
	"github.com/pianola-engine/pianola/replay/metal"
	"github.com/pianola-engine/pianola/table"
)

// outcome holds the results of a prompt and of the tokens decoded after it.
type outcome struct {
	tokens []uint32
	logits [2][]float32 // after the prompt, after the last token
}

func logits(tb testing.TB, d replayer, t *table.Table, id replay.SessionID) []float32 {
	tb.Helper()
	_, slot, _ := t.Slot(table.SlotLogits)
	b := make([]byte, 4*t.Header.Vocab)
	if err := d.Read(id, slot, 0, b); err != nil {
		tb.Fatal(err)
	}
	x := make([]float32, t.Header.Vocab)
	for i := range x {
		x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return x
}

// play submits a prompt and decodes n tokens in chains.
func play(tb testing.TB, d replayer, t *table.Table, positions, n, length int) (o outcome) {
	tb.Helper()
	id, err := begin(d, t)
	if err != nil {
		tb.Fatal(err)
	}
	if positions > 0 {
		_, slot, _ := t.Slot(table.SlotTokens)
		var b []byte
		for i := range uint32(positions) {
			b = binary.LittleEndian.AppendUint32(b, i*37%uint32(min(500, t.Header.Vocab-4))+3)
		}
		if err := d.Write(id, slot, 0, b); err != nil {
			tb.Fatal(err)
		}
		if res, err := submit(d, prompt(t, id, positions)); err != nil || res.Count != 1 {
			tb.Fatalf("%+v, %v", res, err)
		}
		o.logits[0] = logits(tb, d, t, id)
	}
	for at := positions; at < positions+n; {
		res, err := submit(d, decode(t, id, at, min(length, positions+n-at)))
		if err != nil || res.Count != min(length, positions+n-at) || res.Stopped {
			tb.Fatalf("%+v, %v", res, err)
		}
		at += res.Count
	}
	o.logits[1] = logits(tb, d, t, id)
	o.tokens = ring(tb, d, t, id, positions+n+1)
	return o
}

// far returns the relative error of logits.
func far(got, want []float32) float64 {
	var diff, norm float64
	for i, v := range got {
		diff += math.Pow(float64(v-want[i]), 2)
		norm += math.Pow(float64(want[i]), 2)
	}
	return math.Sqrt(diff / norm)
}

// onCPU is play on the CPU device.
func onCPU(t *testing.T, m model, positions, n, length int) outcome {
	t.Helper()
	host, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Load(bg, m.t, m.src, replay.LoadOptions{}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	}()
	return play(t, host, m.t, positions, n, length)
}

// TestAgrees replays tables in both modes, in random command order, and on the CPU: prompts of
// several chunks and the tokens after them.
func TestAgrees(t *testing.T) {
	for i, c := range []struct {
		path                 string
		positions, n, length int
	}{{"tiny/llama", 20, 12, 5}, {"tiny/mistral", 20, 12, 5}, {"tiny/qwen2", 20, 12, 5}, {"tiny/qwen3", 20, 12, 5}, {"tiny/gemma2", 20, 6, 5},
		{"tiny/gemma3_text", 20, 6, 5}, {"variants/phi3_long", 20, 4, 3}, {"variants/olmo2_mha", 9, 4, 3}, {"variants/smollm3", 9, 4, 3}, {"variants/granite_bias", 9, 4, 3},
		{"variants/starcoder2_nobias", 9, 4, 3}, {"variants/gemma3n", 20, 4, 3}, {"variants/cohere_qknorm", 9, 4, 3}, {"gopher", 0, 3, 2},
		{"gopher-q8_0.gguf", 0, 2, 2}, {"gopher/gopher-q4_0.gguf", 0, 2, 1}} {
		checked(t)
		m := compiled(t, c.path, 96, compiler.Options{AllLogits: true})
		if strings.Contains(c.path, "/") && !strings.HasPrefix(c.path, "gopher/") && c.path != "tiny/llama" {
			quick(t, m.t)
		}
		want := onCPU(t, m, c.positions, c.n, c.length)
		for _, mode := range metal.Modes() {
			soft.SetRandomOrder(uint64(i))
			d := load(t, options(t, mode), m)
			got := play(t, d, m.t, c.positions, c.n, c.length)
			for j := range got.logits {
				if got.logits[j] == nil {
					continue
				}
				if e := far(got.logits[j], want.logits[j]); !(e < 2e-3) {
					t.Errorf("%s, %s: relative error of the logits %g", c.path, mode, e)
				} else {
					t.Logf("%s, %s: %.1e beside the CPU device", c.path, mode, e)
				}
			}
			if !slices.Equal(got.tokens, want.tokens) {
				t.Errorf("%s, %s: tokens %v, want %v", c.path, mode, got.tokens, want.tokens)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestChains decodes in chains of several lengths and in command buffers of several tokens. All
// must give the same bits.
func TestChains(t *testing.T) {
	checked(t)
	m := tiny(t, "llama")
	want := onCPU(t, m, 0, 120, 16)
	var first []float32
	for _, mode := range metal.Modes() {
		for _, c := range []struct{ tokens, n, length int }{{0, 120, 128}, {0, 20, 1}, {0, 33, 16}, {3, 20, 20}} {
			soft.SetRandomOrder(uint64(c.length))
			d := load(t, options(t, mode).ForTest(c.tokens, false, true), m)
			got := play(t, d, m.t, 0, c.n, c.length)
			if !slices.Equal(got.tokens, want.tokens[:c.n+1]) {
				t.Errorf("%s, chains of %d: tokens %v, want %v", mode, c.length, got.tokens, want.tokens)
			}
			if c.n == 20 {
				if first == nil {
					first = got.logits[1]
				}
				if !slices.Equal(got.logits[1], first) {
					t.Errorf("%s, chains of %d: other bits than in others", mode, c.length)
				}
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

var bg = context.Background()
