package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// badFiles returns paths of missing and malformed files, which every command must reject.
func badFiles(t *testing.T) map[string]string {
	t.Helper()
	dir := t.TempDir()
	model, err := os.ReadFile(gopher)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		"missing":   filepath.Join(dir, "missing.gguf"),
		"directory": filepath.Join(dir, "empty"),
		"badconfig": filepath.Join(dir, "badconfig"),
	}
	put := func(name string, b []byte) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(name, "/") {
			files[name] = filepath.Join(dir, name)
		}
	}
	if err := os.Mkdir(files["directory"], 0o755); err != nil {
		t.Fatal(err)
	}
	put("badconfig/config.json", []byte(`{"model_type": "llama", "hidden_size":`))
	put("empty.gguf", nil)
	put("noise.gguf", []byte(strings.Repeat("\x00\x1b[31mnoise\n", 100)))
	put("header.gguf", model[:1000])
	put("half.gguf", model[:len(model)/2])
	put("zeros.gguf", make([]byte, 4096))
	put("halfroll.roll", []byte("PIANOLA\x1a\x01\x00\x00\x00"))
	odd := "line\nbreak.gguf"
	if runtime.GOOS == "windows" { // file names there cannot contain a line break
		odd = "counts.gguf"
	}
	put(odd, []byte("GGUF\x03\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"))
	return files
}

func TestBadFiles(t *testing.T) {
	out := filepath.Join(t.TempDir(), "x.roll")
	commands := []string{
		"run FILE -p x", "eval FILE --ids 1", "bench FILE", "ppl FILE --file ../../testdata/gopher/heldout.txt",
		"info FILE", "compile FILE -o OUT", "dump FILE", "diff FILE FILE", "check FILE", "profile FILE",
		"run GOPHER -p x --roll FILE",
	}
	for name, path := range badFiles(t) {
		for _, c := range commands {
			t.Run(strings.Fields(c)[0]+"/"+name, func(t *testing.T) {
				words := strings.Fields(c)
				for i, w := range words {
					switch w {
					case "FILE":
						words[i] = path
					case "GOPHER":
						words[i] = gopher
					case "OUT":
						words[i] = out
					}
				}
				want := statusFailed
				if words[0] == "diff" {
					want = statusIncomplete
				}
				wantError(t, runCommand(t, words...), want, "")
			})
		}
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("a compilation that failed left a file")
	}
}

// fullDisk is a writer that fails with errFull after n bytes.
type fullDisk struct{ n int }

var errFull = errors.New("no space left")

func (d *fullDisk) Write(p []byte) (int, error) {
	if len(p) > d.n {
		return 0, errFull
	}
	d.n -= len(p)
	return len(p), nil
}

func TestResultsThatCannotBeWritten(t *testing.T) {
	for _, c := range []string{
		"eval GOPHER --ids 1 -n 1", "eval GOPHER --ids 1 -n 1 --all-logits", "dump GOPHER", "dump GOPHER --json", "info GOPHER",
		"info GOPHER --json", "devices", "devices --json", "diff GOPHER GOPHER --no-fuse-a", "synth --list",
		"run GOPHER -p x -n 2", "run GOPHER -p x -n 2 --json", "--help", "--version",
		"ppl GOPHER --file ../../testdata/gopher/heldout.txt --chunks 1 -c 16",
	} {
		t.Run(c, func(t *testing.T) {
			var stderr strings.Builder
			args := strings.Fields(strings.ReplaceAll(c, "GOPHER", gopher))
			status := execute(context.Background(), args, strings.NewReader(""), &fullDisk{3}, &stderr)
			want := statusFailed
			if args[0] == "diff" {
				want = statusIncomplete
			}
			if status != want || !strings.HasSuffix(stderr.String(), errFull.Error()+"\n") {
				t.Errorf("status %d, standard error %q", status, stderr.String())
			}
		})
	}
}

func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, c := range []string{
		"run GOPHER -p x", "eval GOPHER --ids 1", "bench GOPHER", "profile GOPHER",
		"ppl GOPHER --file ../../testdata/gopher/heldout.txt -c 64", "synth gopher -o " + filepath.Join(t.TempDir(), "x"),
	} {
		t.Run(strings.Fields(c)[0], func(t *testing.T) {
			o := runWith(t, ctx, "", strings.Fields(strings.ReplaceAll(c, "GOPHER", gopher))...)
			wantError(t, o, statusInterrupted, "interrupted")
		})
	}
}

// cancelAfter is a writer that calls cancel after a number of bytes.
type cancelAfter struct {
	strings.Builder
	cancel context.CancelFunc
	n      int
}

func (w *cancelAfter) Write(p []byte) (int, error) {
	if w.Len()+len(p) >= w.n {
		w.cancel()
	}
	return w.Builder.Write(p)
}

func TestInterruptWhileText(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stdout := &cancelAfter{cancel: cancel, n: 40}
	var stderr strings.Builder
	args := []string{"run", gopher, "-p", "func main() {", "-n", "0", "--chain", "2", "--temp", "0.9", "--seed", "3"}
	status := execute(ctx, args, strings.NewReader(""), stdout, &stderr)
	lines := strings.Split(stderr.String(), "\n")
	if status != statusInterrupted || len(lines) != 3 || !strings.Contains(lines[0], "tok/s") || lines[1] != "pianola: interrupted" {
		t.Errorf("status %d, standard error %q", status, stderr.String())
	}
	if got := stdout.String(); !strings.HasPrefix(got, "func main() {") || !strings.HasSuffix(got, "\n") {
		t.Errorf("standard output %q", got)
	}
}

// TestInternalError checks the report of a panic within a command.
func TestInternalError(t *testing.T) {
	var stderr strings.Builder
	status := execute(context.Background(), []string{"devices"}, nil, panicWriter{}, &stderr)
	if status != statusFailed || stderr.String() != "pianola: internal error: a fault of the program\n" {
		t.Errorf("status %d, standard error %q", status, stderr.String())
	}
	args := []string{"diff", gopher, gopher, "--no-fuse-b"}
	if status := execute(context.Background(), args, nil, panicWriter{}, io.Discard); status != statusIncomplete {
		t.Errorf("diff ends with status %d", status)
	}
}

type panicWriter struct{ io.Writer }

func (panicWriter) Write([]byte) (int, error) { panic("a fault of the program") }

// copyModel copies a Hugging Face directory and edits its config.json.
func copyModel(t *testing.T, from, to string, edit func(config string) string) {
	t.Helper()
	for _, name := range []string{"config.json", "model.safetensors"} {
		b, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		if name == "config.json" {
			b = []byte(edit(string(b)))
		}
		if err := os.WriteFile(filepath.Join(to, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
