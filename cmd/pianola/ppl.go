package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"os"
	"slices"

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

	against string
}

func newPPL() *cobra.Command {
	f := &pplFlags{}
	cmd := &cobra.Command{
		Use:   "ppl MODEL --file FILE",
		Short: "Compute the perplexity of a text",
		Long: `Ppl computes the perplexity of a text by the method of llama-perplexity. The
whole text is tokenized, with a BOS token in front if the model uses one, and the
tokens are cut into chunks of equal length. In each chunk BOS replaces the first
token, and only the tokens of the second half are scored.

With --against, ppl loads a second model, the base, and compares the probabilities
of all tokens of the vocabulary after each scored token, as llama-perplexity
--kl-divergence does: the mean and percentiles of the KL divergence of the model from
the base, of the change of the next token's probability, and how often both prefer the
same token. The base has the same device and context, and the default of every option
that selects what is compiled. Both models must have the same tokenizer.`,
		Example: `  pianola ppl testdata/gopher-q8_0.gguf --file testdata/gopher/heldout.txt --chunks 4
  pianola ppl testdata/gopher-q8_0.gguf --kv q8_0 --against testdata/gopher -f testdata/gopher/heldout.txt --chunks 4`,
		Args: exactly(1, "ppl needs a MODEL"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.file, "file", "f", "", "read the text from `FILE`")
	fs.IntVarP(&f.size, "chunk", "c", 512, "number of tokens in a chunk; also the positions of context")
	fs.IntVar(&f.chunks, "chunks", 40, "largest number of chunks to score; 0: the whole text")
	fs.StringVar(&f.against, "against", "", "compare with the base model `MODEL` too")
	fs.BoolVar(&f.json, "json", false, "print one JSON object")
	f.model.registerCheck(cmd)
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
	a, err := f.open(cmd, path, o, string(text))
	if err != nil {
		return err
	}
	defer closeAfter(&err, a)
	if err := f.model.watch(a.m, a.s); err != nil {
		return err
	}
	if f.against == "" {
		return f.score(cmd, a)
	}
	o.Table, o.Roll, o.AnyChip = pianola.TableOptions{AllLogits: true, Context: a.s.Context()}, nil, false
	base, err := f.open(cmd, f.against, o, string(text))
	if err != nil {
		return err
	}
	defer closeAfter(&err, base)
	return f.compare(cmd, a, base)
}

// scorer is a model with the tokens of the text.
type scorer struct {
	m   *pianola.Model
	s   *pianola.Session
	bos *int32
	ids []int32
}

// Close closes the model.
func (s *scorer) Close() error { return s.m.Close() }

// open opens a model and encodes the text.
func (f *pplFlags) open(cmd *cobra.Command, path string, o pianola.Options, text string) (a *scorer, err error) {
	m, err := openModel(cmd, path, o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	tok, err := m.Tokenizer()
	if err != nil {
		return nil, err
	}
	ids, err := tok.Encode(text, pianola.EncodeOptions{AddSpecial: true})
	if err != nil {
		return nil, err
	}
	bos := startToken(m, tok)
	if bos != nil && !tok.AddBOS() {
		ids = append([]int32{*bos}, ids...)
	}
	if len(ids) < f.size {
		return nil, fmt.Errorf("ppl: %s: the text has %d tokens, fewer than a chunk of %d", f.file, len(ids), f.size)
	}
	s, err := m.NewSession(pianola.SessionOptions{IgnoreStops: true, NoReuse: true})
	if err != nil {
		return nil, err
	}
	if have := s.Context(); have < f.size {
		return nil, fmt.Errorf("ppl: a chunk of %d tokens does not fit in a context of %d", f.size, have)
	}
	return &scorer{m, s, bos, ids}, nil
}

// eachChunk calls score with each chunk and shows the progress. It returns the number of chunks.
func (f *pplFlags) eachChunk(cmd *cobra.Command, a *scorer, score func(chunk []int32) error) (int, error) {
	chunks := len(a.ids) / f.size
	if f.chunks > 0 {
		chunks = min(chunks, f.chunks)
	}
	p := newProgress(cmd.ErrOrStderr(), "scoring", false)
	defer p.finish()
	for i := range chunks {
		chunk := a.ids[i*f.size:][:f.size]
		if a.bos != nil {
			chunk[0] = *a.bos
		}
		if err := score(chunk); err != nil {
			return 0, fmt.Errorf("chunk %d: %w", i, err)
		}
		p.set("scoring", uint64(i+1), uint64(chunks))
	}
	return chunks, nil
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

// score computes and prints the perplexity of a text.
func (f *pplFlags) score(cmd *cobra.Command, a *scorer) error {
	sum := 0.0
	chunks, err := f.eachChunk(cmd, a, func(chunk []int32) error {
		nll, err := chunkNLL(cmd.Context(), a.s, chunk)
		sum += nll
		return err
	})
	if err != nil {
		return err
	}
	scored := chunks * (f.size - 1 - f.size/2)
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
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "ppl %.4f\n", ppl)
	return err
}

// compare compares a model with the base model and prints the result.
func (f *pplFlags) compare(cmd *cobra.Command, a, base *scorer) error {
	if !slices.Equal(a.ids, base.ids) {
		return fmt.Errorf("ppl: %s: the models %s and %s have other tokens for the text", f.file, a.m.Directory().Path(), base.m.Directory().Path())
	}
	var d divergence
	_, err := f.eachChunk(cmd, a, func(chunk []int32) error {
		next, stop := iter.Pull2(base.s.Logits(cmd.Context(), chunk, 0))
		defer stop()
		for row, err := range a.s.Logits(cmd.Context(), chunk, 0) {
			if err != nil {
				return err
			}
			of, err, ok := next()
			if err != nil || !ok {
				return cmp.Or(err, errors.New("the base model has fewer logits"))
			}
			if at := row.Position; isScored(chunk, at) {
				if err := d.add(row.Logits, of.Logits, int(chunk[at+1])); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("ppl: %w", err)
	}
	r := d.result()
	if f.json {
		return writeJSON(cmd.OutOrStdout(), r)
	}
	return r.write(cmd.OutOrStdout())
}

// isScored reports whether the token after a position of a chunk is scored: it is in the second half.
func isScored(chunk []int32, position int) bool {
	return position >= len(chunk)/2 && position < len(chunk)-1
}

// chunkNLL returns the sum of -log p over the tokens of a chunk's second half, the positions after
// len(chunk)/2. The logits after each token give the probability of the next one.
func chunkNLL(ctx context.Context, s *pianola.Session, chunk []int32) (float64, error) {
	sum := 0.0
	for row, err := range s.Logits(ctx, chunk, 0) {
		if err != nil {
			return 0, err
		}
		if at := row.Position; isScored(chunk, at) {
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
