//go:build cgo && (darwin || softmetal)

// Command lipogram generates text that avoids certain letters. The model runs on a Metal
// device and a queue that the program owns. The program's kernel, choose.metal, adds a bias to
// the logits and chooses each token on the GPU, in the command buffer that computes the
// logits.
//
//	go run ./lipogram -avoid e model.gguf "The cat"
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/progrium/darwinkit/macos/metal"
	"github.com/progrium/darwinkit/objc"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/examples/darwinkit"
)

func main() {
	avoid := flag.String("avoid", "e", "the letters that the text must not contain")
	tokens := flag.Int("n", 64, "the number of tokens")
	flag.Parse()
	if flag.NArg() != 2 {
		fmt.Fprintln(os.Stderr, "usage: lipogram [-avoid letters] [-n tokens] MODEL PROMPT")
		os.Exit(2)
	}
	err := run(context.Background(), os.Stdout, flag.Arg(0), flag.Arg(1), *avoid, *tokens)
	if err != nil {
		fmt.Fprintln(os.Stderr, "lipogram:", err)
		os.Exit(1)
	}
}

// run writes the text of up to n tokens that follow the prompt and contain none of the
// letters.
func run(ctx context.Context, w io.Writer, path, prompt, letters string, n int) error {
	return withModel(ctx, path, pianola.Options{}, func(m *pianola.Model, use func(*pianola.Session, []float32) error) error {
		bias, err := avoiding(m, letters)
		if err != nil {
			return err
		}
		// The kernel runs once per command buffer, so each command buffer has one token. A stop
		// token chosen by the table must not end a chain, because the kernel replaces the table's
		// choice.
		s, err := m.NewSession(pianola.SessionOptions{Chain: 1, IgnoreStops: true})
		if err != nil {
			return err
		}
		defer s.Close()
		if err := use(s, bias); err != nil {
			return err
		}
		for token, err := range s.Generate(ctx, prompt, pianola.GenerateOptions{MaxTokens: n}) {
			if err != nil {
				return err
			}
			if slices.Contains(m.StopIDs(), token.ID) {
				break
			}
			if _, err := io.WriteString(w, token.Text); err != nil {
				return err
			}
		}
		return nil
	})
}

// withModel calls f with a model on the system's GPU, which uses a queue of the program. It
// also passes f a function that makes the program's kernel choose the tokens of a session.
func withModel(ctx context.Context, path string, o pianola.Options, f func(m *pianola.Model, use func(*pianola.Session, []float32) error) error) error {
	device, err := darwinkit.SystemDevice()
	if err != nil {
		return err
	}
	defer device.Release()
	var queue metal.CommandQueueObject
	objc.WithAutoreleasePool(func() { queue = device.NewCommandQueue() })
	defer queue.Release()
	c, err := newChooser(device)
	if err != nil {
		return err
	}
	defer c.close()
	o.Metal.Shared = darwinkit.Share(device, queue, darwinkit.Passes{After: c.after})
	m, err := pianola.Open(ctx, path, o)
	if err != nil {
		return err
	}
	defer m.Close()
	return f(m, func(s *pianola.Session, bias []float32) error { return c.use(device, s, bias) })
}

// avoiding returns a bias against the tokens that contain one of the letters.
func avoiding(m *pianola.Model, letters string) ([]float32, error) {
	t, err := m.Tokenizer()
	if err != nil {
		return nil, err
	}
	bias := make([]float32, m.Config().Vocab)
	for i := range bias {
		text := t.Decode([]int32{int32(i)})
		if !slices.Contains(m.StopIDs(), int32(i)) && strings.ContainsAny(strings.ToLower(text), strings.ToLower(letters)) {
			bias[i] = never
		}
	}
	return bias, nil
}
