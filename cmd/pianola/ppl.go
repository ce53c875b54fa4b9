package main

import (
	"context"
	"fmt"
	"math"
	"os"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/weights"
)

type pplFlags struct {
	model  modelFlags
	file   string
	size   int
	chunks int
	json   bool
}

func newPPL() *cobra.Command {
	f := &pplFlags{}
	cmd := &cobra.Command{
		Use:   "ppl MODEL --file FILE",
		Short: "Compute the perplexity of a text",
		Long: `Ppl computes the perplexity of a text by the method of llama-perplexity. The
whole text is tokenized, with a BOS token in front if the model uses one, and the
tokens are cut into chunks of equal length. In each chunk BOS replaces the first
token, and only the tokens of the second half are scored.`,
		Example: "  pianola ppl testdata/gopher-q8_0.gguf --file testdata/gopher/heldout.txt --chunks 4",
		Args:    exactly(1, "ppl needs a MODEL"),
		RunE:    func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.file, "file", "f", "", "read the text from `FILE`")
	fs.IntVarP(&f.size, "chunk", "c", 512, "number of tokens in a chunk; also the positions of context")
	fs.IntVar(&f.chunks, "chunks", 40, "largest number of chunks to score; 0: the whole text")
	fs.BoolVar(&f.json, "json", false, "print one JSON object")
	f.model.register(cmd)
	return cmd
}

func (f *pplFlags) run(cmd *cobra.Command, path string) (err error) {
	if f.file == "" {
		return usage(cmd, "ppl needs --file")
	}
	if err := atLeast(cmd, 0, "chunks", f.chunks); err != nil {
		return err
	}
	if err := atLeast(cmd, minChunk, "chunk", f.size); err != nil {
		return err
	}
	o, err := f.model.options(cmd)
	if err != nil {
		return err
	}
	if o.Table.AllLogits = true; o.Table.Context == 0 && o.Roll == nil {
		o.Table.Context = f.size
	}
	text, err := os.ReadFile(f.file)
	if err != nil {
		return err
	}
	m, err := openModel(cmd, path, o)
	if err != nil {
		return err
	}
	defer closeAfter(&err, m)
	tok, err := m.Tokenizer()
	if err != nil {
		return err
	}
	ids, err := tok.Encode(string(text), pianola.EncodeOptions{AddSpecial: true})
	if err != nil {
		return err
	}
	bos := startToken(m, tok)
	if bos != nil && !tok.AddBOS() {
		ids = append([]int32{*bos}, ids...)
	}
	if len(ids) < f.size {
		return fmt.Errorf("ppl: %s: the text has %d tokens, fewer than a chunk of %d", f.file, len(ids), f.size)
	}
	s, err := m.NewSession(pianola.SessionOptions{IgnoreStops: true, NoReuse: true})
	if err != nil {
		return err
	}
	defer closeAfter(&err, s)
	if have := s.Context(); have < f.size {
		return fmt.Errorf("ppl: a chunk of %d tokens does not fit in a context of %d", f.size, have)
	}
	return f.score(cmd, s, bos, ids)
}

// startToken returns the token that each chunk begins with: BOS if the model adds it, otherwise
// nil. A Hugging Face directory often does not specify whether BOS is added, so for one it is
// enough that the tokenizer names a BOS token.
func startToken(m *pianola.Model, tok *pianola.Tokenizer) *int32 {
	bos, ok := tok.BOS()
	if !ok || !tok.AddBOS() && m.Directory().Format() == weights.GGUF {
		return nil
	}
	return &bos
}

// minChunk is the length of the shortest chunk in which a token is scored.
const minChunk = 3

// score computes and prints the perplexity of ids.
func (f *pplFlags) score(cmd *cobra.Command, s *pianola.Session, bos *int32, ids []int32) error {
	chunks := len(ids) / f.size
	if f.chunks > 0 {
		chunks = min(chunks, f.chunks)
	}
	p := newProgress(cmd.ErrOrStderr(), "scoring", false)
	defer p.finish()
	sum, scored := 0.0, 0
	for i := range chunks {
		chunk := ids[i*f.size:][:f.size]
		if bos != nil {
			chunk[0] = *bos
		}
		nll, err := chunkNLL(cmd.Context(), s, chunk)
		if err != nil {
			return fmt.Errorf("chunk %d: %w", i, err)
		}
		sum += nll
		scored += f.size - 1 - f.size/2
		p.set("scoring", uint64(i+1), uint64(chunks))
	}
	p.finish()
	ppl := math.Exp(sum / float64(scored))
	if math.IsNaN(ppl) {
		return fmt.Errorf("ppl: the perplexity is NaN, because some logits are NaN")
	}
	if f.json {
		if math.IsInf(ppl, 0) {
			return fmt.Errorf("ppl: the perplexity is infinite")
		}
		return writeJSON(cmd.OutOrStdout(), struct {
			PPL    float64 `json:"ppl"`
			Tokens int     `json:"tokens"` // scored tokens
			Chunks int     `json:"chunks"`
			Size   int     `json:"chunk"`
		}{ppl, scored, chunks, f.size})
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "ppl %.4f\n", ppl)
	return err
}

// chunkNLL returns the sum of -log p over the tokens of a chunk's second half, the positions after
// len(chunk)/2. The logits after each token give the probability of the next one.
func chunkNLL(ctx context.Context, s *pianola.Session, chunk []int32) (float64, error) {
	sum := 0.0
	for row, err := range s.Logits(ctx, chunk, 0) {
		if err != nil {
			return 0, err
		}
		if at := row.Position; at >= len(chunk)/2 && at < len(chunk)-1 {
			sum += negativeLogSoftmax(row.Logits, int(chunk[at+1]))
		}
	}
	return sum, nil
}

// negativeLogSoftmax returns -log softmax(logits)[i].
func negativeLogSoftmax(logits []float32, i int) float64 {
	top := logits[0]
	for _, v := range logits {
		top = max(top, v)
	}
	sum := 0.0
	for _, v := range logits {
		sum += math.Exp(float64(v - top))
	}
	return math.Log(sum) + float64(top) - float64(logits[i])
}
