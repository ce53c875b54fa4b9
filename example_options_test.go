package pianola_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/replay/metal"
	"github.com/pianola-engine/pianola/table"
)

// A prompt from a user, decoded speculatively up to a text, and then a second version of the whole
// prompt.
func ExampleGenerateOptions() {
	ctx := context.Background()
	m, err := pianola.Open(ctx, "testdata/gopher-q8_0.gguf", pianola.Options{
		Device: pianola.DeviceCPU, Table: pianola.TableOptions{Draft: 7, Context: 256},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	s, err := m.NewSession(pianola.SessionOptions{Reserve: 64}) // positions that the first prompts need
	if err != nil {
		log.Fatal(err)
	}
	o := pianola.GenerateOptions{
		MaxTokens: 32,
		Stop:      []string{"}"},
		NoSpecial: true, // the user cannot write special tokens
		Speculate: true,
	}
	var last pianola.Token
	for tok, err := range s.Generate(ctx, "a := 1\nb := 1\nc := 1\nd := 1\n", o) {
		if err != nil {
			log.Fatal(err)
		}
		last = tok
	}
	st := s.Stats()
	fmt.Println(last.Stop || st.Tokens == o.MaxTokens, st.Accepted <= st.Drafted)

	// The new prompt replaces the context. Its common beginning with the context is not prefilled
	// again. ContinueText would omit the BOS token.
	o.Whole, o.ContinueText = true, false
	for _, err := range s.Generate(ctx, "a := 1\nb := 1\nc := 1\nd := 2\n", o) {
		if err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("reused:", s.Stats().Reused > 0)
	// Output:
	// true true
	// reused: true
}

// A model opened with a roll, which is a table that was compiled before.
func ExampleOptions_roll() {
	const path = "testdata/gopher-q8_0.gguf"
	h, err := pianola.OpenHeader(path, nil)
	if err != nil {
		log.Fatal(err)
	}
	t, err := h.Compile("cpu", pianola.TableOptions{Context: 128})
	if err != nil {
		log.Fatal(err)
	}
	roll, err := t.Encode()
	if err != nil {
		log.Fatal(err)
	}
	m, err := pianola.Open(context.Background(), path, pianola.Options{
		Device:         pianola.DeviceCPU,
		Roll:           roll,
		AnyChip:        false, // true accepts a roll for another chip
		CheckWeights:   true,
		Architectures:  os.DirFS("arch/data"), // a directory with the program's own descriptors
		MemoryBudget:   1 << 30,
		BudgetSessions: 4,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	fmt.Println(m.Table().Header.Context)
	// Output: 128
}

// The effect of some options on the number of commands per token.
func ExampleTableOptions() {
	h, err := pianola.OpenHeader("testdata/gopher-q8_0.gguf", nil)
	if err != nil {
		log.Fatal(err)
	}
	commands := func(chip string, o pianola.TableOptions) int {
		t, err := h.Compile(chip, o)
		if err != nil {
			log.Fatal(err)
		}
		p, _, _ := t.Program(table.ProgramDecode)
		return int(p.Count)
	}
	fused := commands("h200", pianola.TableOptions{})
	fmt.Println("fusing saves commands:", commands("h200", pianola.TableOptions{NoFuse: true}) > fused)
	same := pianola.TableOptions{
		NoRepack: true,                                // weights in the layout of the file
		Exact:    true,                                // prefill as precise as decode
		Sampler:  "penalties,temperature,top_k,top_p", // another order of the stages
	}
	fmt.Println("other options do not:", commands("h200", same) == fused)
	batching := pianola.TableOptions{Batching: true} // bits that do not depend on the number of rows
	fmt.Println("batching on the CPU:", commands("cpu", batching) == commands("cpu", pianola.TableOptions{}))
	endless := pianola.TableOptions{KVSinks: 4, KVWindow: 252, Context: 8192} // a cache of 256 positions
	fmt.Println("commands with a window of the cache:", commands("h200", endless) > fused)
	// Output:
	// fusing saves commands: true
	// other options do not: true
	// batching on the CPU: true
	// commands with a window of the cache: true
}

// A template with a variable and a date. A model's own template has a name instead of a source.
func ExampleChatOptions() {
	ctx := context.Background()
	m, err := pianola.Open(ctx, "testdata/gopher-q8_0.gguf", pianola.Options{Device: pianola.DeviceCPU})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	s, err := m.NewSession(pianola.SessionOptions{})
	if err != nil {
		log.Fatal(err)
	}
	o := pianola.ChatOptions{
		Template:     "", // one of Model.ChatTemplates
		Source:       "// {{ strftime_now('%Y') }} {{ style }}\n{% for m in messages %}{{ m.content }}\n{% endfor %}",
		Vars:         map[string]any{"style": "brief"},
		AllowSpecial: true, // special tokens in messages are not an error
		Now:          func() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) },
	}
	var c *pianola.Chat
	if c, err = s.NewChat(o); err != nil {
		log.Fatal(err)
	}
	for _, err := range c.Send(ctx, pianola.GenerateOptions{MaxTokens: 4}, pianola.ChatMessage{Role: "user", Content: "func main() {"}) {
		if err != nil {
			log.Fatal(err)
		}
	}
	answer := c.Messages()[1]
	fmt.Println(answer.Role, answer.Reasoning == "", len(answer.ToolCalls))
	// The result of a tool names the call that it answers.
	result := pianola.ChatMessage{Role: "tool", Name: "now", ToolCallID: "call00001", Content: "12:00"}
	fmt.Println(result.ToolCallID)
	// Output:
	// assistant true 0
	// call00001
}

// The settings of the Metal device, for a program with a Metal device and a queue of its own.
func ExampleMetalOptions() {
	var own metal.Shared // the program sets Device and Queue
	m, err := pianola.Open(context.Background(), "testdata/gopher-q8_0.gguf", pianola.Options{
		Device: pianola.DeviceMetal,
		Metal: pianola.MetalOptions{
			Shared:    &own,
			NoArchive: true,
			KeepAlive: 20 * time.Millisecond,
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	m.Close()
}

// The figures of a generation and of a session.
func ExampleCounters() {
	ctx := context.Background()
	m, err := pianola.Open(ctx, "testdata/gopher-q8_0.gguf", pianola.Options{Device: pianola.DeviceCPU, CUDA: pianola.CUDAOptions{NoCache: true}})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	var s *pianola.Session
	if s, err = m.NewSession(pianola.SessionOptions{NoReuse: true}); err != nil {
		log.Fatal(err)
	}
	for _, err := range s.Generate(ctx, "func main() {", pianola.GenerateOptions{MaxTokens: 8}) {
		if err != nil {
			log.Fatal(err)
		}
	}
	st := s.Stats()
	fmt.Println("of one generation:", st.Submissions > 0, st.Waits > 0, st.FirstToken >= st.Prefill, st.Queue >= 0)
	c := s.Counters()
	fmt.Println("of the session:", c.Submissions >= st.Submissions, c.Waits >= st.Waits, c.WaitTime >= c.QueueTime, c.DeviceTime > 0)
	fmt.Println("without speculation:", c.Drafted, c.Accepted, "calls of a GPU's driver:", c.Calls)
	memory := st.Memory
	fmt.Println("bytes:", memory.Weights > 0, memory.Mapped > 0, memory.Sessions > 0, memory.Executor > 0)
	// Output:
	// of one generation: true true true true
	// of the session: true true true true
	// without speculation: 0 0 calls of a GPU's driver: 0
	// bytes: true true true true
}
