package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// execute runs a command line and returns its exit status.
func execute(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) (status int) {
	defer func() {
		if p := recover(); p != nil {
			report(stderr, fmt.Errorf("internal error: %v", p))
			status = statusFailed
		}
	}()
	out := &resultWriter{w: stdout}
	root := newRoot()
	if args == nil {
		args = []string{} // nil makes cobra read os.Args
	}
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(out)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = out.err
	}
	return exitStatus(ctx, stderr, err)
}

// newRoot returns the command tree.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "pianola",
		Short: "Decode with transformer models by replaying dispatch tables",
		Long: `Pianola compiles a model's forward pass into a dispatch table and replays it
for every token. MODEL is a .gguf file, a Hugging Face directory, or the ID of a model of
the Hugging Face Hub, such as org/name:Q4_K_M.`,
		Example:       "  pianola run testdata/gopher-q8_0.gguf -p 'func main() {'",
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return &usageError{"pianola", fmt.Sprintf("unknown command %q", args[0])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("pianola {{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &usageError{cmd.CommandPath(), strings.Replace(err.Error(), "flag: pianola: ", "flag: ", 1)}
	})
	root.AddCommand(
		newRun(), newChat(), newServe(), newEval(), newBench(), newPPL(), newInfo(), newPlan(), newCompile(), newDump(),
		newDiff(), newView(), newCheck(), newProfile(), newTap(), newCost(), newSynth(), newPull(), newConvert(), newQuantize(), newDevices(),
	)
	root.SetHelpCommand(newHelp(root))
	return root
}

func init() {
	// Commands are listed in the order in which newRoot adds them.
	cobra.EnableCommandSorting = false
}

// newHelp returns the command "help", which prints the same text as --help of another command.
func newHelp(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:    "help [COMMAND]",
		Short:  "Print the help of a command",
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return usage(root, "unknown command %q", strings.Join(args, " "))
			}
			about.InitDefaultHelpFlag()
			about.InitDefaultVersionFlag()
			return about.Help()
		},
	}
}

// version returns the version of this build: the module's version, or the revision it
// was built from.
func version() string {
	v := "(devel)"
	if info, ok := debug.ReadBuildInfo(); ok {
		if info.Main.Version != "" {
			v = info.Main.Version
		}
	}
	return fmt.Sprintf("%s %s %s/%s", v, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// exactly returns a check that a command has n arguments. The error begins with usage.
func exactly(n int, usage string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return &usageError{cmd.CommandPath(), fmt.Sprintf("%s: got %d arguments, want %d", usage, len(args), n)}
		}
		return nil
	}
}
