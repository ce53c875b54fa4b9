package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/bench"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/table"
)

type profileFlags struct {
	model  modelFlags
	tokens int
	depth  int
	prompt int
	runs   int
	batch  int
	groups bool
	json   bool
}

func newProfile() *cobra.Command {
	f := &profileFlags{}
	cmd := &cobra.Command{
		Use:   "profile MODEL",
		Short: "Measure the time of each command of a token or a prompt",
		Long: `Profile decodes tokens with a barrier after every command. For each command it
prints the mean time, the bytes of weights and KV cache that the command reads,
and its share of the total time. A summary then adds up the commands with the
same label in all layers. With --prefill it profiles the chunks of a prompt
instead, and adds up their times. With --batch it profiles a step in which several
sequences each decode a token as rows of one batch, and with both a pass in which
the tokens of a prompt are further rows of that batch. The additional barriers
make the total longer than the time of an ordinary token, prompt, step or pass.`,
		Example: `  pianola profile testdata/gopher-q8_0.gguf --by-label
  pianola profile testdata/gopher-q8_0.gguf --by-label --prefill 512
  pianola profile testdata/gopher-q8_0.gguf --by-label --batch 16
  pianola profile testdata/gopher-q8_0.gguf --by-label --batch 16 --prefill 100`,
		Args: exactly(1, "profile needs a MODEL"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	cmd.Flags().IntVarP(&f.tokens, "tokens", "n", 32, "tokens to decode")
	cmd.Flags().IntVarP(&f.depth, "depth", "d", 16, "tokens of context before the profiled tokens; with --prefill alone the default is 0")
	cmd.Flags().IntVar(&f.prompt, "prefill", 0, "profile a prompt of `N` tokens instead of decoding; with --batch, beside the sequences that decode")
	cmd.Flags().IntVar(&f.batch, "batch", 0, "profile steps in which `N` sequences decode together; -n counts the steps")
	cmd.Flags().IntVarP(&f.runs, "runs", "r", 3, "with --prefill alone, number of prompts to average")
	cmd.Flags().BoolVar(&f.groups, "by-label", false, "print only the summary over all layers")
	cmd.Flags().BoolVar(&f.json, "json", false, "print one JSON object")
	f.model.registerChip(cmd)
	f.model.register(cmd)
	return cmd
}

func (f *profileFlags) run(cmd *cobra.Command, path string) (err error) {
	if err := f.check(cmd); err != nil {
		return err
	}
	o, err := f.model.options(cmd)
	if err != nil {
		return err
	}
	if o.Parallel = f.batch; f.batch > 0 && f.prompt > 0 {
		o.Parallel++
	}
	m, err := openModel(cmd, path, o)
	if err != nil {
		return err
	}
	defer closeAfter(&err, m)
	if f.batch > 0 {
		res, err := f.measureBatch(cmd, m)
		if err != nil {
			return err
		}
		return f.write(cmd, res)
	}
	s, err := m.NewSession(pianola.SessionOptions{IgnoreStops: true})
	if err != nil {
		return err
	}
	defer closeAfter(&err, s)
	measure := f.measure
	if f.prompt > 0 {
		measure = f.measurePrompt
	}
	res, err := measure(cmd, m, s)
	if err != nil {
		return err
	}
	return f.write(cmd, res)
}

func (f *profileFlags) write(cmd *cobra.Command, res *profileResult) error {
	if f.json {
		return writeJSON(cmd.OutOrStdout(), res)
	}
	return res.write(cmd.OutOrStdout(), f.groups)
}

func (f *profileFlags) check(cmd *cobra.Command) error {
	fs := cmd.Flags()
	batch := fs.Changed("batch")
	prompt := fs.Changed("prefill") && !batch
	if batch && (f.batch < 1 || f.batch > 1<<12) {
		return usage(cmd, "--batch %d: must be 1 to %d", f.batch, 1<<12)
	}
	if prompt && fs.Changed("tokens") {
		return usage(cmd, "--prefill and -n exclude each other without --batch")
	}
	if !prompt && fs.Changed("runs") {
		return usage(cmd, "-r requires --prefill, and excludes --batch")
	}
	depth := 1
	if prompt {
		depth = 0
	}
	if prompt && !fs.Changed("depth") {
		f.depth = 0
	}
	if prompt && f.depth > 0 && f.prompt == 1 {
		return usage(cmd, "--prefill 1: with -d, a prompt needs at least 2 tokens")
	}
	for _, c := range []struct {
		name   string
		v, low int
	}{{"tokens", f.tokens, 1}, {"depth", f.depth, depth}, {"prefill", f.prompt, 1}, {"runs", f.runs, 1}} {
		if err := atLeast(cmd, c.low, c.name, c.v); err != nil {
			return err
		}
	}
	return nil
}

// profileResult holds the times of the commands and of groups of commands.
type profileResult struct {
	Tokens     int           `json:"tokens"` // decoded tokens, or tokens of all prompts
	Depth      int           `json:"depth"`
	Prompt     int           `json:"prompt"`                  // tokens of a prompt; 0 if none is prefilled
	Rows       int           `json:"rows,omitempty"`          // sequences that decode together; 0 without --batch
	PromptRows int           `json:"prompt_rows,omitempty"`   // tokens of a prompt that a pass prefills beside them
	TotalUS    float64       `json:"total_us"`                // per token, prompt, or step or pass of a batch
	OverheadNS float64       `json:"overhead_ns_per_command"` // host time without running kernels
	Commands   []profileLine `json:"commands"`
	Groups     []profileLine `json:"groups"` // the largest first
}

type profileLine struct {
	Command int     `json:"command"` // index in the table, or -1 for a group
	Label   string  `json:"label"`
	Kernel  string  `json:"kernel"`
	Count   int     `json:"count"` // commands
	US      float64 `json:"us"`    // per token, prompt, step or pass
	Bytes   uint64  `json:"bytes"` // of weights and KV cache, per token, prompt, step or pass
	GBs     float64 `json:"gb_s"`
	Share   float64 `json:"share"` // of the total, 0 to 1
}

func (f *profileFlags) measure(cmd *cobra.Command, m *pianola.Model, s *pianola.Session) (*profileResult, error) {
	t, r := m.Table(), s
	p, _, ok := t.Program(table.ProgramDecode)
	if !ok {
		return nil, fmt.Errorf("profile: the table has no program %s", table.ProgramDecode)
	}
	reads, err := t.Reads(table.ProgramDecode)
	if err != nil {
		return nil, err
	}
	if need, have := f.depth+1+f.tokens, r.Context(); need > have {
		return nil, fmt.Errorf("profile: %d tokens after %d need %d positions, but the context has %d", f.tokens, f.depth, need, have)
	}
	if _, _, err := r.Prompt(cmd.Context(), bench.Prompt(m, f.depth, 0)); err != nil {
		return nil, err
	}
	if _, _, err := r.Chain(cmd.Context(), 1); err != nil { // warms up
		return nil, err
	}
	times := make([]time.Duration, p.Count)
	progress := newProgress(cmd.ErrOrStderr(), "decoding", false)
	defer progress.finish()
	for i := range f.tokens {
		if err := r.Profile(cmd.Context(), times); err != nil {
			return nil, err
		}
		progress.set("decoding", uint64(i+1), uint64(f.tokens))
	}
	dry, err := bench.Dry(r, f.tokens, f.tokens)
	if err != nil {
		return nil, err
	}
	res := &profileResult{
		Tokens: f.tokens, Depth: f.depth,
		OverheadNS: float64(dry.Nanoseconds()) / float64(f.tokens*len(times)),
	}
	middle := f.depth + 1 + (f.tokens+1)/2 // positions to which the middle token attends
	res.add(t, p, times, f.tokens, func(i int) uint64 { return reads[i].Bytes(middle) })
	res.finish()
	return res, nil
}

// measurePrompt profiles prompts, where measure profiles decoded tokens.
func (f *profileFlags) measurePrompt(cmd *cobra.Command, m *pianola.Model, s *pianola.Session) (*profileResult, error) {
	t, r := m.Table(), s
	res := &profileResult{Tokens: f.runs * f.prompt, Depth: f.depth, Prompt: f.prompt}
	if need, have := f.depth+f.prompt, r.Context(); need > have {
		return nil, fmt.Errorf("profile: a prompt of %d tokens after %d needs %d positions, but the context has %d", f.prompt, f.depth, need, have)
	}
	var programs [2]*table.Program
	var reads [2][]table.Reads
	var times [2][]time.Duration
	programs[0], _ = t.Prefill(f.prompt)
	programs[1], _, _ = t.Program(table.ProgramHead)
	for i, p := range programs {
		if p == nil {
			return nil, errors.New("profile: the table has no programs for prompts")
		}
		var err error
		if reads[i], err = t.Reads(p.Name); err != nil {
			return nil, err
		}
		times[i] = make([]time.Duration, p.Count)
	}
	ids := bench.Prompt(m, f.depth+f.prompt, 0)
	progress := newProgress(cmd.ErrOrStderr(), "prompts", false)
	defer progress.finish()
	for i := range f.runs + 1 { // the first run is a warm-up
		if err := r.Reset(); err != nil {
			return nil, err
		}
		if i == 1 {
			clear(times[0])
			clear(times[1])
		}
		if err := f.profilePrompt(cmd.Context(), r, ids, times); err != nil {
			return nil, err
		}
		progress.set("prompts", uint64(i), uint64(f.runs))
	}
	dry, err := bench.Dry(r, 1, 1)
	if err != nil {
		return nil, err
	}
	if decode, _, ok := t.Program(table.ProgramDecode); ok {
		res.OverheadNS = float64(dry.Nanoseconds()) / float64(decode.Count)
	}
	chunk := int(t.Header.Chunk)
	res.add(t, programs[0], times[0], f.runs, func(i int) (sum uint64) {
		for at := 0; at < f.prompt; at += chunk {
			sum += reads[0][i].Bytes(f.depth + min(at+chunk, f.prompt))
		}
		return sum
	})
	res.add(t, programs[1], times[1], f.runs, func(i int) uint64 { return reads[1][i].Bytes(f.depth + f.prompt) })
	res.finish()
	return res, nil
}

// profilePrompt profiles the prompt in ids after its first f.depth tokens, which it prefills
// without profiling.
func (f *profileFlags) profilePrompt(ctx context.Context, r *pianola.Session, ids []int32, times [2][]time.Duration) error {
	if f.depth > 0 {
		if _, _, err := r.Prompt(ctx, ids[:f.depth]); err != nil {
			return err
		}
		// The token pending after the prefill replaces ids[f.depth] as the first of the prompt.
		ids = ids[f.depth+1:]
	}
	return r.ProfilePrompt(ctx, ids, times[0], times[1])
}

// add appends the commands of a program. times holds their total times over n tokens or
// prompts.
func (r *profileResult) add(t *table.Table, p *table.Program, times []time.Duration, n int, bytes func(i int) uint64) {
	for i, d := range times {
		line := profileLine{
			Command: int(p.First) + i, Label: t.Label(int(p.First) + i), Count: 1,
			US: float64(d.Nanoseconds()) / 1e3 / float64(n), Bytes: bytes(i),
		}
		if k, ok := decl.Lookup(t.Cmds[line.Command].Kernel); ok {
			line.Kernel = k.Name
		}
		r.TotalUS += line.US
		r.Commands = append(r.Commands, line)
	}
}

// finish computes the groups, rates and shares from the commands.
func (r *profileResult) finish() {
	r.Groups = groupLayers(r.Commands)
	for _, lines := range [][]profileLine{r.Commands, r.Groups} {
		for i := range lines {
			lines[i].rates(r.TotalUS)
		}
	}
}

// rates computes the line's rate and its share of totalUS.
func (l *profileLine) rates(totalUS float64) {
	if l.US > 0 {
		l.GBs = float64(l.Bytes) / l.US / 1e3
	}
	if totalUS > 0 {
		l.Share = l.US / totalUS
	}
}

// groupLayers adds up the lines of all layers with the same kernel and part of a layer. The group
// with the longest time comes first.
func groupLayers(lines []profileLine) []profileLine {
	var groups []profileLine
	for _, l := range lines {
		label := withoutLayer(l.Label)
		i := slices.IndexFunc(groups, func(g profileLine) bool { return g.Label == label && g.Kernel == l.Kernel })
		if i < 0 {
			i = len(groups)
			groups = append(groups, profileLine{Command: -1, Label: label, Kernel: l.Kernel})
		}
		g := &groups[i]
		g.Count, g.US, g.Bytes = g.Count+l.Count, g.US+l.US, g.Bytes+l.Bytes
	}
	slices.SortStableFunc(groups, func(a, b profileLine) int { return cmp.Compare(b.US, a.US) })
	return groups
}

// withoutLayer replaces the number of the layer: layer.7.attn.qkv becomes layer.*.attn.qkv.
func withoutLayer(label string) string {
	rest, ok := strings.CutPrefix(label, "layer.")
	if !ok {
		return label
	}
	number, part, ok := strings.Cut(rest, ".")
	if !ok || strings.Trim(number, "0123456789") != "" {
		return label
	}
	return "layer.*." + part
}

func (r *profileResult) write(w io.Writer, groupsOnly bool) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if !groupsOnly {
		fmt.Fprintln(tw, "command\tlabel\tkernel\tus\tbytes\tGB/s\tshare")
		for _, l := range r.Commands {
			fmt.Fprintf(tw, "%d\t%s\n", l.Command, l.columns())
		}
		fmt.Fprintln(tw)
	}
	fmt.Fprintln(tw, "count\tlabel\tkernel\tus\tbytes\tGB/s\tshare")
	for _, l := range r.Groups {
		fmt.Fprintf(tw, "%d\t%s\n", l.Count, l.columns())
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if r.PromptRows > 0 {
		_, err := fmt.Fprintf(w, "\ntotal     %s us per pass of %d rows after %d tokens and %d of the %d tokens of a prompt, %s tok/s, %d commands, mean of %d passes\n",
			figure(r.TotalUS), r.Rows, r.Depth, r.PromptRows, r.Prompt, figure(float64(r.Rows+r.PromptRows)/r.TotalUS*1e6), len(r.Commands), r.Tokens/r.Rows)
		return err
	}
	if r.Prompt > 0 {
		_, err := fmt.Fprintf(w, "\ntotal     %s us per prompt of %d tokens after %d, %s tok/s, %d commands, mean of %d prompts\noverhead  %.2f us per command\n",
			figure(r.TotalUS), r.Prompt, r.Depth, figure(float64(r.Prompt)/r.TotalUS*1e6), len(r.Commands), r.Tokens/r.Prompt, r.OverheadNS/1e3)
		return err
	}
	if r.Rows > 0 {
		_, err := fmt.Fprintf(w, "\ntotal     %s us per step of %d rows after %d tokens, %s tok/s, %d commands, mean of %d steps\n",
			figure(r.TotalUS), r.Rows, r.Depth, figure(float64(r.Rows)/r.TotalUS*1e6), len(r.Commands), r.Tokens/r.Rows)
		return err
	}
	_, err := fmt.Fprintf(w, "\ntotal     %s us per token, %d commands, mean of %d tokens after %d\noverhead  %.2f us per command\n",
		figure(r.TotalUS), len(r.Commands), r.Tokens, r.Depth, r.OverheadNS/1e3)
	return err
}

func (l *profileLine) columns() string {
	rate := "-"
	if l.Bytes > 0 {
		rate = figure(l.GBs)
	}
	return fmt.Sprintf("%s\t%s\t%.2f\t%d\t%s\t%.1f %%", oneLine(l.Label), l.Kernel, l.US, l.Bytes, rate, 100*l.Share)
}
