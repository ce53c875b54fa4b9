package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/testmodels"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

const (
	gopher   = "../../testdata/gopher-q8_0.gguf"
	gopherHF = "../../testdata/gopher"
)

// outcome is the exit status and the output of a command line.
type outcome struct {
	status         int
	stdout, stderr string
}

// runCommand runs a command line in this process.
func runCommand(t *testing.T, args ...string) outcome {
	t.Helper()
	return runWith(t, context.Background(), "", args...)
}

func runWith(t *testing.T, ctx context.Context, stdin string, args ...string) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	status := execute(ctx, args, strings.NewReader(stdin), &stdout, &stderr)
	return outcome{status, stdout.String(), stderr.String()}
}

// tiny returns the path of a model in testdata/tiny, or of one of its files.
func tiny(t *testing.T, name string) string {
	t.Helper()
	return testmodels.Path(t, "../../testdata/tiny/"+name)
}

// succeed runs a command line that must not fail and returns its output.
func succeed(t *testing.T, args ...string) outcome {
	t.Helper()
	o := runCommand(t, args...)
	if o.status != 0 {
		t.Fatalf("pianola %q: status %d, standard error:\n%s", args, o.status, o.stderr)
	}
	return o
}

// decode decodes a line of JSON.
func decode[T any](t *testing.T, line string) T {
	t.Helper()
	if strings.Count(line, "\n") != 1 || !strings.HasSuffix(line, "\n") {
		t.Fatalf("not one line: %.200q", line)
	}
	var v T
	if err := json.Unmarshal([]byte(line), &v); err != nil {
		t.Fatalf("%v in %.200q", err, line)
	}
	return v
}

// wantError checks a failed command: the exit status, an empty standard output, and one line on
// standard error that contains a text.
func wantError(t *testing.T, o outcome, status int, contains string) {
	t.Helper()
	if o.status != status {
		t.Errorf("status %d, want %d", o.status, status)
	}
	line, rest, ok := strings.Cut(o.stderr, "\n")
	if !ok || rest != "" {
		t.Errorf("standard error is not one line: %q", o.stderr)
	}
	if !strings.HasPrefix(line, "pianola: ") || strings.HasPrefix(line, "pianola: pianola") {
		t.Errorf("standard error does not begin with exactly one %q: %q", "pianola: ", line)
	}
	if strings.HasSuffix(line, ": ") || len(line) < len("pianola: x") {
		t.Errorf("standard error has no message: %q", line)
	}
	if !strings.Contains(line, contains) {
		t.Errorf("standard error %q does not contain %q", line, contains)
	}
	if o.stdout != "" {
		t.Errorf("standard output: %.200q", o.stdout)
	}
}

func TestHelp(t *testing.T) {
	root := newRoot()
	pages := map[string][]string{"pianola": {"--help"}}
	for _, c := range root.Commands() {
		if c.Hidden {
			continue
		}
		pages[c.Name()] = []string{c.Name(), "--help"}
		if !strings.Contains(c.Example, "pianola "+c.Name()) {
			t.Errorf("%s: no example runs the command", c.Name())
		}
	}
	for name, args := range pages {
		t.Run(name, func(t *testing.T) {
			o := succeed(t, args...)
			if o.stderr != "" {
				t.Errorf("standard error: %q", o.stderr)
			}
			golden := filepath.Join("testdata", "help", name+".txt")
			if *update {
				if err := os.WriteFile(golden, []byte(o.stdout), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(strings.ReplaceAll(string(want), "\r\n", "\n"), o.stdout); d != "" {
				t.Errorf("the help differs from the golden file (-golden +got); -update rewrites it:\n%s", d)
			}
		})
	}
}

func TestHelpInOtherWords(t *testing.T) {
	want := succeed(t, "--help").stdout
	for _, args := range [][]string{{}, {"help"}, {"-h"}} {
		if o := succeed(t, args...); o.stdout != want {
			t.Errorf("pianola %q does not print the help", args)
		}
	}
	if got, want := succeed(t, "help", "eval").stdout, succeed(t, "eval", "--help").stdout; got != want {
		t.Errorf("help eval and eval --help differ: %q", got)
	}
	if o := succeed(t, "--version"); !strings.HasPrefix(o.stdout, "pianola ") || !strings.Contains(o.stdout, "go1.") {
		t.Errorf("--version prints %q", o.stdout)
	}
}

// TestExamples runs the first example in each command's help, or all of them if the run is
// exhaustive.
func TestExamples(t *testing.T) {
	data, err := filepath.Abs("../../testdata")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(data, filepath.Join(dir, "testdata")); err != nil {
		t.Skipf("examples need testdata in the working directory, and this system makes no link to it: %v", err)
	}
	gopherHub(t)
	t.Chdir(dir)
	root := newRoot()
	for _, c := range append(root.Commands(), root) {
		if c.Name() == "serve" {
			continue // it does not end by itself; TestServe runs it
		}
		examples := slices.Collect(strings.Lines(c.Example))
		for _, line := range examples[:exhaustive.Pick(len(examples), min(1, len(examples)))] {
			args := shellWords(t, strings.TrimSpace(line))
			if args[0] != "pianola" {
				t.Errorf("%s: the example %q runs another command", c.Name(), line)
			}
			o := runWith(t, t.Context(), "sort a slice\n", args[1:]...) // standard input of chat
			want := 0
			if args[1] == "diff" {
				want = statusDifferent
			}
			if o.status != want {
				t.Errorf("%s: status %d: %s", line, o.status, o.stderr)
			}
			if o.stdout == "" && o.stderr == "" {
				t.Errorf("%s: no output", line)
			}
		}
	}
}

// shellWords splits a line at spaces that are not in single quotes.
func shellWords(t *testing.T, line string) []string {
	t.Helper()
	var words []string
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			words = append(words, part)
		} else {
			words = append(words, strings.Fields(part)...)
		}
	}
	return words
}

func TestUsageErrors(t *testing.T) {
	for _, c := range []struct{ args, contains string }{
		{"frobnicate", `unknown command "frobnicate"`},
		{"help frobnicate", "frobnicate"},
		{"run", "needs a MODEL"},
		{"run a b -p x", "got 2 arguments, want 1"},
		{"run m.gguf", "one of -p and -f"},
		{"run m.gguf -p x -f y", "one of -p and -f"},
		{"run m.gguf --bogus", "unknown flag: --bogus"},
		{"run m.gguf -p", "flag needs an argument"},
		{"run m.gguf -p x --temp warm", `"warm"`},
		{"run m.gguf -p x --ctx many", `"many"`},
		{"run m.gguf -p x -n 99999999999999999999", "out of range"},
		{"run m.gguf -p x --roll r --no-fuse", "--no-fuse cannot be combined with --roll"},
		{"run m.gguf -p x --roll r --kv q8_0", "--kv cannot be combined with --roll"},
		{"run m.gguf -p x --roll r --no-repack", "--no-repack cannot be combined with --roll"},
		{"run m.gguf -p x --device quantum", `"--device" flag: unknown device "quantum" (valid: auto, cpu, metal, cuda)`},
		{"run m.gguf -p x --mode sideways", `"--mode" flag: unknown mode "sideways" (valid: encode, record, resident)`},
		{"run m.gguf -p x --sinks 3", "--sinks requires --rollover"},
		{"info m.gguf --kv int3", `unknown KV type "int3" (valid: f16, q8_0)`},
		{"run m.gguf -p x --roll=", "--roll needs a file"},
		{"run m.gguf -p x --any-chip", "--any-chip requires --roll"},
		{"bench m.gguf --cuda-cache d --no-cuda-cache", "exclude each other"},
		{"bench m.gguf --cuda-cache=", "--cuda-cache needs a directory"},
		{"eval m.gguf", "needs --ids"},
		{"eval m.gguf --ids 5,,6", "id 1 of the list"},
		{"eval m.gguf --ids five", "not a number"},
		{"bench m.gguf --chain 1,two", "two"},
		{"bench m.gguf --json --benchfmt", "exclude each other"},
		{"ppl m.gguf", "needs --file"},
		{"compile m.gguf", "needs -o or --dump-after"},
		{"compile m.gguf --list-passes", "takes no MODEL"},
		{"dump m.gguf --range a:b", "not A:B"},
		{"dump m.gguf --range 1:2:3", "not A:B"},
		{"diff m.gguf", "two models"},
		{"check", "needs a roll"},
		{"synth", "needs a SHAPE"},
		{"synth gopher", "needs -o"},
		{"synth --list gopher", "takes no SHAPE"},
		{"devices all", "takes no arguments"},
		{"info", "needs a MODEL"},
		{"profile", "needs a MODEL"},
		{"profile m.gguf --prefill 8 -n 4", "exclude each other"},
		{"profile m.gguf -r 4", "-r requires --prefill"},
		{"profile m.gguf --prefill 1 -d 4", "at least 2 tokens"},
	} {
		t.Run(c.args, func(t *testing.T) {
			o := runCommand(t, strings.Fields(c.args)...)
			wantError(t, o, statusUsage, c.contains)
			if !strings.Contains(o.stderr, "--help)") {
				t.Errorf("the error does not mention --help: %q", o.stderr)
			}
		})
	}
}

// TestImpossibleValues gives flags well-formed values that are out of range or do not exist.
func TestImpossibleValues(t *testing.T) {
	for _, c := range []struct{ args, contains string }{
		{"run GOPHER -p x --ctx 0", "--ctx 0"},
		{"run GOPHER -p x --ctx -5", "--ctx -5"},
		{"run GOPHER -p x --ctx 100000", "context of 100000"},
		{"run GOPHER -p x -t 0", "-t 0"},
		{"run GOPHER -p x -t -2", "-t -2"},
		{"run GOPHER -p x -t 1000000", "1000000 threads"},
		{"run GOPHER -p x --chain 0", "--chain 0"},
		{"run GOPHER -p x -n -1", "-n -1"},
		{"run GOPHER -p x --temp -1", "--temp -1"},
		{"run GOPHER -p x --temp NaN", "--temp NaN"},
		{"run GOPHER -p x --top-p 1.5", "--top-p 1.5"},
		{"run GOPHER -p x --min-p -0.1", "--min-p -0.1"},
		{"run GOPHER -p x --top-k -1", "--top-k -1"},
		{"run GOPHER -p x --repeat-penalty Inf", "--repeat-penalty +Inf"},
		{"run GOPHER -p x --mode resident", "does not support mode resident"},
		{"run GOPHER -f nowhere.txt", "nowhere.txt"},
		{"run TINY -p x", "no tokenizer"},
		{"ppl TINY --file ../../testdata/gopher/config.json", "no tokenizer"},
		{"eval GOPHER --ids=", "prompt is empty"},
		{"eval GOPHER --ids 4096", "id 4096 is not in 0..4095"},
		{"eval GOPHER --ids 5,-1", "id -1"},
		{"eval GOPHER --ids 5,123456789012345678901234567890", "id 1 of the list"},
		{"eval GOPHER --ids 5 -n -1", "-n -1"},
		{"eval GOPHER --ids 5 --ctx 4 -n 6", "context is full"},
		{"eval GOPHER --ids 1,2,3,4,5 --ctx 4", "context is full"},
		{"bench GOPHER -r 0", "-r 0"},
		{"bench GOPHER -p -1", "-p -1"},
		{"bench GOPHER -p 0 -n 0", "nothing to measure"},
		{"bench GOPHER --chain 1,0", "--chain 0"},
		{"bench GOPHER --chain 1,2 -n 0", "require -n of at least 1"},
		{"bench GOPHER -d 2000", "positions"},
		{"bench GOPHER -p 9223372036854775807", "not in 0.."},
		{"bench GOPHER -n 9223372036854775807 --chain 9223372036854775807", "not in 0.."},
		{"ppl GOPHER --file nowhere.txt", "nowhere.txt"},
		{"ppl GOPHER --file ../../testdata/gopher/tokenizer_config.json", "fewer than a chunk"},
		{"ppl GOPHER --file ../../testdata/gopher/heldout.txt -c 2", "-c 2"},
		{"ppl GOPHER --file ../../testdata/gopher/heldout.txt -c 100000", "context of 100000"},
		{"ppl GOPHER --file ../../testdata/gopher/heldout.txt -c 64 --ctx 32", "does not fit"},
		{"ppl GOPHER --file ../../testdata/gopher/heldout.txt --chunks -1", "--chunks -1"},
		{"profile GOPHER -n 0", "-n 0"},
		{"profile GOPHER -d 2047", "positions"},
		{"profile GOPHER --prefill 0", "--prefill 0"},
		{"profile GOPHER --prefill 8 -r 0", "-r 0"},
		{"profile GOPHER --prefill 8 -d -1", "-d -1"},
		{"profile GOPHER --prefill 2049", "positions"},
		{"compile GOPHER --chip abacus -o x.roll", "abacus"},
		{"compile GOPHER --dump-after lunch", "lunch"},
		{"compile GOPHER --ctx 0 -o x.roll", "--ctx 0"},
		{"compile GOPHER -o no/such/directory/x.roll", "no"},
		{"dump GOPHER --range 5:5", "no command"},
		{"dump GOPHER --range 5:2", "no command"},
		{"dump GOPHER --range 100000:100001", "the table has"},
		{"dump GOPHER --range -1:2", "no command"},
		{"synth nothing -o x.gguf", "no shape"},
		{"synth gopher --quant Q99 -o x.gguf", "Q99"},
	} {
		t.Run(c.args, func(t *testing.T) {
			line := strings.NewReplacer("GOPHER", gopher, "TINY", tiny(t, "llama/model.gguf")).Replace(c.args)
			wantError(t, runCommand(t, strings.Fields(line)...), statusFailed, c.contains)
		})
	}
}
