package e2e_test

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/golden"
)

// heldout returns the first n tokens of gopher's held-out text.
func heldout(t *testing.T, m *pianola.Model, n int) []int32 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "gopher", "heldout.txt"))
	if err != nil {
		t.Fatal(err)
	}
	tok, err := m.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	ids, err := tok.Encode(string(text), pianola.EncodeOptions{AddSpecial: true})
	if err != nil {
		t.Fatal(err)
	}
	return ids[:n]
}

// minusLogP returns -log(softmax(logits)[id]).
func minusLogP(logits []float32, id int32) float64 {
	top := float64(slices.Max(logits))
	sum := 0.0
	for _, v := range logits {
		sum += math.Exp(float64(v) - top)
	}
	return math.Log(sum) + top - float64(logits[id])
}

// TestKVQ8 compares an int8 KV cache with a float16 one in perplexity and memory. It also
// checks that chunks, chains and fusions do not change any bit of the results.
func TestKVQ8(t *testing.T) {
	ctx := context.Background()
	const chunk, chunks = 512, 4
	var ppl [2]float64
	var memory [2]uint64
	for i, kv := range []pianola.KVType{pianola.KVF16, pianola.KVQ8} {
		m := open(t, "testdata/gopher", pianola.Options{Device: "cpu", Table: pianola.TableOptions{Context: chunk, AllLogits: true, KV: kv}})
		s := newSession(t, m, pianola.SessionOptions{})
		ids, sum := heldout(t, m, chunk*chunks), 0.0
		for part := range slices.Chunk(ids, chunk) {
			if err := s.Reset(); err != nil {
				t.Fatal(err)
			}
			for row, err := range s.Logits(ctx, part, 0) {
				if err != nil {
					t.Fatal(err)
				}
				if at := row.Position; at >= chunk/2 && at < chunk-1 {
					sum += minusLogP(row.Logits, part[at+1])
				}
			}
		}
		ppl[i], memory[i] = math.Exp(sum/(chunks*(chunk/2-1))), m.Memory().Sessions
	}
	t.Logf("perplexity %.4f and %.4f, memory of a session %d and %d", ppl[0], ppl[1], memory[0], memory[1])
	if off := math.Abs(ppl[1]/ppl[0] - 1); off > 0.005 {
		t.Errorf("perplexity %v differs by %.2f %% from %v with float16", ppl[1], 100*off, ppl[0])
	}
	kv := uint64(2 * 2 * 64 * chunk * 8) // bytes of K and V for two heads in 8 layers
	if saved := memory[0] - memory[1]; saved != 2*kv-kv/16*17 {
		t.Errorf("a session takes %d bytes less, want %d", saved, 2*kv-kv/16*17)
	}

	prompt := []int32{}
	var first []float32
	var ids []int32
	for i, o := range []pianola.Options{{}, {Threads: otherThreads}, {Table: pianola.TableOptions{NoFuse: true}}} {
		o.Device, o.Table.Context, o.Table.KV = "cpu", chunk, "q8_0"
		m := open(t, "testdata/gopher-q8_0.gguf", o)
		if i == 0 {
			prompt = heldout(t, m, 150)
		}
		logits, tokens := greedy(t, m, []int{1, 32, 7}[i], prompt, 24)
		if i == 0 {
			first, ids = logits, tokens
			continue
		}
		if !slices.Equal(logits, first) || !slices.Equal(tokens, ids) {
			t.Errorf("%+v: the results differ", o)
		}
	}
	m := open(t, "testdata/gopher-q8_0.gguf", pianola.Options{Device: "cpu", Table: pianola.TableOptions{Context: chunk, KV: "q8_0"}})
	s := newSession(t, m, pianola.SessionOptions{})
	for i, cut := range [][2]int{{0, 1}, {1, 100}, {100, 150}} {
		part := prompt[cut[0]:cut[1]]
		if i > 0 { // replaces the chosen token
			if err := s.SetNext(part[0]); err != nil {
				t.Fatal(err)
			}
			part = part[1:]
		}
		if _, _, err := s.Prompt(ctx, part); err != nil {
			t.Fatal(err)
		}
	}
	logits := make([]float32, m.Config().Vocab)
	if err := s.NextLogits(logits); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(logits, first) {
		t.Error("a prompt in three parts gives different results")
	}
}

// likely returns the perplexity of ids from index first on, in independent contexts of size
// tokens each.
func likely(t *testing.T, m *pianola.Model, ids []int32, size, first int) float64 {
	t.Helper()
	s, sum, at := newSession(t, m, pianola.SessionOptions{}), 0.0, 0
	for part := range slices.Chunk(ids, size) {
		if err := s.Reset(); err != nil {
			t.Fatal(err)
		}
		for row, err := range s.Logits(t.Context(), part, 0) {
			if err != nil {
				t.Fatal(err)
			}
			if next := at + row.Position + 1; next < len(ids) && next > first {
				sum += minusLogP(row.Logits, ids[next])
			}
		}
		at += len(part)
	}
	return math.Exp(sum / float64(len(ids)-1-first))
}

// TestKVSinks runs far beyond the trained context with attention sinks and a window. The
// perplexity must stay about the same, and chains must compute the same results as prompts.
// Invalid combinations of the options must be refused.
func TestKVSinks(t *testing.T) {
	ctx := context.Background()
	const length = 3000
	o := pianola.Options{Device: "cpu", Table: pianola.TableOptions{Context: length, AllLogits: true, KVSinks: 4, KVWindow: 252}}
	ids := heldout(t, open(t, gopher, pianola.Options{Device: "cpu"}), length)
	anew := likely(t, open(t, gopher, pianola.Options{Device: "cpu", Table: pianola.TableOptions{Context: 256, AllLogits: true}}), ids, 256, length/2)
	for _, kv := range []pianola.KVType{pianola.KVF16, pianola.KVQ8} {
		o.Table.KV = kv
		m := open(t, gopher, o)
		got := likely(t, m, ids, length, length/2)
		t.Logf("%s: perplexity %.3f, %.3f in independent contexts", kv, got, anew)
		if !(got < anew) {
			t.Errorf("%s: perplexity %v, %v in independent contexts", kv, got, anew)
		}
		if rows := m.Table().KVCapacity(); rows != 4+252+int(m.Table().Header.Chunk) {
			t.Errorf("%s: a cache of %d rows", kv, rows)
		}
	}
	o.Table.AllLogits = false
	m := open(t, gopher, o)
	logits, after := make([]float32, m.Config().Vocab), make([]float32, m.Config().Vocab)
	for i, prompt := range []int{700, 640} {
		s := newSession(t, m, pianola.SessionOptions{})
		if _, _, err := s.Prompt(ctx, ids[:prompt]); err != nil {
			t.Fatal(err)
		}
		for at := prompt; at < 700; at++ { // decode the tokens of the prompt
			if err := s.SetNext(ids[at]); err != nil {
				t.Fatal(err)
			}
			if _, _, err := s.Chain(ctx, 1); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.NextLogits([][]float32{logits, after}[i]); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(logits, after) {
		t.Error("decoding and a prompt give different results")
	}
	var bad *compiler.SinksError
	for _, o := range []pianola.Options{{Table: pianola.TableOptions{KVSinks: 4}}, {Table: pianola.TableOptions{KVSinks: -1, KVWindow: 5}}, {Table: pianola.TableOptions{KVWindow: -5}}, {Table: pianola.TableOptions{KVSinks: 1000, KVWindow: 1 << 40}}} {
		o.Device = "cpu"
		if _, err := pianola.Open(ctx, gopher, o); !errors.As(err, &bad) {
			t.Errorf("%d and %d positions: %v", o.Table.KVSinks, o.Table.KVWindow, err)
		}
	}
	var long *compiler.ContextError
	if _, err := pianola.Open(ctx, gopher, pianola.Options{Device: "cpu", Table: pianola.TableOptions{KVWindow: 5, Context: compiler.MaxEndless + 1}}); !errors.As(err, &long) {
		t.Errorf("a context past the precision of angles: %v", err)
	}
}

// TestRollover generates the length of several contexts. Given text must be about as likely as
// in independent contexts, and generation must continue without an error. Without the option,
// a full context must be an error.
func TestRollover(t *testing.T) {
	ctx := context.Background()
	const size, length = 256, 6 * 256
	m := open(t, gopher, pianola.Options{Device: "cpu", Table: pianola.TableOptions{Context: size}})
	ids := heldout(t, m, length)
	anew := likely(t, open(t, gopher, pianola.Options{Device: "cpu", Table: pianola.TableOptions{Context: size, AllLogits: true}}), ids, size, 0)
	s := newSession(t, m, pianola.SessionOptions{Rollover: pianola.Rollover{Sinks: 4, Window: size / 2}})
	logits, sum := make([]float32, m.Config().Vocab), 0.0
	for i := range length - 1 {
		var err error
		if i == 0 {
			_, _, err = s.Prompt(ctx, ids[:1])
		} else {
			_, _, err = s.Chain(ctx, 1)
		}
		if err == nil {
			err = s.NextLogits(logits)
		}
		if err == nil {
			sum += minusLogP(logits, ids[i+1])
			err = s.SetNext(ids[i+1])
		}
		if err != nil {
			t.Fatalf("token %d: %v", i, err)
		}
	}
	if s.Len() > size {
		t.Errorf("%d positions in a context of %d", s.Len(), size)
	}
	rolled := math.Exp(sum / (length - 1))
	t.Logf("perplexity %.3f in contexts of %d, %.3f where they roll over", anew, size, rolled)
	if !(rolled < 1.05*anew) {
		t.Errorf("perplexity %v with rollover, %v in independent contexts", rolled, anew)
	}

	for _, roll := range []pianola.Rollover{{}, {Sinks: 4, Window: 100}} {
		s := newSession(t, m, pianola.SessionOptions{Rollover: roll, IgnoreStops: true})
		n := 0
		var last error
		for tok, err := range s.GenerateIDs(ctx, ids[:20], pianola.GenerateOptions{MaxTokens: 3 * size}) {
			if last = err; err != nil {
				break
			}
			if n++; tok.ID < 0 || tok.Position > size {
				t.Fatalf("token %d is %+v", n, tok)
			}
		}
		switch {
		case roll == pianola.Rollover{}:
			if !errors.Is(last, pianola.ErrContextFull) || n != size-20+1 {
				t.Errorf("without a rollover: %d tokens, %v", n, last)
			}
		case last != nil || n != 3*size:
			t.Errorf("%+v: %d tokens, %v", roll, n, last)
		}
	}
	if _, err := m.NewSession(pianola.SessionOptions{Rollover: pianola.Rollover{Sinks: 4, Window: size - 4}}); err == nil {
		t.Error("NewSession accepts a rollover that leaves no room")
	}
	// A prompt also triggers a rollover. A prompt that does not fit after it is an error.
	s = newSession(t, m, pianola.SessionOptions{Rollover: pianola.Rollover{Sinks: 4, Window: 100}})
	for _, n := range []int{200, 100, 151} {
		if _, _, err := s.Prompt(ctx, ids[:n]); err != nil {
			t.Errorf("a prompt of %d tokens after %d positions: %v", n, s.Len(), err)
		}
	}
	if _, _, err := s.Prompt(ctx, ids[:152]); !errors.Is(err, pianola.ErrContextFull) || s.Len() != size {
		t.Errorf("a prompt that does not fit after a rollover: %d positions, %v", s.Len(), err)
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, _, err := s.Chain(gone, 5); !errors.Is(err, context.Canceled) || s.Len() != size {
		t.Errorf("with a cancelled context: %d positions, %v", s.Len(), err)
	}
}

// TestKVSinksChunk checks that a context of one chunk has room for both the kept positions and
// the chunk's rows, on every chip. A window as large as the context must not change the
// results.
func TestKVSinksChunk(t *testing.T) {
	const path = "testdata/tiny/qwen3"
	h := header(t, path)
	for _, chip := range chip.Names() {
		if _, err := h.Compile(chip, pianola.TableOptions{Context: 512, KVSinks: 4, KVWindow: 60}); err != nil {
			t.Errorf("%s: %v", chip, err)
		}
	}
	ids := make([]int32, 500)
	for i := range ids {
		ids[i] = int32(i*37%500 + 3)
	}
	plain, want := greedy(t, open(t, path, pianola.Options{Device: "cpu", Table: pianola.TableOptions{Context: 512}}), 4, ids, 12)
	logits, got := greedy(t, open(t, path, pianola.Options{Device: "cpu", Table: pianola.TableOptions{Context: 512, KVSinks: 4, KVWindow: 508}}), 4, ids, 12)
	ref := make([]float64, len(plain))
	for i, v := range plain {
		ref[i] = float64(v)
	}
	if a := golden.Compare(1e-4, logits, nil, ref, nil, nil); a.Fault != nil || !slices.Equal(got, want) {
		t.Errorf("%v, tokens %v, want %v", a.Fault, got, want)
	}
}
