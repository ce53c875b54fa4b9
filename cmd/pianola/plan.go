package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/table"
)

func newPlan() *cobra.Command {
	var f modelFlags
	var budget string
	sessions, parallel, asJSON := 1, 0, false
	cmd := &cobra.Command{
		Use:   "plan MODEL",
		Short: "Plan the device memory of a model and its sessions without loading it",
		Long: `Plan reads the header of a model but no weights. It prints the device memory of the
model and its sessions at full context, for each kind of slot. With --budget it fails if
the model needs more, and prints the longest context that fits. With --parallel the
model decodes many sequences in one batch: one session holds the pools of all of them.
Without --pages each of them has enough pages for its full context.`,
		Example: "  pianola plan testdata/gopher-q8_0.gguf --sessions 8 --ctx 1024 --budget 64M\n  pianola plan testdata/gopher-q8_0.gguf --parallel 64 --pages 500",
		Args:    exactly(1, "plan needs a MODEL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := atLeast(cmd, 1, "sessions", sessions); err != nil {
				return err
			}
			if err := atLeast(cmd, 0, "parallel", parallel); err != nil {
				return err
			}
			if parallel+f.table.Sequences > 0 && sessions > 1 || parallel > 0 && f.table.Sequences > 0 {
				return usage(cmd, "--parallel, --sequences and --sessions exclude each other")
			}
			o, err := f.options(cmd)
			if err != nil {
				return err
			}
			o.Parallel = parallel
			if o.BudgetSessions = sessions; budget != "" {
				if o.MemoryBudget, err = parseBytes(budget); err != nil {
					return fmt.Errorf("--budget %q: %w", budget, err)
				}
			}
			path, err := modelPath(cmd, args[0])
			if err != nil {
				return err
			}
			p, err := pianola.Plan(path, o)
			var over *pianola.BudgetError
			if err != nil && !errors.As(err, &over) {
				return err
			}
			res := newPlanResult(p, sessions)
			res.Sequences = max(parallel, f.table.Sequences)
			if over != nil {
				res.Fits, res.Longest = false, over.Longest
			}
			show := res.write
			if asJSON {
				show = func(w io.Writer) error { return writeJSON(w, res) }
			}
			return errors.Join(show(cmd.OutOrStdout()), err)
		},
	}
	f.register(cmd)
	f.table.registerSequences(cmd, "")
	fs := cmd.Flags()
	fs.IntVar(&parallel, "parallel", 0, "number of sequences that the model decodes together, as with Options.Parallel")
	fs.IntVar(&sessions, "sessions", 1, "number of sessions, each at full context")
	fs.StringVar(&budget, "budget", "", "fail if the total is larger than `BYTES`, such as 1500M or 24G (powers of 1024)")
	fs.BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// parseBytes parses a number of bytes with an optional suffix K, M, G or T, a power of 1024.
func parseBytes(s string) (uint64, error) {
	if s == "" {
		return 0, errors.New("not a number of bytes")
	}
	shift := 0
	if i := strings.IndexByte("KMGT", s[len(s)-1]); i >= 0 {
		shift, s = 10*(i+1), s[:len(s)-1]
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n == 0 || n<<shift>>shift != n {
		return 0, errors.New("not a number of bytes")
	}
	return n << shift, nil
}

// byteCount is the value of a flag that limits bytes; 0 means no limit.
type byteCount uint64

// MarshalText returns "" for no limit.
func (b byteCount) MarshalText() ([]byte, error) {
	if b == 0 {
		return nil, nil
	}
	return strconv.AppendUint(nil, uint64(b), 10), nil
}

// UnmarshalText accepts a number with an optional K, M, G or T.
func (b *byteCount) UnmarshalText(text []byte) error {
	n, err := parseBytes(string(text))
	*b = byteCount(n)
	return err
}

// planResult is the memory that a model needs, in bytes.
type planResult struct {
	Device   string `json:"device"`
	Mode     string `json:"mode"`
	Context  int    `json:"context"`
	Sessions int    `json:"sessions"`
	// Sequences is the number of sequences whose pools a session holds, or 0.
	Sequences int `json:"sequences,omitempty"`

	Weights  uint64     `json:"weights"` // copied or repacked
	Mapped   uint64     `json:"mapped"`  // weights used in place, in the mapped file
	Executor uint64     `json:"executor"`
	Session  uint64     `json:"session"` // per session at full context
	Total    uint64     `json:"total"`
	Free     uint64     `json:"free,omitempty"` // free memory of the device, if known
	Kinds    []planKind `json:"kinds"`
	Fits     bool       `json:"fits"`
	Longest  int        `json:"longest,omitempty"` // the longest context that fits the budget
}

// planKind is the memory of the slots of one kind, in bytes.
type planKind struct {
	Kind    string `json:"kind"`
	Model   uint64 `json:"model"`   // shared by all sessions
	Session uint64 `json:"session"` // per session
	Total   uint64 `json:"total"`
}

func newPlanResult(p *pianola.MemoryPlan, sessions int) *planResult {
	r := &planResult{
		Device: string(p.Device.Device), Mode: string(p.Mode), Context: p.Context, Sessions: sessions,
		Weights: p.Loaded.Weights, Mapped: p.Loaded.Mapped, Executor: p.Loaded.Executor, Session: p.Session.Sessions,
		Total: p.Total(sessions), Free: p.Free, Kinds: []planKind{}, Fits: true,
	}
	for k := range p.Loaded.Kinds {
		kind := table.SlotKind(k)
		if n := p.Kind(kind, sessions); n > 0 {
			each := p.Session.Kinds[k].Active
			r.Kinds = append(r.Kinds, planKind{kind.String(), p.Kind(kind, 0), each, n})
		}
	}
	return r
}

func (r *planResult) write(w io.Writer) error {
	what, n := "sessions", r.Sessions
	if r.Sequences > 0 {
		what, n = "sequences in one batch", r.Sequences
	}
	fmt.Fprintf(w, "%s, mode %s, %d %s of %d positions\n\n", r.Device, r.Mode, n, what, r.Context)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "slots\tmodel\tper session\ttotal")
	left := planKind{Model: r.Weights + r.Mapped + r.Executor, Session: r.Session, Total: r.Total}
	for _, k := range r.Kinds {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", k.Kind, byteSize(k.Model), byteSize(k.Session), byteSize(k.Total))
		left.Model, left.Session, left.Total = left.Model-k.Model, left.Session-k.Session, left.Total-k.Total
	}
	// Memory outside slots: the workers' own memory and the padding between slots.
	fmt.Fprintf(tw, "other\t%s\t%s\t%s\n", byteSize(left.Model), byteSize(left.Session), byteSize(left.Total))
	fmt.Fprintf(tw, "all\t%s\t%s\t%s\n", byteSize(r.Weights+r.Mapped+r.Executor), byteSize(r.Session), byteSize(r.Total))
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nweights   %s copied or repacked, %s used in place in the mapped file\n", byteSize(r.Weights), byteSize(r.Mapped))
	if err == nil && r.Free > 0 {
		_, err = fmt.Fprintf(w, "free      %s\n", byteSize(r.Free))
	}
	return err
}
