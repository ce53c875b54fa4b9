package replay_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/cpu"
	"github.com/pianola-engine/pianola/replay/null"
)

// testRepromptRows compares the logits and hidden states of rows with those of a new
// context, however many rows were kept, and the hidden states with the logits through the
// head.
func testRepromptRows(t *testing.T, loaded loader) {
	ctx := context.Background()
	m := loaded(t, "qwen2", 16, compiler.Options{AllLogits: true, Hidden: true})
	rows := func(s *replay.Session, ids []int32, from int, of func(*replay.Session, context.Context, []int32, int, func(int, []float32) error) error) (list [][]float32) {
		t.Helper()
		if err := of(s, ctx, ids, from, func(row int, v []float32) error {
			if row != from+len(list) {
				t.Fatalf("row %d, want %d", row, from+len(list))
			}
			list = append(list, slices.Clone(v))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if len(list) != len(ids)-from || s.Len() != len(ids) {
			t.Fatalf("%d rows of %d from %d on, and %d positions", len(list), len(ids), from, s.Len())
		}
		return list
	}
	ids := prompt(20)
	s := session(t, m, replay.SessionOptions{})
	logits := rows(s, ids, 0, (*replay.Session).RepromptLogits)
	hidden := rows(s, ids, 0, (*replay.Session).RepromptHidden)
	if len(hidden[0]) != 256 || len(logits[0]) != 512 {
		t.Fatalf("rows of %d and %d", len(hidden[0]), len(logits[0]))
	}
	for _, from := range []int{5, 17} {
		before := s.Stats()
		if got := rows(s, ids, from, (*replay.Session).RepromptLogits); !same(got, logits[from:]) {
			t.Errorf("logits from %d on differ", from)
		}
		if got := s.Stats().Prefilled - before.Prefilled; got != len(ids)-from {
			t.Errorf("%d tokens prefilled for the rows from %d on, want %d", got, from, len(ids)-from)
		}
		if got := rows(s, ids, from, (*replay.Session).RepromptHidden); !same(got, hidden[from:]) {
			t.Errorf("hidden states from %d on differ", from)
		}
	}

	// The logits are the head's product with the hidden states.
	_, dir := compiledFor(t, "cpu", "qwen2", 16, compiler.Options{})
	mapped, err := dir.Map()
	if err != nil {
		t.Fatal(err)
	}
	defer mapped.Close()
	head, err := mapped.Tensor("lm_head.weight")
	if err != nil {
		t.Fatal(err)
	}
	var diff, norm float64
	for row := range hidden {
		for i, want := range logits[row] {
			sum := 0.0
			for j, h := range hidden[row] {
				at := 2 * (256*i + j)
				sum += float64(h) * float64(dtype.F16ToF32(uint16(head[at])|uint16(head[at+1])<<8))
			}
			diff += (sum - float64(want)) * (sum - float64(want))
			norm += float64(want) * float64(want)
		}
	}
	if e := math.Sqrt(diff / norm); !(e < 2e-3) {
		t.Errorf("relative error of the head's product with the hidden states %g", e)
	}

	// Decoding must continue from the prompt, regardless of rows left in scratch.
	if a, b := generate(t, s, []int32{7}, 5), generate(t, session(t, m, replay.SessionOptions{}), append(slices.Clone(ids), 7), 5); !slices.Equal(a, b) {
		t.Errorf("decoded %v after rows, %v after a prompt", a, b)
	}

	stop := errors.New("enough")
	if err := s.RepromptHidden(ctx, ids, 10, func(int, []float32) error { return stop }); !errors.Is(err, stop) || s.Len() != 10 {
		t.Errorf("%v with %d positions, want the visitor's error and the 10 that were kept", err, s.Len())
	}
	for _, from := range []int{-1, 20} {
		if err := s.RepromptHidden(ctx, ids, from, nil); err == nil || s.Len() != 10 {
			t.Errorf("rows from %d on: error %v, %d positions", from, err, s.Len())
		}
	}
	if err := s.RepromptLogits(ctx, nil, 0, nil); !errors.Is(err, replay.ErrEmptyPrompt) {
		t.Errorf("no ids: %v", err)
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if err := s.RepromptHidden(cancelled, ids, 0, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	plain := session(t, loaded(t, "qwen2", 16, compiler.Options{}), replay.SessionOptions{})
	if err := plain.RepromptHidden(ctx, ids, 0, nil); !errors.Is(err, replay.ErrNoHiddenProgram) {
		t.Errorf("without the program: %v", err)
	}
	if err := plain.RepromptLogits(ctx, ids, 0, nil); !errors.Is(err, replay.ErrNoLogitsProgram) {
		t.Errorf("without the program: %v", err)
	}
}

func same(a, b [][]float32) bool {
	return slices.EqualFunc(a, b, func(x, y []float32) bool { return slices.Equal(x, y) })
}

// paced is a device that shortens the chunks at later positions.
type paced struct {
	replay.Device
	most func(program, position int) int
}

func (p paced) MostRows(program, position int) int { return p.most(program, position) }

// TestShortChunks prompts on a device that limits the rows of a chunk. Tokens and the rows of logits
// must be those of whole chunks, and the runs must have the rows that the device permits.
func TestShortChunks(t *testing.T) {
	ctx := context.Background()
	most := func(_, position int) int { return max(1, 7-position/4) }
	tab, dir := compiled(t, "qwen2", 16, compiler.Options{AllLogits: true})
	var tokens [2][]int32
	var logits [2][][]float32
	for i := range tokens {
		own, err := cpu.New(cpu.Options{Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		var dev replay.Device = own
		if i == 1 {
			dev = paced{own, most}
		}
		src, err := dir.Map()
		if err != nil {
			t.Fatal(err)
		}
		m, err := replay.Load(ctx, dev, tab, src, replay.LoadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s := session(t, m, replay.SessionOptions{})
		tokens[i] = generate(t, s, prompt(20), 5)
		if err := s.RepromptLogits(ctx, prompt(30), 3, func(_ int, v []float32) error {
			logits[i] = append(logits[i], slices.Clone(v))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		tokens[i] = append(tokens[i], generate(t, s, []int32{7}, 5)...)
		if err := errors.Join(s.Close(), m.Close(), dev.Close(), src.Close()); err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(tokens[0], tokens[1]) || !same(logits[0], logits[1]) {
		t.Errorf("short chunks choose %v, whole ones %v", tokens[1], tokens[0])
	}
	dev := &null.Device{Script: func(p int) uint32 { return uint32(p) }}
	m, err := replay.Load(ctx, paced{dev, most}, tab, nil, replay.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := session(t, m, replay.SessionOptions{}).Prompt(ctx, prompt(20)); err != nil {
		t.Fatal(err)
	}
	var rows []uint32
	for _, r := range dev.Submissions()[0].Runs {
		rows = append(rows, r.Step.Rows)
	}
	if want := []uint32{7, 6, 4, 3, 1}; !slices.Equal(rows, want) {
		t.Errorf("rows of the chunks and of the head: %v, want %v", rows, want)
	}
}
