package clienttest

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/responses"
)

// gopher is the id of the model that the repository has.
const gopher = "gopher-q8_0"

// startGopher builds the command, and starts a service of gopher. It ends with the test.
func startGopher(t *testing.T) *service {
	t.Helper()
	root, dir := "../..", t.TempDir()
	program, keyFile := filepath.Join(dir, "pianola"), filepath.Join(dir, "keys")
	if err := os.WriteFile(keyFile, []byte("test "+key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", program, "./cmd/pianola")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	cmd := exec.CommandContext(ctx, program, "serve", "testdata/gopher-q8_0.gguf", "--template-file", "testdata/gopher/chat.jinja",
		"--addr", "127.0.0.1:0", "--api-keys", keyFile, "--log-level", "error")
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out := must[interface{ Read([]byte) (int, error) }](t)(cmd.StdoutPipe())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // its error is that it was killed
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if _, url, ok := strings.Cut(lines.Text(), " serves "+gopher+" at "); ok {
			go func() {
				for lines.Scan() { // keeps the pipe empty
				}
			}()
			return &service{url: strings.TrimSuffix(url, "/")}
		}
	}
	t.Fatalf("the command ends without the address of the service: %v", lines.Err())
	return nil
}

// TestGopher checks with a model that generates: with temperature 0, whole replies and streams have the
// same text and tokens, and all have the form that openai-go declares. With -node, the npm packages do
// the same.
func TestGopher(t *testing.T) {
	s := startGopher(t)
	c := s.client()

	chat := chatParams("package main")
	chat.Model, chat.MaxCompletionTokens, chat.Temperature = gopher, openai.Int(12), openai.Float(0)
	whole := must[*openai.ChatCompletion](t)(c.Chat.Completions.New(t.Context(), chat))
	formed(t, whole.RawJSON(), new(openai.ChatCompletion), extraChat...)
	chat.StreamOptions.IncludeUsage = openai.Bool(true)
	var sum openai.ChatCompletionAccumulator
	for _, chunk := range streamed(t, c.Chat.Completions.NewStreaming(t.Context(), chat)) {
		formed(t, chunk.RawJSON(), new(openai.ChatCompletionChunk), extraChat...)
		sum.AddChunk(chunk)
	}
	same(t, "chat", whole.Choices[0].Message.Content, sum.Choices[0].Message.Content, whole.Usage.CompletionTokens, sum.Usage.CompletionTokens)

	r := responseParams("package main")
	r.Model, r.MaxOutputTokens, r.Temperature = gopher, openai.Int(12), openai.Float(0)
	response := must[*responses.Response](t)(c.Responses.New(t.Context(), r))
	formed(t, response.RawJSON(), new(responses.Response), extraResponse...)
	var last responses.Response
	for _, e := range streamed(t, c.Responses.NewStreaming(t.Context(), r)) {
		eventFormed(t, e.RawJSON())
		last = e.Response
	}
	same(t, "responses", response.OutputText(), last.OutputText(), response.Usage.OutputTokens, last.Usage.OutputTokens)
	same(t, "a chat and a response", whole.Choices[0].Message.Content, last.OutputText(), whole.Usage.CompletionTokens, last.Usage.OutputTokens)

	next := responses.ResponseNewParams{Model: gopher, PreviousResponseID: openai.String(response.ID), Input: r.Input, MaxOutputTokens: openai.Int(4)}
	if more := must[*responses.Response](t)(c.Responses.New(t.Context(), next)); more.Usage.InputTokens <= response.Usage.InputTokens {
		t.Errorf("a conversation that continues has %d tokens, at first %d", more.Usage.InputTokens, response.Usage.InputTokens)
	}

	vectors := must[*openai.CreateEmbeddingResponse](t)(c.Embeddings.New(t.Context(), openai.EmbeddingNewParams{
		Model: gopher, Input: openai.EmbeddingNewParamsInputUnion{OfString: openai.String("package main")},
	}))
	formed(t, vectors.RawJSON(), new(openai.CreateEmbeddingResponse))

	if *node != "" {
		s.run(t, filepath.Join(*node, "gopher.mjs"))
	}
}

// same fails the test unless two replies have the same text, which is not empty, and number of tokens.
func same(t *testing.T, what, a, b string, tokensA, tokensB int64) {
	t.Helper()
	if a != b || a == "" || tokensA != tokensB || tokensA == 0 {
		t.Errorf("%s: %q in %d tokens and %q in %d", what, a, tokensA, b, tokensB)
	}
}
