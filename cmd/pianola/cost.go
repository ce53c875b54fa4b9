package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/cost"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/synth"
	"github.com/pianola-engine/pianola/table"
)

type costFlags struct {
	source    tableSource
	shape     string
	quant     string
	prompt    int
	depth     int
	batch     int
	threads   int
	bandwidth float64
	json      bool
}

func newCost() *cobra.Command {
	f := &costFlags{}
	cmd := &cobra.Command{
		Use:   "cost MODEL|FILE.roll",
		Short: "Predict the time of a token or a prompt on a chip, without running it",
		Long: `Cost predicts the time of a decoded token on a chip that need not be here, for the
commands with the same label in all layers together. Compulsory bytes are those that
the commands must read and write. Requested bytes are those that the threads of the
kernels load and store, counted in the emulator; their ratio is the amplification.
With --prefill the figures are those of a prompt. With --shape no file is read:
the shape is one of synth --list. docs/COST.md describes the model and its errors.`,
		Example: `  pianola cost testdata/gopher-q8_0.gguf --chip m4-pro
  pianola cost --shape llama-3.1-8b --quant Q4_0 --chip m4-pro --prefill 512`,
		Args: func(cmd *cobra.Command, args []string) error {
			if f.shape != "" {
				return exactly(0, "--shape takes no MODEL")(cmd, args)
			}
			return exactly(1, "cost needs a MODEL, a roll or --shape")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	f.source.register(cmd, "")
	fs := cmd.Flags()
	fs.StringVar(&f.shape, "shape", "", "predict for a `SHAPE` of synth --list instead of a model")
	fs.StringVar(&f.quant, "quant", "Q4_0", "`TYPE` of the weights of the shape; see synth --list")
	fs.IntVar(&f.prompt, "prefill", 0, "predict a prompt of `N` tokens instead of a token")
	fs.IntVarP(&f.depth, "depth", "d", 128, "tokens of context before the token; with --prefill the default is 0")
	fs.IntVar(&f.batch, "batch", 1, "predict a step that decodes a token of each of `B` sequences")
	fs.IntVarP(&f.threads, "threads", "t", 0, "number of `THREADS` of a CPU (default: 2)")
	fs.Float64Var(&f.bandwidth, "bandwidth", 0, "memory bandwidth in `GB/S` (default: the chip's)")
	fs.BoolVar(&f.json, "json", false, "print one JSON object")
	return cmd
}

func (f *costFlags) run(cmd *cobra.Command, args []string) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	t, err := f.table(cmd, args)
	if err != nil {
		return err
	}
	c, err := f.chip(t)
	if err != nil {
		return err
	}
	if f.threads > 0 {
		c.Cores = f.threads
	}
	if f.bandwidth > 0 {
		c.BandwidthGBs = f.bandwidth
	}
	res, err := f.predict(t, c)
	if err != nil {
		return err
	}
	if f.json {
		return writeJSON(cmd.OutOrStdout(), res)
	}
	return res.write(cmd.OutOrStdout())
}

func (f *costFlags) check(cmd *cobra.Command) error {
	fs := cmd.Flags()
	if fs.Changed("quant") && f.shape == "" {
		return usage(cmd, "--quant requires --shape")
	}
	if fs.Changed("prefill") && !fs.Changed("depth") {
		f.depth = 0
	}
	if fs.Changed("prefill") && fs.Changed("batch") {
		return usage(cmd, "--prefill and --batch exclude each other")
	}
	if fs.Changed("bandwidth") && !(f.bandwidth > 0 && f.bandwidth <= 1e6) {
		return fmt.Errorf("--bandwidth %v: must be in 0..1000000", f.bandwidth)
	}
	for _, n := range []struct {
		name   string
		v, low int
	}{{"prefill", f.prompt, 1}, {"depth", f.depth, 0}, {"batch", f.batch, 1}, {"threads", f.threads, 1}} {
		if err := atLeast(cmd, n.low, n.name, n.v); err != nil {
			return err
		}
	}
	return nil
}

// table compiles the table of a model or a shape, or reads a roll.
func (f *costFlags) table(cmd *cobra.Command, args []string) (*table.Table, error) {
	if f.batch > 1 {
		f.source.flags.AllLogits = true
	}
	if f.shape == "" {
		return f.source.table(cmd, args[0])
	}
	o, err := f.source.options(cmd)
	if err != nil {
		return nil, err
	}
	shape, ok := synth.FindShape(f.shape)
	if !ok {
		return nil, fmt.Errorf("cost: no shape %q; the shapes are %s", f.shape, strings.Join(shapeNames(), ", "))
	}
	dir, err := synth.NewDirectory(shape, f.quant)
	if err != nil {
		return nil, err
	}
	cfg, err := arch.Builtin().Read(dir)
	if err != nil {
		return nil, err
	}
	c := o.Chip
	if c == nil {
		if c, err = chip.Lookup(f.source.chip); err != nil {
			return nil, err
		}
	}
	return compiler.Compile(compiler.Input{Config: cfg, Tensors: dir, Chip: c, Options: compiler.Options{
		Context: o.Context, NoFuse: o.NoFuse, NoRepack: o.NoRepack, Exact: o.Exact, Batching: o.Batching, AllLogits: o.AllLogits,
		Hidden: o.Hidden, LogProbs: o.LogProbs, Sampler: o.Sampler, Draft: o.Draft, KV: string(o.KV), KVSinks: o.KVSinks, KVWindow: o.KVWindow,
	}})
}

// chip returns the chip that a table was compiled for.
func (f *costFlags) chip(t *table.Table) (*chip.Chip, error) {
	if f.source.chipFile != "" {
		return readChip(f.source.chipFile)
	}
	return chip.Lookup(t.Header.Chip)
}

// costResult is a prediction. Counts and bytes are those of a token, of a step of a batch, or of a
// prompt.
type costResult struct {
	Chip              string     `json:"chip"`
	Depth             int        `json:"depth"`
	Prompt            int        `json:"prompt"` // tokens of the prompt, or 0
	Batch             int        `json:"batch"`
	DecodeTokS        float64    `json:"decode_tok_s"`
	PrefillTokS       float64    `json:"prefill_tok_s"` // of the prompt, or of 512 tokens
	MS                float64    `json:"ms"`
	Dispatches        int        `json:"dispatches"`
	Barriers          int        `json:"barriers"`
	Compulsory        uint64     `json:"compulsory_bytes"`
	Requested         uint64     `json:"requested_bytes"`
	Model             uint64     `json:"model_bytes"` // the compulsory bytes of weights and KV caches
	Amplification     float64    `json:"amplification"`
	Matrix            uint64     `json:"matrix_macs"` // multiply-adds
	Vector            uint64     `json:"vector_macs"`
	Other             uint64     `json:"other_ops"`
	MatrixShare       float64    `json:"matrix_share"`          // of the multiply-adds
	LongestSubmission float64    `json:"longest_submission_ms"` // on Metal, the longest command buffer
	Labels            []costLine `json:"labels"`                // the longest first
}

type costLine struct {
	Label         string  `json:"label"`
	Kernel        string  `json:"kernel"`
	Dispatches    int     `json:"dispatches"`
	Barriers      int     `json:"barriers"`
	Compulsory    uint64  `json:"compulsory_bytes"`
	Requested     uint64  `json:"requested_bytes"`
	Amplification float64 `json:"amplification"`
	Matrix        uint64  `json:"matrix_macs"`
	Vector        uint64  `json:"vector_macs"`
	Other         uint64  `json:"other_ops"`
	MS            float64 `json:"ms"`
	Share         float64 `json:"share"` // of the total, 0 to 1
	Bound         string  `json:"bound"` // what bounds the slowest of its commands

	total   cost.Total
	slowest float64
}

// defaultPrompt is the length in tokens of the prompt whose rate is predicted without --prefill.
const defaultPrompt = 512

// predict predicts a token or a step of a batch, and a prompt.
func (f *costFlags) predict(t *table.Table, c *chip.Chip) (*costResult, error) {
	res := &costResult{Chip: t.Header.Chip, Depth: f.depth, Prompt: f.prompt, Batch: f.batch}
	var step, prompt prediction
	var err error
	if f.batch > 1 {
		err = step.batch(t, c, f.depth, f.batch)
	} else {
		err = step.run(t, c, table.ProgramDecode, cost.Point{Position: f.depth, Rows: 1})
	}
	if err != nil {
		return nil, err
	}
	n, depth := f.prompt, f.depth
	if n == 0 {
		n, depth = min(defaultPrompt, int(t.Header.Context)), 0
	}
	if err := prompt.prompt(t, c, depth, n); err != nil {
		return nil, err
	}
	res.DecodeTokS = float64(f.batch) / step.total.Seconds
	res.PrefillTokS = float64(n) / prompt.total.Seconds
	shown := &step
	if f.prompt > 0 {
		shown = &prompt
	}
	res.LongestSubmission = 1e3 * shown.longest
	res.add(shown)
	return res, nil
}

// prediction collects the commands of several programs.
type prediction struct {
	lines   []costLine
	total   cost.Total
	longest float64 // seconds of the longest submission
}

// run adds a program.
func (p *prediction) run(t *table.Table, c *chip.Chip, program string, at cost.Point) error {
	of, _, ok := t.Program(program)
	if !ok {
		return fmt.Errorf("cost: the table has no program %s", program)
	}
	commands, err := cost.Program(t, of, c, at)
	if err != nil {
		return err
	}
	// A Metal device cuts a program between commands into command buffers, two of which are in flight.
	bound := math.Inf(1)
	if c.Device == chip.Metal {
		bound = c.ChainMS / 1e3 / 2
	}
	seconds := 0.0
	for i := range commands {
		p.command(t, int(of.First)+i, &commands[i])
		if seconds += commands[i].Seconds; seconds > bound {
			seconds = commands[i].Seconds
		}
		p.longest = max(p.longest, seconds)
	}
	return nil
}

// command adds a command to the line of its label.
func (p *prediction) command(t *table.Table, index int, c *cost.Command) {
	p.total.Add(c)
	label, kernel := withoutLayer(t.Label(index)), ""
	if k, ok := decl.Lookup(t.Cmds[index].Kernel); ok {
		kernel = k.Name
	}
	i := slices.IndexFunc(p.lines, func(l costLine) bool { return l.Label == label && l.Kernel == kernel })
	if i < 0 {
		i = len(p.lines)
		p.lines = append(p.lines, costLine{Label: label, Kernel: kernel})
	}
	l := &p.lines[i]
	l.total.Add(c)
	if c.Seconds > l.slowest {
		l.slowest, l.Bound = c.Seconds, c.Bound.String()
	}
}

// prompt adds the chunks of a prompt of n tokens after depth tokens, and the choice of the first
// token.
func (p *prediction) prompt(t *table.Table, c *chip.Chip, depth, n int) error {
	chunk := int(t.Header.Chunk)
	for at := 0; at < n; at += chunk {
		rows := min(chunk, n-at)
		program, _ := t.Prefill(rows)
		if program == nil {
			return errors.New("cost: the table has no programs for prompts")
		}
		if err := p.run(t, c, program.Name, cost.Point{Position: depth + at, Rows: rows}); err != nil {
			return err
		}
	}
	return p.run(t, c, table.ProgramHead, cost.Point{Position: depth + n - 1, Rows: 1})
}

// batch adds a step of several rows, each of its own sequence: the programs for chunks and for the
// logits of all rows.
func (p *prediction) batch(t *table.Table, c *chip.Chip, depth, rows int) error {
	program, _ := t.Prefill(rows)
	if program == nil {
		return errors.New("cost: the table has no programs for prompts")
	}
	if err := p.run(t, c, program.Name, cost.Point{Position: depth, Rows: rows, Sequences: true}); err != nil {
		return err
	}
	for block := int(t.Header.LogitsRows); rows > 0; rows -= block {
		if err := p.run(t, c, table.ProgramLogits, cost.Point{Position: depth, Rows: min(rows, block), Sequences: true}); err != nil {
			return err
		}
	}
	return nil
}

// add sets the figures of a prediction.
func (r *costResult) add(p *prediction) {
	t := &p.total
	r.MS, r.Dispatches, r.Barriers = 1e3*t.Seconds, t.Commands, t.Barriers
	r.Compulsory, r.Requested, r.Model, r.Amplification = t.Compulsory, t.Requested, t.Model, t.Amplification()
	r.Matrix, r.Vector, r.Other, r.MatrixShare = t.Matrix, t.Vector, t.Other, t.MatrixShare()
	for _, l := range p.lines {
		l.Dispatches, l.Barriers = l.total.Commands, l.total.Barriers
		l.Compulsory, l.Requested, l.Amplification = l.total.Compulsory, l.total.Requested, l.total.Amplification()
		l.Matrix, l.Vector, l.Other = l.total.Matrix, l.total.Vector, l.total.Other
		l.MS, l.Share = 1e3*l.total.Seconds, l.total.Seconds/t.Seconds
		r.Labels = append(r.Labels, l)
	}
	slices.SortStableFunc(r.Labels, func(a, b costLine) int { return cmp.Compare(b.MS, a.MS) })
}

func (r *costResult) write(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "count\tlabel\tkernel\tus\tshare\tcompulsory\trequested\tratio\tmatrix MMAC\tvector MMAC\tbound")
	for _, l := range r.Labels {
		fmt.Fprintf(tw, "%d\t%s\t%s\t%s\t%.1f %%\t%s\t%s\t%.2f\t%s\t%s\t%s\n", l.Dispatches, oneLine(l.Label), l.Kernel, figure(1e3*l.MS), 100*l.Share,
			byteSize(l.Compulsory), byteSize(l.Requested), l.Amplification, figure(float64(l.Matrix)/1e6), figure(float64(l.Vector)/1e6), l.Bound)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	what := fmt.Sprintf("a token after %d", r.Depth)
	rate := fmt.Sprintf("decode %s tok/s", figure(r.DecodeTokS))
	switch {
	case r.Prompt > 0:
		what, rate = fmt.Sprintf("a prompt of %d tokens after %d", r.Prompt, r.Depth), fmt.Sprintf("prefill %s tok/s", figure(r.PrefillTokS))
	case r.Batch > 1:
		what = fmt.Sprintf("a step of %d sequences after %d", r.Batch, r.Depth)
	}
	_, err := fmt.Fprintf(w, "\nchip      %s, %s\npredicted %s ms, %s\ncommands  %d, %d barriers\nbytes     %s compulsory, %s requested, amplification %.2f\nmatrix    %.1f %% of %s million multiply-adds\n",
		r.Chip, what, figure(r.MS), rate, r.Dispatches, r.Barriers, byteSize(r.Compulsory), byteSize(r.Requested), r.Amplification,
		100*r.MatrixShare, figure(float64(r.Matrix+r.Vector)/1e6))
	return err
}
