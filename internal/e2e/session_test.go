package e2e_test

import (
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/tokenizer"
)

const gopher = "testdata/gopher-q8_0.gguf"

func newSession(t testing.TB, m *pianola.Model, o pianola.SessionOptions) *pianola.Session {
	t.Helper()
	s, err := m.NewSession(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// collect generates from a prompt and returns the text and the ids.
func collect(t testing.TB, s *pianola.Session, prompt string, o pianola.GenerateOptions) (string, []int32) {
	t.Helper()
	var text strings.Builder
	var ids []int32
	for tok, err := range s.Generate(context.Background(), prompt, o) {
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString(tok.Text)
		ids = append(ids, tok.ID)
	}
	return text.String(), ids
}

// TestGenerate compares the streamed text with the decoded ids.
func TestGenerate(t *testing.T) {
	m := open(t, gopher, pianola.Options{})
	tok, err := m.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	for _, chain := range []int{1, 5, 0} {
		s := newSession(t, m, pianola.SessionOptions{Chain: chain, IgnoreStops: true})
		text, ids := collect(t, s, "func main() {", pianola.GenerateOptions{MaxTokens: 60})
		if len(ids) != 60 || text != tok.Decode(ids) {
			t.Errorf("chain %d: %d tokens, text %q, decoded %q", chain, len(ids), text, tok.Decode(ids))
		}
		st := s.Stats()
		if st.Tokens != 60 || st.FirstToken <= 0 || st.Decode <= 0 || st.PromptTokens == 0 {
			t.Errorf("chain %d: stats %+v", chain, st)
		}
		if chain == 5 && (st.Submissions != 13 || st.Waits != 13) {
			t.Errorf("%d submissions and %d waits, want 1 for the prompt and 12 chains", st.Submissions, st.Waits)
		}
	}
}

// TestAllocations checks that decoding chains of 64 tokens, with weights in tiles, does not
// allocate.
func TestAllocations(t *testing.T) {
	m := open(t, gopher, pianola.Options{})
	s := newSession(t, m, pianola.SessionOptions{Chain: 64, IgnoreStops: true})
	ctx := context.Background()
	if _, _, err := s.Prompt(ctx, []int32{1, 2, 3}); err != nil {
		t.Fatal(err)
	}
	least := ^uint64(0)
	for range 5 { // background work of the Go runtime may allocate
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		tokens, _, err := s.Chain(ctx, 64)
		runtime.ReadMemStats(&after)
		if err != nil || len(tokens) != 64 {
			t.Fatal(len(tokens), err)
		}
		least = min(least, after.TotalAlloc-before.TotalAlloc)
	}
	if least != 0 {
		t.Errorf("a chain of 64 tokens allocated %d bytes", least)
	}
}

// TestBreak stops a generation early. Tokens that the caller did not receive must not be in
// the context.
func TestBreak(t *testing.T) {
	m := open(t, gopher, pianola.Options{})
	whole := newSession(t, m, pianola.SessionOptions{IgnoreStops: true})
	_, want := collect(t, whole, "package", pianola.GenerateOptions{MaxTokens: 30})
	s := newSession(t, m, pianola.SessionOptions{Chain: 20, IgnoreStops: true})
	var got []int32
	for tok, err := range s.Generate(context.Background(), "package", pianola.GenerateOptions{MaxTokens: 30}) {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, tok.ID); len(got) == 7 {
			break
		}
	}
	last := got[6]
	// The seventh token is pending. A prompt of the eighth must therefore continue as the
	// uninterrupted generation did.
	for tok, err := range s.GenerateIDs(context.Background(), want[7:8], pianola.GenerateOptions{MaxTokens: 10}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, tok.ID)
	}
	if last != want[6] || !slices.Equal(got[7:], want[8:18]) {
		t.Errorf("after a break: %v, want %v", got[7:], want[8:18])
	}
}

// TestCancelGeneration cancels a generation of 4,096 tokens.
func TestCancelGeneration(t *testing.T) {
	s := newSession(t, open(t, gopher, pianola.Options{}), pianola.SessionOptions{IgnoreStops: true})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	tokens, submissions := 0, 0
	var end error
	for _, err := range s.Generate(ctx, "func", pianola.GenerateOptions{MaxTokens: 4096}) {
		if err != nil {
			end = err
			break
		}
		if tokens++; tokens == 20 {
			submissions = s.Stats().Submissions
			cancel()
		}
	}
	if !errors.Is(end, context.Canceled) || tokens < 20 || tokens > 1000 {
		t.Errorf("%d tokens, then %v", tokens, end)
	}
	if n := s.Stats().Submissions; n != submissions {
		t.Errorf("%d submissions after the cancellation", n-submissions)
	}
}

func TestGenerateErrors(t *testing.T) {
	m := open(t, gopher, pianola.Options{Table: pianola.TableOptions{Context: 32}})
	s := newSession(t, m, pianola.SessionOptions{IgnoreStops: true})
	first := func(prompt string, o pianola.GenerateOptions) error {
		var last error
		for _, err := range s.Generate(context.Background(), prompt, o) {
			last = err
		}
		return last
	}
	if err := first("", pianola.GenerateOptions{ContinueText: true}); !errors.Is(err, pianola.ErrEmptyPrompt) {
		t.Errorf("an empty prompt: %v", err)
	}
	if err := first(strings.Repeat("x = 1\n", 50), pianola.GenerateOptions{}); !errors.Is(err, pianola.ErrContextFull) {
		t.Errorf("a prompt past the context: %v", err)
	}
	if err := first("x", pianola.GenerateOptions{MaxTokens: -1}); err == nil {
		t.Error("MaxTokens -1 was accepted")
	}
	if err := first("x", pianola.GenerateOptions{}); !errors.Is(err, pianola.ErrContextFull) {
		t.Errorf("generating past the context: %v", err)
	}
	for _, bad := range []pianola.Sampling{{Temperature: -1}, {Temperature: math.NaN()}, {Temperature: 1, TopP: 2}, {Temperature: 1, MinP: -1}, {Temperature: 1, TopK: -1}, {RepeatPenalty: -2}} {
		if err := s.Reset(); err != nil {
			t.Fatal(err)
		}
		if err := first("x", pianola.GenerateOptions{Sampling: bad}); err == nil || !strings.Contains(err.Error(), "is n") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := first("x", pianola.GenerateOptions{}); !errors.Is(err, pianola.ErrClosed) {
		t.Errorf("after closing: %v", err)
	}
	none := newSession(t, open(t, "testdata/tiny/llama/model.gguf", pianola.Options{}), pianola.SessionOptions{})
	for _, err := range none.Generate(context.Background(), "x", pianola.GenerateOptions{}) {
		if !errors.Is(err, pianola.ErrNoTokenizer) || !errors.Is(err, tokenizer.ErrNone) {
			t.Errorf("without a tokenizer: %v", err)
		}
	}
}

// TestBusy uses one session from two goroutines. One of them must get ErrBusy.
func TestBusy(t *testing.T) {
	s := newSession(t, open(t, gopher, pianola.Options{}), pianola.SessionOptions{IgnoreStops: true})
	var wg sync.WaitGroup
	for range s.Generate(context.Background(), "x", pianola.GenerateOptions{MaxTokens: 2}) {
		wg.Go(func() {
			for _, err := range s.Generate(context.Background(), "y", pianola.GenerateOptions{MaxTokens: 1}) {
				if !errors.Is(err, pianola.ErrBusy) {
					t.Errorf("got %v, want ErrBusy", err)
				}
			}
		})
		wg.Wait()
	}
}

// TestSampling checks that a seed always gives the same tokens, that different seeds give
// different tokens, and that temperature 0 is greedy.
func TestSampling(t *testing.T) {
	m := open(t, gopher, pianola.Options{})
	draw := func(p pianola.Sampling) []int32 {
		s := newSession(t, m, pianola.SessionOptions{IgnoreStops: true})
		_, ids := collect(t, s, "func main() {", pianola.GenerateOptions{MaxTokens: 40, Sampling: p})
		return ids
	}
	greedy := draw(pianola.Sampling{})
	hot := pianola.Sampling{Temperature: 1, TopK: 50, TopP: 0.95, MinP: 0.01, Seed: 1}
	a := draw(hot)
	if !slices.Equal(a, draw(hot)) {
		t.Error("the same seed gave different texts")
	}
	hot.Seed = 2
	if slices.Equal(a, draw(hot)) {
		t.Error("different seeds gave the same text")
	}
	for _, p := range []pianola.Sampling{{Temperature: 1, TopK: 1}, {Temperature: 1e-3}, {Temperature: 1, TopP: 1e-9}, {Temperature: 1, MinP: 1}, {RepeatPenalty: 1.0000001}} {
		if !slices.Equal(draw(p), greedy) {
			t.Errorf("%+v is not greedy", p)
		}
	}
	if slices.Equal(draw(pianola.Sampling{RepeatPenalty: 5}), greedy) {
		t.Error("a repeat penalty of 5 changed nothing")
	}
}

// TestTokenLogProbs checks that tokens have the requested log-probabilities and that the text
// does not change.
func TestTokenLogProbs(t *testing.T) {
	m := open(t, gopher, pianola.Options{Table: pianola.TableOptions{LogProbs: true}})
	text, ids := collect(t, newSession(t, m, pianola.SessionOptions{}), "func main() {", pianola.GenerateOptions{MaxTokens: 20})
	s := newSession(t, m, pianola.SessionOptions{})
	got, n := "", 0
	for tok, err := range s.Generate(t.Context(), "func main() {", pianola.GenerateOptions{MaxTokens: 20, Sampling: pianola.Sampling{LogProbs: 3}}) {
		if err != nil {
			t.Fatal(err)
		}
		if len(tok.Top) != 3 || tok.Top[0] != (pianola.LogProb{ID: ids[n], LogProb: tok.LogProb}) || tok.Top[2].LogProb > tok.Top[1].LogProb || tok.LogProb > 0 {
			t.Errorf("token %d: %+v", n, tok)
		}
		got += tok.Text
		n++
	}
	if got != text || n != len(ids) {
		t.Errorf("%q, without log-probabilities %q", got, text)
	}
	for _, err := range newSession(t, open(t, gopher, pianola.Options{}), pianola.SessionOptions{}).Generate(t.Context(), "x", pianola.GenerateOptions{Sampling: pianola.Sampling{LogProbs: 1}}) {
		if !errors.Is(err, pianola.ErrNoLogProbs) {
			t.Errorf("a model without the programs: %v", err)
		}
	}
}

// TestStops checks that the stop ids are the union of the files' stop ids and the family's
// stop tokens.
func TestStops(t *testing.T) {
	m := open(t, gopher, pianola.Options{})
	if got, want := m.StopIDs(), []int32{1, 2}; !slices.Equal(got, want) {
		t.Errorf("stop ids %v, want %v: the end of text and the end of a turn", got, want)
	}
	hf := header(t, "testdata/gopher")
	if got, want := hf.StopIDs(), []int32{1, 2}; !slices.Equal(got, want) {
		t.Errorf("Hugging Face form: stop ids %v, want %v", got, want)
	}
}

// TestStopString checks that the generated text ends before a stop string, and that the
// context ends with the token that completes the stop string.
func TestStopString(t *testing.T) {
	m := open(t, gopher, pianola.Options{})
	text, ids := collect(t, newSession(t, m, pianola.SessionOptions{IgnoreStops: true}), "func main() {", pianola.GenerateOptions{MaxTokens: 60})
	at := len(text) / 2
	stop := text[at : at+7]
	at = strings.Index(text, stop)
	for _, chain := range []int{1, 64} {
		s := newSession(t, m, pianola.SessionOptions{Chain: chain, IgnoreStops: true})
		got, gotIDs := collect(t, s, "func main() {", pianola.GenerateOptions{MaxTokens: 60, Stop: []string{"no such text", stop}})
		if got != text[:at] || !slices.Equal(gotIDs, ids[:len(gotIDs)]) || len(gotIDs) == len(ids) {
			t.Errorf("chain %d: %q, want %q", chain, got, text[:at])
		}
		if want := s.Stats().PromptTokens + len(gotIDs) - 1; s.Len() != want {
			t.Errorf("chain %d: %d positions, want %d", chain, s.Len(), want)
		}
	}
	for _, err := range newSession(t, m, pianola.SessionOptions{}).Generate(t.Context(), "x", pianola.GenerateOptions{Stop: []string{""}}) {
		if !errors.Is(err, pianola.ErrStopString) {
			t.Errorf("an empty stop string: %v", err)
		}
	}
}
