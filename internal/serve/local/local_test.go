package local

import (
	"context"
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/serve/engine"
)

const gopher = "../../../testdata/gopher-q8_0.gguf"

// open opens gopher with the chat template of the tests.
func open(t *testing.T, o Options) *Model {
	t.Helper()
	source, err := os.ReadFile("../../../testdata/gopher/chat.jinja")
	if err != nil {
		t.Fatal(err)
	}
	if o.Template == "" {
		o.Template = string(source)
	}
	o.Library.Device = pianola.DeviceCPU
	if o.Library.Parallel == 0 {
		o.Library.Parallel = 4
	}
	if o.Library.Table.Context == 0 {
		o.Library.Table.Context = 256
	}
	m, err := Open(context.Background(), gopher, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// generate returns the tokens and the result of a generation.
func generate(t *testing.T, m *Model, g engine.Generation) (text string, tokens []engine.Token, r engine.Result) {
	t.Helper()
	r, err := m.Generate(context.Background(), g, func(tok engine.Token) bool {
		text += tok.Text
		tokens = append(tokens, tok)
		return true
	})
	if err != nil {
		t.Error(err)
	}
	return text, tokens, r
}

func prompt(s string) engine.Text { return engine.Text{String: s} }

// TestSpeculate generates with and without speculation. The answers have the same tokens.
func TestSpeculate(t *testing.T) {
	plain, drafts := open(t, Options{}), open(t, Options{Speculate: true})
	g := engine.Generation{Prompt: prompt(strings.Repeat("	if err != nil {\n\t\treturn err\n\t}\n", 6)), MaxTokens: 150, IgnoreStops: true}
	for _, temperature := range []float64{0, 0.5} {
		g.Sampling.Temperature = temperature
		_, want, _ := generate(t, plain, g)
		_, got, _ := generate(t, drafts, g)
		if !slices.EqualFunc(got, want, sameToken) {
			t.Errorf("temperature %v: %v, want %v", temperature, got, want)
		}
	}
	t.Logf("%d tokens of drafts", drafts.Load().DraftedTokens) // 0 if the scheduler predicts that they do not pay on this machine
	if !drafts.options(&g).Speculate || plain.options(&g).Speculate || plain.Load().DraftedTokens > 0 {
		t.Errorf("an answer speculates: %t, without the option %t", drafts.options(&g).Speculate, plain.options(&g).Speculate)
	}
}

// TestTogether runs generations of all kinds together. Each must have the tokens, with all their
// probabilities, that it has alone.
func TestTogether(t *testing.T) {
	m := open(t, Options{})
	var all []engine.Generation
	for i, p := range []string{"func main() {", "package ", "// Copyright", "import (\n", "type T struct", "for i := range ", "return err", "func (s *"} {
		g := engine.Generation{Prompt: prompt(p), MaxTokens: 12 + i}
		if i%2 == 1 {
			g.Sampling = engine.Sampling{Temperature: 0.8, TopP: 0.95, Seed: uint64(i), LogProbs: 3, LogitBias: map[int32]float64{300: 2}}
		}
		all = append(all, g)
	}
	alone := make([][]engine.Token, len(all))
	for i, g := range all {
		_, alone[i], _ = generate(t, m, g)
	}
	var wg sync.WaitGroup
	for i, g := range all {
		g.Priority = i % 3
		wg.Go(func() {
			_, got, r := generate(t, m, g)
			if !slices.EqualFunc(got, alone[i], sameToken) {
				t.Errorf("%d: %v, alone %v", i, got, alone[i])
			}
			if r.Tokens != len(got) || r.Prompt == 0 || r.FirstToken <= 0 || r.Cached > r.Prompt {
				t.Errorf("%d: %+v", i, r)
			}
		})
	}
	wg.Wait()
	if l := m.Load(); l.Pages == 0 || l.Running != 0 || l.Waiting != 0 || l.PromptTokens == 0 {
		t.Errorf("%+v", l)
	}
}

func sameToken(a, b engine.Token) bool {
	return a.ID == b.ID && a.Text == b.Text && a.Special == b.Special && a.LogProb == b.LogProb && slices.Equal(a.Top, b.Top)
}

// TestLogProbs checks the number of alternatives and that greedy tokens are the most probable ones.
func TestLogProbs(t *testing.T) {
	m := open(t, Options{})
	for _, n := range []int{0, 1, 2, 5, m.Info().MaxLogProbs} {
		_, tokens, _ := generate(t, m, engine.Generation{Prompt: prompt("func main() {"), MaxTokens: 3, Sampling: engine.Sampling{LogProbs: n}})
		for _, tok := range tokens {
			if len(tok.Top) != max(0, n-1) || (n > 0) != (tok.LogProb < 0) || n > 1 && (tok.Top[0].ID != tok.ID || tok.Top[0].LogProb != tok.LogProb) {
				t.Errorf("LogProbs %d: %+v", n, tok)
			}
		}
	}
}

// TestStops ends generations at texts, at a special token by its name, at the limit and by the caller.
func TestStops(t *testing.T) {
	m := open(t, Options{})
	g := engine.Generation{Prompt: prompt("func main() {"), MaxTokens: 20}
	whole, tokens, r := generate(t, m, g)
	if r.Reason != engine.Length || len(tokens) != 20 || r.StopText != "" {
		t.Fatalf("%q: %+v", whole, r)
	}
	stop := whole[5:9]
	at := strings.Index(whole, stop)
	g.Stop = []string{"never in a text", stop, stop + "x"}
	if text, _, r := generate(t, m, g); text != whole[:at] || r.Reason != engine.Stopped || r.StopText != stop {
		t.Errorf("%q, %+v; want %q before %q", text, r, whole[:at], stop)
	}
	eot, _ := m.tok.ID("<|end_of_text|>")
	bias := engine.Sampling{LogitBias: map[int32]float64{eot: 1e6}}
	if _, tokens, r := generate(t, m, engine.Generation{Prompt: g.Prompt, MaxTokens: 5, Sampling: bias}); r.Reason != engine.Stopped || len(tokens) != 1 || tokens[0].Special != "" || r.StopText != "" {
		t.Errorf("at the stop token: %+v, %+v", tokens, r)
	}
	if _, tokens, r := generate(t, m, engine.Generation{Prompt: g.Prompt, MaxTokens: 3, Sampling: bias, IgnoreStops: true}); r.Reason != engine.Length || len(tokens) != 3 || tokens[0].Special != "<|end_of_text|>" {
		t.Errorf("ignoring stop tokens: %+v, %+v", tokens, r)
	}
	named := engine.Generation{Prompt: g.Prompt, MaxTokens: 3, Sampling: bias, IgnoreStops: true, Stop: []string{"<|end_of_text|>"}}
	if _, tokens, r := generate(t, m, named); r.Reason != engine.Stopped || len(tokens) != 1 || tokens[0].Special != "" || r.StopText != "<|end_of_text|>" {
		t.Errorf("at a special token by name: %+v, %+v", tokens, r)
	}
	r, err := m.Generate(context.Background(), g, func(engine.Token) bool { return false })
	if err != nil || r.Reason != engine.Left || r.Tokens != 1 {
		t.Errorf("left: %+v, %v", r, err)
	}
}

// TestErrors checks the errors of generations.
func TestErrors(t *testing.T) {
	m := open(t, Options{})
	yield := func(engine.Token) bool { return true }
	ctx := context.Background()
	var request *engine.RequestError
	for name, g := range map[string]engine.Generation{
		"temperature": {Prompt: prompt("x"), Sampling: engine.Sampling{Temperature: -1}},
		"prompt":      {Prompt: engine.Text{IDs: []int32{1 << 20}}},
		"stop":        {Prompt: prompt("x"), Stop: []string{""}},
	} {
		if _, err := m.Generate(ctx, g, yield); !errors.As(err, &request) || !strings.Contains(request.Param, name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := m.Generate(ctx, engine.Generation{Prompt: engine.Text{IDs: []int32{}}}, yield); !errors.As(err, &request) {
		t.Errorf("an empty prompt: %v", err)
	}
	if _, err := m.Generate(ctx, engine.Generation{Prompt: engine.Text{IDs: make([]int32, 256)}}, yield); !errors.Is(err, engine.ErrContextFull) {
		t.Errorf("a full context: %v", err)
	}
	r, err := m.Generate(ctx, engine.Generation{Prompt: engine.Text{IDs: make([]int32, 250)}, IgnoreStops: true}, yield)
	if err != nil || r.Reason != engine.Length || r.Tokens == 0 {
		t.Errorf("up to the end of the context: %+v, %v", r, err)
	}
	if _, err := m.Generate(ctx, engine.Generation{Prompt: engine.Text{IDs: make([]int32, 200)}, Within: time.Nanosecond}, yield); !errors.Is(err, engine.ErrDeadline) {
		t.Errorf("a deadline: %v", err)
	}
	why := errors.New("why")
	cancelled, cancel := context.WithCancelCause(ctx)
	if _, err := m.Generate(cancelled, engine.Generation{Prompt: prompt("x"), IgnoreStops: true}, func(engine.Token) bool { cancel(why); return true }); !errors.Is(err, why) {
		t.Errorf("cancelled: %v", err)
	}
	if _, _, err := m.Rerank(ctx, "x", nil); !errors.Is(err, engine.ErrUnsupported) {
		t.Errorf("rerank: %v", err)
	}
}

// TestBusy fills the queue. One more call gets a *BusyError.
func TestBusy(t *testing.T) {
	m := open(t, Options{Library: pianola.Options{Parallel: 1, Queue: 1}})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	held := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	defer close(held)
	running := make(chan struct{})
	wg.Go(func() {
		once := sync.OnceFunc(func() { close(running) })
		_, _ = m.Generate(ctx, engine.Generation{Prompt: prompt("x"), IgnoreStops: true}, func(engine.Token) bool { once(); <-held; return true })
	})
	<-running
	for {
		short, stop := context.WithTimeout(ctx, 20*time.Millisecond)
		_, err := m.Generate(short, engine.Generation{Prompt: prompt("y")}, func(engine.Token) bool { return true })
		stop()
		var busy *engine.BusyError
		if errors.As(err, &busy) {
			return
		}
		wg.Go(func() {
			_, _ = m.Generate(ctx, engine.Generation{Prompt: prompt("z")}, func(engine.Token) bool { return true })
		})
	}
}

// TestCloseWhileGenerating closes the model in the middle of generations.
func TestCloseWhileGenerating(t *testing.T) {
	m := open(t, Options{})
	var wg sync.WaitGroup
	var started sync.WaitGroup
	for range 6 {
		started.Add(1)
		wg.Go(func() {
			once := sync.OnceFunc(started.Done)
			defer once()
			_, err := m.Generate(context.Background(), engine.Generation{Prompt: prompt("func"), IgnoreStops: true}, func(engine.Token) bool { once(); return true })
			if err != nil && !errors.Is(err, engine.ErrClosed) {
				t.Error(err)
			}
		})
	}
	started.Wait()
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if _, err := m.Generate(context.Background(), engine.Generation{Prompt: prompt("x")}, func(engine.Token) bool { return true }); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestCache generates twice after a long prompt. Only generations of the same user that may share find it.
func TestCache(t *testing.T) {
	m := open(t, Options{})
	long := strings.Repeat("salt", 1000)
	for _, c := range []struct {
		user  string
		alone bool
		found bool
	}{{"", false, false}, {"", false, true}, {"", true, false}, {"alice", false, false}, {"alice", false, true}, {"bob", false, false}, {"", false, true}, {long + "a", false, false}, {long + "a", false, true}, {long + "b", false, false}} {
		share := !c.alone
		g := engine.Generation{Prompt: prompt(strings.Repeat("func main() {}\n", 20)), MaxTokens: 2, User: c.user, CachePrompt: &share}
		if _, _, r := generate(t, m, g); r.Cached > 0 != c.found {
			t.Errorf("%+v: %d tokens found", c, r.Cached)
		}
	}
}

// TestEmbed compares vectors with those of the library.
func TestEmbed(t *testing.T) {
	m := open(t, Options{})
	ctx := context.Background()
	texts := []string{"func main() {", "package x", "// a comment", "var y int", "z", "func main() {"}
	want, err := m.m.Embed(ctx, texts, pianola.EmbedOptions{Normalize: true})
	if err != nil {
		t.Fatal(err)
	}
	var in []engine.Text
	n := 0
	for i, s := range texts {
		ids, err := m.Encode(s, engine.EncodeOptions{AddSpecial: true})
		if err != nil {
			t.Fatal(err)
		}
		n += len(ids)
		if in = append(in, prompt(s)); i%2 == 1 {
			in[i] = engine.Text{IDs: ids}
		}
	}
	got, tokens, err := m.Embed(ctx, in, engine.EmbedOptions{Normalize: true})
	if err != nil || tokens != n {
		t.Fatalf("%d tokens, want %d: %v", tokens, n, err)
	}
	for i := range want {
		for j := range want[i] {
			if math.Abs(float64(got[i][j]-want[i][j])) > 1e-6 {
				t.Fatalf("text %d, element %d: %v, want %v", i, j, got[i][j], want[i][j])
			}
		}
	}
	var request *engine.RequestError
	if _, _, err := m.Embed(ctx, []engine.Text{{IDs: []int32{}}}, engine.EmbedOptions{}); !errors.As(err, &request) {
		t.Error(err)
	}
	if _, _, err := m.Embed(ctx, []engine.Text{{IDs: make([]int32, 400)}}, engine.EmbedOptions{}); !errors.Is(err, engine.ErrContextFull) {
		t.Error(err)
	}
}

// TestPieces checks that the pieces of a text's tokens join to the text.
func TestPieces(t *testing.T) {
	m := open(t, Options{})
	const text = " naïve\tfunc 日本 \xff"
	ids, err := m.Encode(text, engine.EncodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	for _, id := range ids {
		got = append(got, m.Piece(id)...)
	}
	if string(got) != text {
		t.Errorf("%q, want %q", got, text)
	}
	if bos, _ := m.tok.BOS(); string(m.Piece(bos)) != "<|begin_of_text|>" {
		t.Errorf("BOS: %q", m.Piece(bos))
	}
	if m.Piece(-1) != nil || m.Piece(1<<30) != nil {
		t.Error("a piece of no token")
	}
}

// TestInfo checks the properties of gopher.
func TestInfo(t *testing.T) {
	m := open(t, Options{})
	i := m.Info()
	if i.Architecture != "llama" || i.Context != 256 || i.Parallel != 4 || i.PagePositions != 64 || !i.Chat || i.Tools || !i.Embeds || i.Reranks || i.Parameters < 1e5 || i.Vocabulary < m.tok.Size() || i.Width == 0 {
		t.Errorf("%+v", i)
	}
	if _, err := Open(context.Background(), gopher, Options{}); err == nil {
		t.Error("opened without Parallel")
	}
	if _, err := Open(context.Background(), gopher, Options{Template: "{% if", Library: pianola.Options{Parallel: 1, Device: pianola.DeviceCPU}}); err == nil || !strings.Contains(err.Error(), "chat template") {
		t.Errorf("a broken template: %v", err)
	}
}

// TestRerank compares scores with the probabilities that the library gives, and checks that special tokens in a
// document stay text.
func TestRerank(t *testing.T) {
	m := open(t, Options{Rerank: "<|begin_of_text|>// {query}\n{document}\nreturn "})
	if !m.Info().Reranks {
		t.Fatal("the model does not rerank")
	}
	ctx := context.Background()
	documents := []string{"func main() {}", "{query}", "<|end_of_text|>", "x := 1"}
	scores, tokens, err := m.Rerank(ctx, "q", documents)
	if err != nil || len(scores) != len(documents) || tokens < 4*len(documents) {
		t.Fatalf("%v, %d tokens: %v", scores, tokens, err)
	}
	for i, d := range documents {
		ids, err := m.Encode("<|begin_of_text|>// q\n", engine.EncodeOptions{ParseSpecial: true})
		if err != nil {
			t.Fatal(err)
		}
		rest, err := m.Encode(d+"\nreturn ", engine.EncodeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s, err := m.m.NewSession(pianola.SessionOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for row, err := range s.Logits(ctx, append(ids, rest...), len(ids)+len(rest)-1) {
			if err != nil {
				t.Fatal(err)
			}
			y, n := math.Exp(float64(row.Logits[m.answers[0]])), math.Exp(float64(row.Logits[m.answers[1]]))
			if want := y / (y + n); math.Abs(scores[i]-want) > 1e-9 {
				t.Errorf("%q: %v, want %v", d, scores[i], want)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, _, err := m.Rerank(ctx, strings.Repeat("long ", 300), documents); !errors.Is(err, engine.ErrContextFull) {
		t.Error(err)
	}
}
