package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/replacefile"
)

type tapFlags struct {
	model     modelFlags
	prompt    string
	ids       string
	tokens    int
	labels    []string
	attention []string
	out       string
	json      bool
}

func newTap() *cobra.Command {
	f := &tapFlags{}
	cmd := &cobra.Command{
		Use:   "tap MODEL -p TEXT --label PATTERN [-o FILE.npz]",
		Short: "Write the activations of a prompt to a file for NumPy",
		Long: `Tap prefills a prompt, decodes -n tokens greedily, and prints the shape and the range
of the results of every command whose label matches a pattern, in which * stands for
any characters. The command dump prints the labels. Fused commands write no
intermediate results; --no-fuse compiles one command per operation.

With -o, tap writes the results to a file that numpy.load reads. The array
PROGRAM/LABEL/RESULT has one row for each position, and PROGRAM/LABEL/RESULT.positions
has the positions. Attention weights have the name weights and the shape
[rows, heads, positions]; weights of positions after a row's own are 0. The array ids
has the tokens. The results are kept in memory until the end.`,
		Example: `  pianola tap testdata/gopher-q8_0.gguf -p 'func main() {' --label 'layer.*.ffn.*' -o ffn.npz
  pianola tap testdata/gopher-q8_0.gguf -p 'func main() {' --no-fuse --attention 'layer.2.*'`,
		Args: exactly(1, "tap needs a MODEL"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.prompt, "prompt", "p", "", "the prompt")
	fs.StringVar(&f.ids, "ids", "", "the prompt as token ids separated by commas, in place of -p")
	fs.IntVarP(&f.tokens, "tokens", "n", 0, "number of tokens to decode after the prompt")
	fs.StringArrayVar(&f.labels, "label", nil, "show results of commands whose label matches `PATTERN`; may be repeated")
	fs.StringArrayVar(&f.attention, "attention", nil, "show attention weights of commands whose label matches `PATTERN`; may be repeated")
	fs.StringVarP(&f.out, "output", "o", "", "write the results to `FILE`")
	fs.BoolVar(&f.json, "json", false, "print one JSON object")
	f.model.register(cmd)
	return cmd
}

func (f *tapFlags) run(cmd *cobra.Command, path string) (err error) {
	switch {
	case len(f.labels)+len(f.attention) == 0:
		return usage(cmd, "tap needs --label or --attention")
	case cmd.Flags().Changed("prompt") == cmd.Flags().Changed("ids"):
		return usage(cmd, "tap needs one of -p and --ids")
	}
	if err := atLeast(cmd, 0, "tokens", f.tokens); err != nil {
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
	ids, err := f.tokensOf(cmd, m)
	if err != nil {
		return err
	}
	s, err := m.NewSession(pianola.SessionOptions{IgnoreStops: true, NoReuse: true})
	if err != nil {
		return err
	}
	defer closeAfter(&err, s)
	var c collected
	if err := s.SetTaps(&pianola.Taps{Activations: f.labels, Attention: f.attention, Show: c.add}); err != nil {
		return err
	}
	next, _, err := s.Prompt(cmd.Context(), ids)
	if err != nil {
		return err
	}
	more, err := continueGreedily(cmd.Context(), s, next, f.tokens)
	if err != nil {
		return err
	}
	c.ids = append(ids, more...)
	if f.out != "" {
		if err := replacefile.Write(f.out, 0o666, func(w io.Writer) error { return writeNPZ(w, c.arrays()) }); err != nil {
			return fmt.Errorf("tap: %s: %w", f.out, err)
		}
	}
	if f.json {
		return writeJSON(cmd.OutOrStdout(), struct {
			IDs     []int32     `json:"ids"`
			Results []tapResult `json:"results"`
		}{c.ids, c.results()})
	}
	return c.print(cmd.OutOrStdout())
}

// tokensOf returns the ids of the prompt.
func (f *tapFlags) tokensOf(cmd *cobra.Command, m *pianola.Model) ([]int32, error) {
	if cmd.Flags().Changed("ids") {
		return parseIDs(cmd, f.ids)
	}
	tok, err := m.Tokenizer()
	if err != nil {
		return nil, err
	}
	ids, err := tok.Encode(f.prompt, pianola.EncodeOptions{AddSpecial: true})
	if err == nil && len(ids) == 0 {
		err = errors.New("tap: the prompt is empty")
	}
	return ids, err
}

// collected holds the results that a tap has shown, in the order of their first rows.
type collected struct {
	ids   []int32
	list  []*result
	index map[string]*result
}

// result holds all rows of one result of a command.
type result struct {
	name      string
	weights   bool // attention weights: each row is [heads, positions]
	heads     int
	cols      int       // elements of a row; for attention weights, the positions of the longest row
	lengths   []int     // of attention weights, positions of each row
	values    []float32 // all rows
	positions []int32
}

// add implements pianola.Taps.Show.
func (c *collected) add(a pianola.Activation) error {
	name := a.Program + "/" + a.Label + "/" + a.Name
	r := c.index[name]
	if r == nil {
		if c.index == nil {
			c.index = map[string]*result{}
		}
		r = &result{name: name, weights: a.Name == pianola.WeightsName, cols: a.Shape[1]}
		c.index[name] = r
		c.list = append(c.list, r)
	}
	r.values = append(r.values, a.Values...)
	if r.weights {
		r.heads, r.cols = a.Shape[0], max(r.cols, a.Shape[1])
		r.lengths = append(r.lengths, a.Shape[1])
		r.positions = append(r.positions, int32(a.Position))
		return nil
	}
	if a.Shape[1] != r.cols {
		return fmt.Errorf("tap: %s: rows of %d and of %d elements", name, r.cols, a.Shape[1])
	}
	for i := range a.Shape[0] {
		r.positions = append(r.positions, int32(a.Position+i))
	}
	return nil
}

// arrays returns the arrays of the file.
func (c *collected) arrays() []npyArray {
	all := []npyArray{{name: "ids", shape: []int{len(c.ids)}, ints: c.ids}}
	for _, r := range c.list {
		all = append(all, npyArray{name: r.name, shape: r.shape(), floats: r.padded()},
			npyArray{name: r.name + ".positions", shape: []int{len(r.positions)}, ints: r.positions})
	}
	return all
}

func (r *result) shape() []int {
	if r.weights {
		return []int{len(r.positions), r.heads, r.cols}
	}
	return []int{len(r.positions), r.cols}
}

// padded returns the elements in the shape, with zeros after the positions of shorter rows.
func (r *result) padded() []float32 {
	if !r.weights {
		return r.values
	}
	all := make([]float32, len(r.positions)*r.heads*r.cols)
	from := r.values
	for row, n := range r.lengths {
		for h := range r.heads {
			copy(all[(row*r.heads+h)*r.cols:], from[:n])
			from = from[n:]
		}
	}
	return all
}

// tapResult describes a result of a command. The range and the norm leave out NaN and infinity.
type tapResult struct {
	Name      string  `json:"name"`
	Shape     []int   `json:"shape"`
	Min       float64 `json:"min"`
	Max       float64 `json:"max"`
	RMS       float64 `json:"rms"`
	NotFinite int     `json:"not_finite"` // number of NaN and infinite values
}

// results describes all results.
func (c *collected) results() []tapResult {
	all := make([]tapResult, 0, len(c.list))
	for _, r := range c.list {
		d := tapResult{Name: r.name, Shape: r.shape()}
		sum, n := 0.0, 0
		for _, v := range r.values {
			x := float64(v)
			if math.IsNaN(x) || math.IsInf(x, 0) {
				d.NotFinite++
				continue
			}
			if n == 0 {
				d.Min, d.Max = x, x
			}
			d.Min, d.Max, sum, n = min(d.Min, x), max(d.Max, x), sum+x*x, n+1
		}
		if n > 0 {
			d.RMS = math.Sqrt(sum / float64(n))
		}
		all = append(all, d)
	}
	return all
}

// print prints a table of the results.
func (c *collected) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "result\tshape\tmin\tmax\trms\tNaN or infinite")
	for _, r := range c.results() {
		fmt.Fprintf(t, "%s\t%s\t%.4g\t%.4g\t%.4g\t%d\n", oneLine(r.Name), fmt.Sprint(r.Shape), r.Min, r.Max, r.RMS, r.NotFinite)
	}
	return t.Flush()
}
