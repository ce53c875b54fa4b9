package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/table"
)

type runFlags struct {
	model    modelFlags
	prompt   string
	file     string
	tokens   int
	session  string
	sampling pianola.Sampling
	bias     []string
	stop     []string
	json     bool
	rollover pianola.Rollover
}

func newRun() *cobra.Command {
	f := &runFlags{}
	cmd := &cobra.Command{
		Use:   "run MODEL -p TEXT",
		Short: "Continue a text",
		Long: `Run streams the prompt and the generated text to standard output. It then prints
load time, time to the first token and decode rate on standard error. A stop
token ends the text.

With --session, run continues the session that an earlier run saved in FILE, and
saves the longer session at the end. The file holds the tokens, unencrypted, and
the KV cache, so that only the new prompt is prefilled. It can be restored only
with the same model, chip and compile options.`,
		Example: `  pianola run testdata/gopher-q8_0.gguf -p 'func main() {' -n 64
  pianola run testdata/gopher-q8_0.gguf -p 'package ' --temp 0.8 --top-p 0.95 --seed 1
  pianola run testdata/gopher-q8_0.gguf -p 'func main() {' --session main.session`,
		Args: exactly(1, "run needs a MODEL"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.prompt, "prompt", "p", "", "the text to continue")
	fs.StringVarP(&f.file, "file", "f", "", "read the text from `FILE`, or from standard input if it is -")
	fs.IntVarP(&f.tokens, "tokens", "n", 128, "tokens to add; 0: to the end of the context")
	fs.IntVar(&f.rollover.Window, "rollover", 0, "when the context is full, keep its last `TOKENS` and its first --sinks tokens and continue (default: stop)")
	fs.IntVar(&f.rollover.Sinks, "sinks", 4, "number of tokens that --rollover keeps from the start of the context")
	fs.Float64Var(&f.sampling.Temperature, "temp", 0, "temperature; 0 chooses the most probable token")
	fs.IntVar(&f.sampling.TopK, "top-k", 0, "keep the k most probable tokens; 0 keeps all")
	fs.Float64Var(&f.sampling.TopP, "top-p", 1, "keep the most probable tokens up to this total probability; 1 keeps all")
	fs.Float64Var(&f.sampling.MinP, "min-p", 0, "keep tokens with at least this fraction of the largest probability; 0 keeps all")
	fs.Float64Var(&f.sampling.RepeatPenalty, "repeat-penalty", 1, "divide positive and multiply negative logits of recent tokens; 1 disables it")
	fs.Float64Var(&f.sampling.PresencePenalty, "presence-penalty", 0, "subtract this from the logits of tokens among the last --repeat-last-n")
	fs.Float64Var(&f.sampling.FrequencyPenalty, "frequency-penalty", 0, "subtract this for each occurrence of a token among the last --repeat-last-n")
	fs.IntVar(&f.sampling.RepeatLastN, "repeat-last-n", pianola.DefaultRepeatLastN, "number of tokens at the end of the context, prompt included, that penalties apply to; -1: all")
	fs.StringSliceVar(&f.bias, "logit-bias", nil, "add VALUE to the logit of token ID, `ID=VALUE`; -inf bans the token")
	fs.Uint64Var(&f.sampling.Seed, "seed", 0, "seed of the sampler (default: random)")
	fs.StringArrayVar(&f.stop, "stop", nil, "end before this `TEXT`; may be repeated")
	fs.IntVar(&f.sampling.LogProbs, "logprobs", 0, "print one line per token: its log-probability and the N most probable tokens; 0: print the text")
	fs.StringVar(&f.session, "session", "", "restore the session from `FILE` if the file exists, and save it there at the end")
	fs.BoolVar(&f.json, "json", false, "print one JSON object at the end")
	fs.IntVar(&f.model.table.Draft, "speculate", 0, "speculative decoding: draft `N` tokens from a repetition in the context and verify them in one pass (docs/SPECULATION.md)")
	f.model.registerCheck(cmd)
	f.model.registerChain(cmd)
	f.model.register(cmd)
	return cmd
}

func (f *runFlags) run(cmd *cobra.Command, path string) (err error) {
	prompt, err := f.text(cmd)
	if err != nil {
		return err
	}
	if prompt == "" {
		return errors.New("run: the prompt is empty")
	}
	if err := f.check(cmd); err != nil {
		return err
	}
	if f.sampling.LogitBias, err = logitBias(f.bias); err != nil {
		return err
	}
	if !cmd.Flags().Changed("seed") {
		f.sampling.Seed = uint64(rand.Uint32())
	}
	o, err := f.model.options(cmd)
	if err != nil {
		return err
	}
	o.Table.LogProbs = f.sampling.LogProbs > 0
	m, err := openModel(cmd, path, o)
	if err != nil {
		return err
	}
	defer closeAfter(&err, m)
	if _, err := m.Tokenizer(); err != nil {
		return err
	}
	s, err := f.open(m)
	if err != nil {
		return err
	}
	defer closeAfter(&err, s)
	if err := f.model.watch(m, s); err != nil {
		return err
	}
	err = f.generate(cmd, m, s, prompt)
	if f.session != "" && (err == nil || cmd.Context().Err() != nil) { // an interrupted run saves its tokens, too
		err = errors.Join(err, s.SnapshotFile(f.session))
	}
	return err
}

// open restores the session from the file of --session if that exists, or returns a new session.
func (f *runFlags) open(m *pianola.Model) (*pianola.Session, error) {
	o := pianola.SessionOptions{Chain: f.model.chain, ChainTime: f.model.chainTime(), Rollover: f.rollover}
	if f.session != "" {
		s, err := m.RestoreFile(f.session, o)
		if !errors.Is(err, os.ErrNotExist) {
			return s, err
		}
	}
	return m.NewSession(o)
}

// check tests the ranges of all numeric flags, including those that greedy sampling ignores.
func (f *runFlags) check(cmd *cobra.Command) error {
	for _, c := range []struct {
		name       string
		v, lo, max float64
	}{
		{"temp", f.sampling.Temperature, 0, 100}, {"top-p", f.sampling.TopP, 0, 1}, {"min-p", f.sampling.MinP, 0, 1},
		{"repeat-penalty", f.sampling.RepeatPenalty, 0, 100}, {"presence-penalty", f.sampling.PresencePenalty, -100, 100},
		{"frequency-penalty", f.sampling.FrequencyPenalty, -100, 100},
	} {
		if !(c.v >= c.lo && c.v <= c.max) {
			return fmt.Errorf("--%s %v: must be in %v..%v", c.name, c.v, c.lo, c.max)
		}
	}
	if err := atLeast(cmd, 0, "top-k", f.sampling.TopK); err != nil {
		return err
	}
	if n := f.sampling.LogProbs; n < 0 || n > pianola.MaxLogProbs {
		return fmt.Errorf("--logprobs %d: must be in 0..%d", n, pianola.MaxLogProbs)
	}
	if err := atLeast(cmd, -1, "repeat-last-n", f.sampling.RepeatLastN); err != nil {
		return err
	}
	if cmd.Flags().Changed("repeat-last-n") && f.sampling.RepeatLastN == 0 { // 0 disables penalties, as in llama.cpp
		f.sampling.RepeatPenalty, f.sampling.PresencePenalty, f.sampling.FrequencyPenalty = 1, 0, 0
	}
	if err := atLeast(cmd, 0, "speculate", f.model.table.Draft); err != nil {
		return err
	}
	if err := atLeast(cmd, 0, "sinks", f.rollover.Sinks); err != nil {
		return err
	}
	if err := atLeast(cmd, 1, "rollover", f.rollover.Window); err != nil {
		return err
	}
	switch {
	case cmd.Flags().Changed("rollover"):
	case cmd.Flags().Changed("sinks"):
		return usage(cmd, "--sinks requires --rollover")
	default:
		f.rollover = pianola.Rollover{}
	}
	return atLeast(cmd, 0, "tokens", f.tokens)
}

// logitBias parses pairs ID=VALUE.
func logitBias(pairs []string) (map[int32]float64, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	bias := make(map[int32]float64, len(pairs))
	for _, p := range pairs {
		name, value, _ := strings.Cut(p, "=")
		id, err := strconv.ParseInt(name, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("--logit-bias %q: want ID=VALUE", p)
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return nil, fmt.Errorf("--logit-bias %q: want ID=VALUE", p)
		}
		bias[int32(id)] = v
	}
	return bias, nil
}

// text returns the prompt.
func (f *runFlags) text(cmd *cobra.Command) (string, error) {
	given, file := cmd.Flags().Changed("prompt"), cmd.Flags().Changed("file")
	switch {
	case given == file:
		return "", usage(cmd, "run needs one of -p and -f")
	case given:
		return f.prompt, nil
	case f.file == "-":
		b, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxPrompt+1))
		return checkPrompt("standard input", b, err)
	}
	in, err := os.Open(f.file)
	if err != nil {
		return "", err
	}
	defer in.Close()
	b, err := io.ReadAll(io.LimitReader(in, maxPrompt+1))
	return checkPrompt(f.file, b, err)
}

// maxPrompt bounds a prompt in bytes, far above any context.
const maxPrompt = 64 << 20

func checkPrompt(name string, b []byte, err error) (string, error) {
	if err == nil && len(b) > maxPrompt {
		err = fmt.Errorf("%s: a prompt of more than %d bytes", name, maxPrompt)
	}
	return string(b), err
}

// generate streams the text, or collects it for --json, and prints the figures.
func (f *runFlags) generate(cmd *cobra.Command, m *pianola.Model, s *pianola.Session, prompt string) error {
	out := cmd.OutOrStdout()
	var text strings.Builder
	show := io.Writer(&text)
	if !f.json {
		show = out
	}
	ids := []int32{}
	var list rankedList
	if f.sampling.LogProbs > 0 {
		tok, err := m.Tokenizer()
		if err != nil {
			return err
		}
		list.tok = tok
	}
	var failed error
	for tok, err := range s.Generate(cmd.Context(), prompt, pianola.GenerateOptions{
		MaxTokens: f.tokens, Sampling: f.sampling, Stop: f.stop, Speculate: f.model.table.Draft > 0,
	}) {
		if err != nil {
			failed = err
			break
		}
		lines := list.tok != nil && !f.json
		if len(ids) == 0 && !f.json && !lines {
			fmt.Fprint(out, prompt) // printed with the first token, so that a prompt that fails prints nothing
		}
		ids = append(ids, tok.ID)
		if list.tok != nil {
			list.add(tok)
		}
		text := tok.Text
		if lines {
			text = list.last().String() + "\n"
		}
		if _, err := fmt.Fprint(show, text); err != nil {
			return err
		}
	}
	if f.tokens == 0 && errors.Is(failed, pianola.ErrContextFull) && len(ids) > 0 {
		failed = nil // -n 0 generates until the context is full
	}
	fig := f.figures(m, s)
	if f.json {
		if failed != nil {
			return failed
		}
		return writeJSON(out, runResult{Prompt: prompt, Text: text.String(), IDs: ids, LogProbs: list.tokens, Figures: fig})
	}
	if len(ids) > 0 && list.tok == nil {
		fmt.Fprintln(out)
	}
	if failed == nil || cmd.Context().Err() != nil {
		fmt.Fprintln(cmd.ErrOrStderr(), fig) // also after an interrupt
	}
	return failed
}

type runResult struct {
	Prompt  string     `json:"prompt"`
	Text    string     `json:"text"` // without the prompt
	IDs     []int32    `json:"ids"`
	Figures runFigures `json:"figures"`

	LogProbs []rankedToken `json:"logprobs,omitempty"`
}

// runFigures are the times and rates of one run.
type runFigures struct {
	LoadMS           float64 `json:"load_ms"`
	FirstTokenMS     float64 `json:"ttft_ms"`
	PromptTokens     int     `json:"prompt_tokens"`
	PrefillTokS      float64 `json:"pp_tok_s"`
	Tokens           int     `json:"tokens"`
	DecodeTokS       float64 `json:"tg_tok_s"` // 0 if only one token was generated
	CommandsPerToken int     `json:"commands_per_token"`
	Submissions      int     `json:"submissions"`
	Drafted          int     `json:"drafted,omitempty"`
	Accepted         int     `json:"accepted,omitempty"`
	Seed             *uint64 `json:"seed,omitempty"` // only if sampling was random

	speculated bool
}

func (f *runFlags) figures(m *pianola.Model, s *pianola.Session) runFigures {
	st := s.Stats()
	fig := runFigures{
		LoadMS: milliseconds(m.LoadTimes().Total), FirstTokenMS: milliseconds(st.FirstToken),
		PromptTokens: st.PromptTokens, PrefillTokS: rate(st.PromptTokens, st.Prefill),
		Tokens: st.Tokens, DecodeTokS: rate(st.Tokens-1, st.Decode), Submissions: st.Submissions,
		Drafted: st.Drafted, Accepted: st.Accepted, speculated: f.model.table.Draft > 0,
	}
	program := table.ProgramDecode
	switch {
	case f.sampling.LogProbs > 0:
		program = table.ProgramRanked
	case !f.sampling.Greedy():
		program = table.ProgramSample
	}
	if p, _, ok := m.Table().Program(program); ok {
		fig.CommandsPerToken = int(p.Count)
	}
	if f.sampling.Temperature > 0 {
		fig.Seed = &f.sampling.Seed
	}
	return fig
}

// String returns the line of figures.
func (f runFigures) String() string {
	s := fmt.Sprintf("load %s ms, first token %s ms, prefill %d tokens at %s tok/s, decode %d tokens",
		figure(f.LoadMS), figure(f.FirstTokenMS), f.PromptTokens, figure(f.PrefillTokS), f.Tokens)
	if f.DecodeTokS > 0 {
		s += fmt.Sprintf(" at %s tok/s", figure(f.DecodeTokS))
	}
	s += fmt.Sprintf(", %d commands per token", f.CommandsPerToken)
	if f.speculated {
		s += fmt.Sprintf(", accepted %d of %d drafted", f.Accepted, f.Drafted)
	}
	if f.Seed != nil {
		s += fmt.Sprintf(", seed %d", *f.Seed)
	}
	return s
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// rate returns n per second, or 0 if no time passed.
func rate(n int, d time.Duration) float64 {
	if n <= 0 || d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}
