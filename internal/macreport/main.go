// Macreport builds Pianola on a Mac, runs the Metal device's tests and benchmarks, and writes one
// file to attach to an issue:
//
//	go run ./internal/macreport -o build/mac-report.md
//
// A step that fails does not stop the others. The file says which failed, and contains the whole
// output of each. It names neither the user nor the machine's serial number.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	var o options
	out := flag.String("o", "build/mac-report.md", "the file to write")
	flag.StringVar(&o.dir, "dir", "build/mac", "the `DIRECTORY` for the program, models with random weights, and the output of each step")
	flag.StringVar(&o.library, "metallib", "internal/metal/kernels/metallib", "the `DIRECTORY` for the compiled kernels, which a build embeds")
	flag.StringVar(&o.device, "device", "metal", "the `DEVICE` to measure, cpu to try the report without a Mac")
	shapes := flag.String("shapes", "qwen3-0.6b:Q4_0", "models with random weights to measure, of \"pianola synth --list\", such as qwen3-0.6b:Q4_0,llama-3.1-8b:Q4_0")
	only := flag.String("only", "", "run only these steps and those that they need, such as machine,gopher")
	flag.DurationVar(&o.limit, "limit", 30*time.Minute, "end a step after this time")
	flag.BoolVar(&o.list, "list", false, "list the steps, and run nothing")
	flag.Parse()
	o.shapes = list(*shapes)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, &o, *out, list(*only)); err != nil {
		fmt.Fprintln(os.Stderr, "macreport:", err)
		os.Exit(1)
	}
}

// list returns the elements of a list that are separated by commas.
func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

// run runs the steps and writes the report after each of them, so that a machine that stops leaves
// the results until then. The error names the steps that failed.
func run(ctx context.Context, o *options, out string, only []string) error {
	steps, err := choose(o.steps(), only)
	if err != nil {
		return err
	}
	if o.list {
		for _, s := range steps {
			fmt.Printf("%-24s %s\n", s.name, &s)
		}
		return nil
	}
	if err := errors.Join(os.MkdirAll(o.dir, 0o755), os.MkdirAll(filepath.Dir(out), 0o755)); err != nil {
		return err
	}
	r := newReport(steps)
	for i := range steps {
		fmt.Fprintf(os.Stderr, "%d of %d: %s\n", i+1, len(steps), &steps[i])
		r.results[i] = steps[i].run(ctx, r.failed(steps[i].needs))
		err := errors.Join(os.WriteFile(filepath.Join(o.dir, steps[i].name+".txt"), []byte(r.clean(r.results[i].output)), 0o644),
			os.WriteFile(out, []byte(r.text()), 0o644))
		if err != nil {
			return err
		}
	}
	fmt.Fprintf(os.Stderr, "wrote %s\n", out)
	var failed []string
	for i, res := range r.results {
		if res.fault != "" {
			failed = append(failed, fmt.Sprintf("%s: %s", steps[i].name, res.fault))
		}
	}
	if failed != nil {
		return fmt.Errorf("%d of %d steps failed:\n\t%s", len(failed), len(steps), strings.Join(failed, "\n\t"))
	}
	return nil
}
