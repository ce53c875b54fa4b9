package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/table"
)

// modelFlags are the flags of every command that runs a model.
type modelFlags struct {
	device       pianola.Device
	mode         pianola.Mode
	table        tableFlags
	chain        int
	chainMS      float64
	threads      int
	roll         string
	anyChip      bool
	chipFile     string // "" unless the command has registerChip
	realTime     bool
	checkWeights bool
	cuda         pianola.CUDAOptions
	arch         archFiles
	limits       [3]byteCount // of weights, KV caches and scratch
	noPrewarm    bool

	checkActivations bool
}

// register adds the flags to a command, except --chain and --chain-ms.
func (f *modelFlags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.TextVar(&f.device, "device", pianola.DeviceAuto, "`DEVICE` to run on: auto, cpu, metal or cuda")
	fs.TextVar(&f.mode, "mode", pianola.ModeAuto, "replay `MODE`: encode, record or resident (default: the device's fastest)")
	fs.IntVarP(&f.threads, "threads", "t", 0, "number of `THREADS` of the CPU device (default: all, with --real-time all but one)")
	fs.StringVar(&f.roll, "roll", "", "replay the compiled table in `FILE`")
	fs.BoolVar(&f.anyChip, "any-chip", false, "accept a roll that was compiled for another chip")
	fs.BoolVar(&f.realTime, "real-time", false, "bound latencies: submissions of at most 5 ms, threads bound to processors (docs/LATENCY.md)")
	fs.BoolVar(&f.checkWeights, "check-weights", false, checkUsage)
	fs.StringVar(&f.cuda.CacheDir, "cuda-cache", "", "keep the assembled CUDA kernels in `DIR` (default: pianola/cuda in the user's cache directory)")
	fs.BoolVar(&f.cuda.NoCache, "no-cuda-cache", false, "assemble the CUDA kernels anew and do not keep them")
	fs.TextVar(&f.limits[0], "weight-limit", byteCount(0), "fail if the weights need more than `BYTES`, such as 8G (default: no limit)")
	fs.TextVar(&f.limits[1], "kv-limit", byteCount(0), "fail if the KV caches of all sessions need more than `BYTES` (default: no limit)")
	fs.TextVar(&f.limits[2], "scratch-limit", byteCount(0), "fail if the scratch memory needs more than `BYTES` (default: no limit)")
	fs.BoolVar(&f.noPrewarm, "no-prewarm", false, "begin as soon as the weights are uploaded; the first tokens take longer")
	f.arch.register(cmd, "", "")
	f.table.register(cmd, "", "")
}

// checkUsage describes the flag --check-weights.
const checkUsage = "read all tensors first and report those with NaN or infinity"

// registerChain adds --chain and --chain-ms to commands that take one chain length.
func (f *modelFlags) registerChain(cmd *cobra.Command) {
	cmd.Flags().IntVar(&f.chain, "chain", 0, "number of tokens that each submission decodes (default: limited by --chain-ms)")
	f.registerChainTime(cmd)
}

// registerChainTime adds --chain-ms to commands that have --chain.
func (f *modelFlags) registerChainTime(cmd *cobra.Command) {
	cmd.Flags().Float64Var(&f.chainMS, "chain-ms", 0, "time limit of a submission in ms, also the longest delay of a cancellation (default: 50, or 5 with --real-time)")
}

// registerChip adds --chip-file to commands that measure.
func (f *modelFlags) registerChip(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.chipFile, "chip-file", "", "compile for the chip that `FILE` describes instead of the device's, as the files in chip/data do")
}

// chainTime returns the value of --chain-ms, or 0 if the flag was not given.
func (f *modelFlags) chainTime() time.Duration {
	return time.Duration(f.chainMS * float64(time.Millisecond))
}

// options checks the flags and returns the options that they select.
func (f *modelFlags) options(cmd *cobra.Command) (pianola.Options, error) {
	if err := f.check(cmd); err != nil {
		return pianola.Options{}, err
	}
	t, err := f.table.options(cmd)
	if err != nil {
		return pianola.Options{}, err
	}
	o := pianola.Options{
		Device: f.device, Mode: f.mode, Threads: f.threads, RealTime: f.realTime, Table: t, AnyChip: f.anyChip, CheckWeights: f.checkWeights,
		CUDA: f.cuda, NoPrewarm: f.noPrewarm,
		WeightLimit: uint64(f.limits[0]), KVLimit: uint64(f.limits[1]), ScratchLimit: uint64(f.limits[2]),
	}
	if o.Architectures, err = f.arch.fs(); err != nil {
		return o, err
	}
	if f.chipFile != "" {
		if o.Table.Chip, err = readChip(f.chipFile); err != nil {
			return o, err
		}
	}
	if f.roll != "" {
		if o.Roll, err = readRoll(f.roll); err != nil {
			return o, err
		}
	}
	return o, nil
}

func (f *modelFlags) check(cmd *cobra.Command) error {
	fs := cmd.Flags()
	if err := atLeast(cmd, 1, "threads", f.threads); err != nil {
		return err
	}
	if fs.Lookup("chain") != nil && fs.Lookup("chain").Value.Type() == "int" {
		if err := atLeast(cmd, 1, "chain", f.chain); err != nil {
			return err
		}
	}
	if fs.Changed("chain-ms") && !(f.chainMS >= 0.01 && f.chainMS <= 60_000) {
		return fmt.Errorf("--chain-ms %v: must be in 0.01..60000", f.chainMS)
	}
	switch {
	case fs.Changed("chain-ms") && fs.Changed("chain"):
		return usage(cmd, "--chain-ms and --chain exclude each other")
	case fs.Changed("cuda-cache") && f.cuda.NoCache:
		return usage(cmd, "--cuda-cache and --no-cuda-cache exclude each other")
	case fs.Changed("cuda-cache") && f.cuda.CacheDir == "":
		return usage(cmd, "--cuda-cache needs a directory")
	case fs.Changed("roll") && f.roll == "":
		return usage(cmd, "--roll needs a file")
	case f.roll != "" && f.chipFile != "":
		return usage(cmd, "--roll and --chip-file exclude each other")
	case f.roll == "" && f.anyChip:
		return usage(cmd, "--any-chip requires --roll")
	case f.roll != "":
		return f.table.refuseRoll(cmd, tableFlagNames, "cannot be combined with --roll: the roll is compiled already")
	}
	return nil
}

// atLeast checks a number that was given on the command line.
func atLeast(cmd *cobra.Command, low int, name string, v int) error {
	if cmd.Flags().Changed(name) && v < low {
		return fmt.Errorf("%s %d: must be at least %d", flagName(cmd, name), v, low)
	}
	return nil
}

// flagName returns a flag's short form if it has one, and its long form otherwise.
func flagName(cmd *cobra.Command, name string) string {
	if f := cmd.Flags().Lookup(name); f != nil && f.Shorthand != "" {
		return "-" + f.Shorthand
	}
	return "--" + name
}

// readRoll reads the bytes of a roll, at most table.MaxRollSize.
func readRoll(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	if st.Size() > table.MaxRollSize {
		return nil, fmt.Errorf("%s: %d bytes are more than the largest roll has", path, st.Size())
	}
	return os.ReadFile(path)
}

// enough selects a longer context for a LongRoPE model, whose default context is the length up to
// which its short factors hold. It does so if the command needs more positions than that and
// neither --ctx nor --roll was given.
func enough(cmd *cobra.Command, path string, o *pianola.Options, need int) error {
	if o.Table.Context != 0 || o.Roll != nil {
		return nil
	}
	path, err := modelPath(cmd, path)
	if err != nil {
		return err
	}
	h, err := pianola.OpenHeader(path, o.Architectures)
	if err != nil {
		return err
	}
	if c := h.Config(); need > c.DefaultContext(compiler.DefaultContext) {
		o.Table.Context = min(compiler.DefaultContext, c.Context)
	}
	return nil
}

// openModel loads a model and shows a progress bar.
func openModel(cmd *cobra.Command, path string, o pianola.Options) (*pianola.Model, error) {
	path, err := modelPath(cmd, path)
	if err != nil {
		return nil, err
	}
	p := newProgress(cmd.ErrOrStderr(), "loading", true)
	defer p.finish()
	o.Events = func(e pianola.Event) { p.set(string(e.Stage), e.Done, e.Total) }
	m, err := pianola.Open(cmd.Context(), path, o)
	if err == nil && o.RealTime {
		// The process runs only this command, so it may change a setting of the process.
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + m.Threads())
	}
	return m, err
}

// closeAfter closes c and joins the error to *err.
func closeAfter(err *error, c interface{ Close() error }) {
	*err = errors.Join(*err, c.Close())
}
