package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola"
)

type evalFlags struct {
	model     modelFlags
	ids       string
	tokens    int
	allLogits bool
}

func newEval() *cobra.Command {
	f := &evalFlags{}
	cmd := &cobra.Command{
		Use:   "eval MODEL --ids 5,6,7",
		Short: "Print the logits after a prompt of token ids, and the greedy continuation",
		Long: `Eval takes a prompt as token ids, without adding BOS, and prints one JSON object:
the logits after the prompt and the ids of the greedy continuation, which ignores
stop tokens. --all-logits adds the logits after each id of the prompt.`,
		Example: "  pianola eval testdata/gopher-q8_0.gguf --ids 5,6,7 -n 8",
		Args:    exactly(1, "eval needs a MODEL"),
		RunE:    func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	cmd.Flags().StringVar(&f.ids, "ids", "", "the prompt: token ids separated by commas")
	cmd.Flags().IntVarP(&f.tokens, "tokens", "n", 48, "number of tokens to generate")
	cmd.Flags().BoolVar(&f.allLogits, "all-logits", false, "print the logits after every id of the prompt")
	f.model.registerCheck(cmd)
	f.model.registerChain(cmd)
	f.model.register(cmd)
	return cmd
}

func (f *evalFlags) run(cmd *cobra.Command, path string) (err error) {
	if !cmd.Flags().Changed("ids") {
		return usage(cmd, "eval needs --ids")
	}
	if err := atLeast(cmd, 0, "tokens", f.tokens); err != nil {
		return err
	}
	ids, err := parseIDs(cmd, f.ids)
	if err != nil {
		return err
	}
	o, err := f.model.options(cmd)
	if err != nil {
		return err
	}
	o.Table.AllLogits = f.allLogits
	if err := enough(cmd, path, &o, len(ids)+f.tokens); err != nil {
		return err
	}
	m, err := openModel(cmd, path, o)
	if err != nil {
		return err
	}
	defer closeAfter(&err, m)
	s, err := m.NewSession(pianola.SessionOptions{Chain: f.model.chain, ChainTime: f.model.chainTime(), IgnoreStops: true, NoReuse: true})
	if err != nil {
		return err
	}
	defer closeAfter(&err, s)
	if err := f.model.watch(m, s); err != nil {
		return err
	}
	return f.eval(cmd.Context(), cmd.OutOrStdout(), s, ids, m.Config().Vocab)
}

// eval writes the object. The rows of --all-logits are its last field and are written one by one
// as they are computed, because together they may be larger than the model.
func (f *evalFlags) eval(ctx context.Context, w io.Writer, s *pianola.Session, ids []int32, vocab int) error {
	logits := make([]float32, vocab)
	next, _, err := s.Prompt(ctx, ids)
	if err != nil {
		return err
	}
	if err := s.NextLogits(logits); err != nil {
		return err
	}
	greedy, err := continueGreedily(ctx, s, next, f.tokens)
	if err != nil {
		return err
	}
	last, err := floats(logits).MarshalJSON()
	if err != nil {
		return fmt.Errorf("eval: %w", err)
	}
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, `{"last_prompt_logits":%s,"greedy_ids":[%s]`, last, joinIDs(greedy))
	if f.allLogits {
		b.WriteString(`,"logits":[`)
		for row, err := range s.Logits(ctx, ids, 0) {
			if err != nil {
				return err
			}
			if row.Position > 0 {
				b.WriteByte(',')
			}
			text, err := floats(row.Logits).MarshalJSON()
			if err != nil {
				return fmt.Errorf("eval: row %d: %w", row.Position, err)
			}
			b.Write(text)
		}
		b.WriteByte(']')
	}
	b.WriteString("}\n")
	return b.Flush()
}

// continueGreedily returns n ids: the pending token and its greedy continuation.
func continueGreedily(ctx context.Context, s *pianola.Session, next int32, n int) ([]int32, error) {
	if n == 0 {
		return nil, nil
	}
	ids := append(make([]int32, 0, min(n, s.Context())), next)
	for len(ids) < n {
		more, _, err := s.Chain(ctx, n-len(ids))
		if err != nil {
			return nil, err
		}
		ids = append(ids, more...)
	}
	return ids, nil
}

// parseIDs returns the ids of a list such as "5,6,7".
func parseIDs(cmd *cobra.Command, list string) ([]int32, error) {
	if strings.TrimSpace(list) == "" {
		return nil, nil // the session reports the empty prompt
	}
	words := strings.Split(list, ",")
	ids := make([]int32, len(words))
	for i, word := range words {
		v, err := strconv.ParseInt(strings.TrimSpace(word), 10, 32)
		switch {
		case errors.Is(err, strconv.ErrRange):
			return nil, fmt.Errorf("--ids: id %d of the list: %s is not in 0..%d", i, strings.TrimSpace(word), math.MaxInt32)
		case err != nil:
			return nil, usage(cmd, "--ids: id %d of the list: %q is not a number", i, word)
		}
		ids[i] = int32(v)
	}
	return ids, nil
}

func joinIDs(ids []int32) string {
	b := make([]byte, 0, 6*len(ids))
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(id), 10)
	}
	return string(b)
}
