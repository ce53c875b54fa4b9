package pianola_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/table"
)

// A conversation. This example supplies a chat template, because the test model has none.
func ExampleChat_Send() {
	ctx := context.Background()
	m, err := pianola.Open(ctx, "testdata/gopher-q8_0.gguf", pianola.Options{Device: "cpu"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer m.Close()
	s, err := m.NewSession(pianola.SessionOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	c, err := s.NewChat(pianola.ChatOptions{
		Source: "{% for m in messages %}{{ m.content }}\n{% endfor %}",
	}, pianola.ChatMessage{Role: "system", Content: "package main"})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, text := range []string{"func main() {", "func init() {"} {
		for _, err := range c.Send(ctx, pianola.GenerateOptions{MaxTokens: 16}, pianola.ChatMessage{Role: "user", Content: text}) {
			if err != nil {
				fmt.Println(err)
				return
			}
		}
	}
	fmt.Println(len(c.Messages()), "messages, some of the last turn reused:", s.Stats().Reused > 0)
	// Output: 5 messages, some of the last turn reused: true
}

// Compare the likelihoods of two continuations.
func ExampleSession_Classify() {
	ctx := context.Background()
	m, err := pianola.Open(ctx, "testdata/gopher-q8_0.gguf", pianola.Options{Device: "cpu", Table: pianola.TableOptions{AllLogits: true}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer m.Close()
	s, err := m.NewSession(pianola.SessionOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	labels := []string{"0; i < n; i++ {", "banana"}
	var scores [][]pianola.LabelScore
	scores, err = s.Classify(ctx, []string{"for i := "}, labels)
	if err != nil {
		fmt.Println(err)
		return
	}
	for j, sc := range scores[0] {
		fmt.Printf("%q is likely: %v\n", labels[j], sc.LogLikelihood/float64(sc.Tokens) > -2)
	}
	// Output:
	// "0; i < n; i++ {" is likely: true
	// "banana" is likely: false
}

// The vectors of similar texts have similar directions.
func ExampleSession_Embed() {
	ctx := context.Background()
	m, err := pianola.Open(ctx, "testdata/gopher-q8_0.gguf", pianola.Options{Device: "cpu", Table: pianola.TableOptions{Hidden: true}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer m.Close()
	s, err := m.NewSession(pianola.SessionOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	v, err := s.Embed(ctx, []string{"for i := 0; i < n; i++ {", "for j := 0; j < m; j++ {", "package main"}, pianola.EmbedOptions{Pooling: pianola.PoolMean, Normalize: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	cosine := func(a, b []float32) (sum float32) {
		for i := range a {
			sum += a[i] * b[i]
		}
		return sum
	}
	fmt.Println(len(v), len(v[0]), cosine(v[0], v[1]) > cosine(v[0], v[2]))
	var pooling pianola.Pooling = pianola.PoolLast // the state of the last token instead of the mean
	last, err := s.Embed(ctx, []string{"package main"}, pianola.EmbedOptions{Pooling: pooling})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(len(last), len(last[0]))
	// Output:
	// 3 256 true
	// 1 256
}

func ExampleSession_Fork() {
	ctx := context.Background()
	m, err := pianola.Open(ctx, "testdata/gopher-q8_0.gguf", pianola.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer m.Close() // ends the sessions, too
	s, err := m.NewSession(pianola.SessionOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	// The common beginning of several texts is prefilled once.
	for _, err := range s.Generate(ctx, "package main\n\nimport \"fmt\"\n\n", pianola.GenerateOptions{MaxTokens: 1}) {
		if err != nil {
			fmt.Println(err)
			return
		}
	}
	for _, text := range []string{"func main() {", "type T struct {"} {
		f, err := s.Fork()
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, err := range f.Generate(ctx, text, pianola.GenerateOptions{MaxTokens: 8}) {
			if err != nil {
				fmt.Println(err)
				return
			}
		}
		fmt.Println(f.Len() > s.Len(), f.Close())
	}
	// Output:
	// true <nil>
	// true <nil>
}

func ExampleModel_Restore() {
	ctx := context.Background()
	m, err := pianola.Open(ctx, "testdata/gopher-q8_0.gguf", pianola.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer m.Close()
	s, err := m.NewSession(pianola.SessionOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, err := range s.Generate(ctx, "func main() {", pianola.GenerateOptions{MaxTokens: 8}) {
		if err != nil {
			fmt.Println(err)
			return
		}
	}
	var b bytes.Buffer // or SnapshotFile
	if err := s.Snapshot(&b); err != nil {
		fmt.Println(err)
		return
	}
	r, err := m.Restore(&b, pianola.SessionOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(r.Len() == s.Len())
	// Output: true
}

func ExampleOptions_events() {
	m, err := pianola.Open(context.Background(), "testdata/gopher-q8_0.gguf", pianola.Options{
		Device: "cpu",
		Events: func(e pianola.Event) {
			switch {
			case e.Stage == "":
				fmt.Println(e.State)
			case e.Stage == pianola.StageUpload && e.Done == e.Total:
				fmt.Printf("%s: %d MB\n", e.Stage, e.Total/1e6)
			}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	// Output:
	// opening
	// loading
	// upload: 7 MB
	// loaded
	// ready
}

func ExamplePlan() {
	p, err := pianola.Plan("testdata/gopher-q8_0.gguf", pianola.Options{Device: "cpu", Threads: 1, Table: pianola.TableOptions{Context: 1024}})
	if err != nil {
		log.Fatal(err)
	}
	for _, k := range []table.SlotKind{table.SlotWeight, table.SlotScratch, table.SlotKV} {
		fmt.Printf("%-8v %5d KiB\n", k, p.Kind(k, 1)>>10)
	}
	_, err = pianola.Plan("testdata/gopher-q8_0.gguf", pianola.Options{
		Device: "cpu", Threads: 1, Table: pianola.TableOptions{Context: 1024}, MemoryBudget: 16 << 20,
	})
	var over *pianola.BudgetError
	if errors.As(err, &over) {
		fmt.Println("16 MiB are enough for", over.Longest, "positions")
	}
	// Output:
	// weight    7633 KiB
	// scratch   5248 KiB
	// kv        4096 KiB
	// 16 MiB are enough for 501 positions
}

// ExampleHeader_Compile compiles a table without reading weights and prints
// some figures.
func ExampleHeader_Compile() {
	h, err := pianola.OpenHeader("testdata/gopher-q8_0.gguf", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	t, err := h.Compile("m4-pro", pianola.TableOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range t.Programs {
		fmt.Println(p.Name, p.Count)
	}
	// Output:
	// decode 45
	// prefill 84
	// prefill_few 84
	// head 4
	// sample 47
	// sample_head 6
}

func Example() {
	ctx := context.Background()
	m, err := pianola.Open(ctx, "testdata/gopher-q8_0.gguf", pianola.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer m.Close()
	s, err := m.NewSession(pianola.SessionOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	tokens := 0
	for tok, err := range s.Generate(ctx, "func main() {", pianola.GenerateOptions{MaxTokens: 16}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		_ = tok.Text // print it
		tokens++
	}
	fmt.Println(tokens, "tokens")
	// Output: 16 tokens
}

func ExampleSession_Stats() {
	ctx := context.Background()
	m, err := pianola.Open(ctx, "testdata/gopher-q8_0.gguf", pianola.Options{Device: "cpu"})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	s, err := m.NewSession(pianola.SessionOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	for _, err := range s.Generate(ctx, "func main() {", pianola.GenerateOptions{MaxTokens: 8}) {
		if err != nil {
			log.Fatal(err)
		}
	}
	st := s.Stats()
	fmt.Println(st.PromptTokens, "tokens of prompt,", st.Tokens, "generated")
	fmt.Printf("%.0f MB read\n", float64(st.BytesRead)/1e6)
	fmt.Println("KV caches:", st.Memory.Kinds[table.SlotKV].Active>>10, "KiB")
	// Output:
	// 5 tokens of prompt, 8 generated
	// 63 MB read
	// KV caches: 256 KiB
}

// Read the attention weights of a prompt's last token in one layer.
func ExampleSession_SetTaps() {
	ctx := context.Background()
	m, err := pianola.Open(ctx, "testdata/gopher-q8_0.gguf", pianola.Options{Device: "cpu"})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	s, err := m.NewSession(pianola.SessionOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	err = s.SetTaps(&pianola.Taps{
		Activations: []string{"out.norm"},
		Attention:   []string{"layer.0.attn.attention"},
		Show: func(a pianola.Activation) error {
			if a.Name == pianola.WeightsName && len(a.Values) != a.Shape[0]*a.Shape[1] {
				return errors.New("incomplete weights")
			}
			if m.Table().Label(a.Command) != a.Label {
				return errors.New("another command")
			}
			fmt.Printf("%s %s %s: position %d, %v\n", a.Program, a.Label, a.Name, a.Position, a.Shape)
			return nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, err := range s.GenerateIDs(ctx, []int32{5, 6}, pianola.GenerateOptions{MaxTokens: 1}) {
		if err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// prefill layer.0.attn.attention weights: position 0, [4 1]
	// prefill layer.0.attn.attention weights: position 1, [4 2]
	// head out.norm out: position 1, [1 256]
}

// Read K and V of a layer after a prompt.
func ExampleSession_Keys() {
	ctx := context.Background()
	m, err := pianola.Open(ctx, "testdata/gopher-q8_0.gguf", pianola.Options{Device: "cpu"})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	s, err := m.NewSession(pianola.SessionOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	if _, _, err := s.Prompt(ctx, []int32{5, 6, 7}); err != nil {
		log.Fatal(err)
	}
	keys, err := s.Keys(0)
	if err != nil {
		log.Fatal(err)
	}
	values, err := s.Values(0)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(keys), "heads,", len(keys[0]), "positions,", len(values[0][0]), "elements")
	// Output: 2 heads, 3 positions, 64 elements
}

// Print the progress of Open.
func ExampleEvent() {
	show := func(e pianola.Event) string {
		var stage pianola.Stage = e.Stage
		var state pianola.State = e.State
		switch stage {
		case pianola.StageTokenizer, pianola.StageCompile, pianola.StageWarm:
			return "busy"
		case pianola.StageCheck, pianola.StageTouch, pianola.StageUpload:
			return fmt.Sprintf("%d of %d bytes", e.Done, e.Total)
		}
		switch state {
		case pianola.StateOpening, pianola.StateLoading, pianola.StateLoaded:
			return string(state)
		case pianola.StateFailed:
			return e.Err.Error()
		case pianola.StateReady:
			return fmt.Sprintf("ready after %v %s", e.After, e.Note)
		}
		return ""
	}
	fmt.Println(show(pianola.Event{State: pianola.StateLoading, Stage: pianola.StageUpload, Done: 1, Total: 2}))
	// Output: 1 of 2 bytes
}
