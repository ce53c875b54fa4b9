package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/bench"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/table/decl"
)

type profileFlags struct {
	model  modelFlags
	tokens int
	depth  int
	groups bool
	json   bool
}

func newProfile() *cobra.Command {
	f := &profileFlags{}
	cmd := &cobra.Command{
		Use:   "profile MODEL",
		Short: "Show where the time of a token goes, command by command",
		Long: `Profile decodes tokens with a barrier after every command and prints each
command's mean time, what it reads of weights and KV cache, and its share; then
the same by label with the layers together. The barriers make the sum more than
a token takes otherwise.`,
		Example: "  pianola profile testdata/gopher-q8_0.gguf --by-label",
		Args:    exactly(1, "profile needs a MODEL"),
		RunE:    func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	cmd.Flags().IntVarP(&f.tokens, "tokens", "n", 32, "tokens to decode")
	cmd.Flags().IntVarP(&f.depth, "depth", "d", 16, "tokens of context before")
	cmd.Flags().BoolVar(&f.groups, "by-label", false, "only the summary with the layers together")
	cmd.Flags().BoolVar(&f.json, "json", false, "print one JSON object")
	f.model.register(cmd)
	return cmd
}

func (f *profileFlags) run(cmd *cobra.Command, path string) (err error) {
	if err := atLeast(cmd, 1, "tokens", f.tokens); err != nil {
		return err
	}
	if err := atLeast(cmd, 1, "depth", f.depth); err != nil {
		return err
	}
	o, err := f.model.options(cmd)
	if err != nil {
		return err
	}
	m, err := openModel(cmd, path, o)
	if err != nil {
		return err
	}
	defer closeAfter(&err, m)
	s, err := m.NewSession(pianola.SessionOptions{IgnoreStops: true})
	if err != nil {
		return err
	}
	defer closeAfter(&err, s)
	res, err := f.measure(cmd, m, s)
	if err != nil {
		return err
	}
	if f.json {
		return writeJSON(cmd.OutOrStdout(), res)
	}
	return res.write(cmd.OutOrStdout(), f.groups)
}

// profileResult is what a command or a group of them takes.
type profileResult struct {
	Tokens     int           `json:"tokens"`
	Depth      int           `json:"depth"`
	TotalUS    float64       `json:"total_us"`                // a token
	OverheadNS float64       `json:"overhead_ns_per_command"` // without kernels
	Commands   []profileLine `json:"commands"`
	Groups     []profileLine `json:"groups"` // the largest first
}

type profileLine struct {
	Command int     `json:"command"` // index in the table; -1: a group
	Label   string  `json:"label"`
	Kernel  string  `json:"kernel"`
	Count   int     `json:"count"` // commands
	US      float64 `json:"us"`    // a token
	Bytes   uint64  `json:"bytes"` // of weights and KV cache, a token
	GBs     float64 `json:"gb_s"`
	Share   float64 `json:"share"` // of the total, 0 to 1
}

func (f *profileFlags) measure(cmd *cobra.Command, m *pianola.Model, s *pianola.Session) (*profileResult, error) {
	t, r := m.Table(), s.Replay()
	p, _, ok := t.Program(table.ProgramDecode)
	if !ok {
		return nil, fmt.Errorf("profile: the table has no program %s", table.ProgramDecode)
	}
	reads, err := bench.DecodeReads(t)
	if err != nil {
		return nil, err
	}
	if need, have := f.depth+1+f.tokens, r.Context(); need > have {
		return nil, fmt.Errorf("profile: %d tokens after %d need %d positions and the context has %d", f.tokens, f.depth, need, have)
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
	middle := f.depth + 1 + (f.tokens+1)/2 // positions that the token in the middle sees
	for i, d := range times {
		line := profileLine{
			Command: int(p.First) + i, Label: t.Label(int(p.First) + i), Count: 1,
			US: float64(d.Nanoseconds()) / 1e3 / float64(f.tokens), Bytes: reads[i].Bytes(middle),
		}
		if k, ok := decl.Lookup(t.Cmds[line.Command].Kernel); ok {
			line.Kernel = k.Name
		}
		res.TotalUS += line.US
		res.Commands = append(res.Commands, line)
	}
	res.Groups = groupLayers(res.Commands)
	for _, lines := range [][]profileLine{res.Commands, res.Groups} {
		for i := range lines {
			lines[i].rates(res.TotalUS)
		}
	}
	return res, nil
}

// rates sets what follows from time and bytes.
func (l *profileLine) rates(totalUS float64) {
	if l.US > 0 {
		l.GBs = float64(l.Bytes) / l.US / 1e3
	}
	if totalUS > 0 {
		l.Share = l.US / totalUS
	}
}

// groupLayers joins the lines of the same kernel and part of a layer, the
// largest first.
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

// withoutLayer returns layer.*.attn.qkv of layer.7.attn.qkv.
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
	_, err := fmt.Fprintf(w, "\ntotal     %s us a token, %d commands, mean of %d tokens after %d\noverhead  %.2f us a command\n",
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
