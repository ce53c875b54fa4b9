package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/exhaustive"
)

// fakes are the programs of macOS that steps run.
var fakes = map[string]string{
	"sysctl":          `echo "hw.model: Mac16,7"`,
	"sw_vers":         "echo ProductVersion: 26.1",
	"system_profiler": "echo Total Number of Cores: 20",
	"pmset":           "echo lowpowermode 0",
	"xcodebuild":      "echo Xcode 26.2; echo no licence >&2; exit 69",
	"xcrun": `[ "$1 $2 $3" = "-sdk macosx metal" ] || exit 1
if [ "$4" = --version ]; then echo Apple metal version 32023; exit; fi
echo "kernels.metal:1:1: warning: unused variable"
{ printf MTLB; cat "$9"; } >"$8"`,
}

// install puts fakes before the programs of this system. It does so in the repository's root, where
// the steps run.
func install(t *testing.T) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the programs are shell scripts")
	}
	bin := t.TempDir()
	for name, script := range fakes {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	t.Chdir("../..")
}

// TestReport writes a report with programs that stand for those of macOS. The steps on the CPU
// device and the kernels' build run the code that a Mac runs. One step fails, and the report says so.
func TestReport(t *testing.T) {
	install(t)
	dir := t.TempDir()
	o := options{dir: dir, library: dir, device: "cpu", limit: 10 * time.Minute}
	only := exhaustive.Pick(
		[]string{"machine", "system", "gpu", "power", "xcode", "compiler", "go", "metallib", "devices", "gopher-decode-encode", "gopher-prefill-64", "gopher-cost", "gopher-profile"},
		[]string{"machine", "system", "gpu", "power", "xcode", "compiler", "go", "metallib"})
	out := filepath.Join(dir, "sub", "report.md")
	err := run(t.Context(), &o, out, only)
	if err == nil || !strings.Contains(err.Error(), "xcode: exit status 69") || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("%v", err)
	}
	text := read(t, out)
	for _, want := range []string{
		"hw.model: Mac16,7", "| system | passed |", "| xcode | **failed**: exit status 69 |", "no licence\nfailed: exit status 69\n", "Apple metal version",
		"$ go run ./internal/metal/kernels/gen -o ", "kernels.metal:1:1: warning: unused variable\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report has no %q", want)
		}
	}
	if library := read(t, filepath.Join(dir, "macos14.metallib")); !strings.HasPrefix(library, "MTLB") || !strings.Contains(read(t, filepath.Join(dir, "macos14.json")), "Apple metal version 32023") {
		t.Error("there is no library")
	}
	if read(t, filepath.Join(dir, "machine.txt")) != "hw.model: Mac16,7\n" {
		t.Error("the step's own file is wrong")
	}
	if exhaustive.On {
		for _, want := range []string{"cpu  ", "decode", "layer.*.ffn.down", "us per prompt of 512 tokens", "a token after 16"} {
			if !strings.Contains(text, want) {
				t.Errorf("the report has no %q", want)
			}
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestSteps checks that the steps are those of a Mac, and that choose adds what they need.
func TestSteps(t *testing.T) {
	o := options{dir: "build/mac", device: "metal", shapes: []string{"qwen3-0.6b:Q4_0"}, limit: time.Minute}
	all := o.steps()
	var names []string
	for _, s := range all {
		if slices.Contains(names, s.name) || s.about == "" || s.limit == 0 {
			t.Errorf("step %+v", s)
		}
		for _, n := range s.needs {
			if !slices.Contains(names, n) {
				t.Errorf("%s needs %s, which is not before it", s.name, n)
			}
		}
		names = append(names, s.name)
	}
	chosen, err := choose(all, []string{"qwen3-0.6b-Q4_0-profile", "system"})
	names = nil
	for _, s := range chosen {
		names = append(names, s.name)
	}
	if want := []string{"system", "build", "qwen3-0.6b-Q4_0", "qwen3-0.6b-Q4_0-profile", "qwen3-0.6b-Q4_0-profile-prefill"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("%v, %v", names, err)
	}
	if _, err := choose(o.steps(), []string{"piano"}); err == nil || !strings.Contains(err.Error(), "piano") {
		t.Error(err)
	}
}

// TestPredict predicts for the chip that the list of devices names.
func TestPredict(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the program is a shell script")
	}
	o := options{device: "metal"}
	exe := filepath.Join(t.TempDir(), "pianola")
	for limits, want := range map[string]string{
		"20 cores, buffers of 4096 MiB, chip m4-pro; memory 8 GiB":                   "cost a.gguf -d 16 --chip m4-pro\n",
		"chip m5-max (the GPU is not known, the data are those of m5-max); memory 1": "cost a.gguf -d 16 --chip m5-max\n",
		"no data": "",
	} {
		script := "#!/bin/sh\nif [ \"$1\" = devices ]; then echo 'cpu     chip cpu'; echo 'metal   Apple M; " + limits + "'; exit; fi\necho \"$@\"\n"
		if err := os.WriteFile(exe, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		s := step{args: o.predict(exe, "a.gguf", "-d", "16"), limit: time.Minute}
		if got := s.run(t.Context(), nil); got.output != want && want != "" || (got.fault == "") != (want != "") {
			t.Errorf("%s: %+v", limits, got)
		}
	}
}

// TestExecute runs steps that fail, that need failed ones, and that do not end.
func TestExecute(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the steps are shell scripts")
	}
	sh := func(name, script string, needs ...string) step {
		return step{name: name, about: "A test.", args: []string{"sh", "-c", script}, needs: needs, limit: time.Minute, env: []string{"FOR_TEST=yes"}}
	}
	steps := []step{
		sh("good", "echo $FOR_TEST; echo more >&2"), sh("bad", "echo before; exit 3"), sh("after", "echo never", "good", "bad"), sh("also", "echo never", "after"),
		sh("slow", "echo begins; exec sleep 60"), {name: "missing", args: []string{"no-such-program"}, limit: time.Minute}, sh("last", "echo end"),
	}
	steps[4].limit = 100 * time.Millisecond
	r := newReport(steps)
	for i := range steps {
		r.results[i] = steps[i].run(t.Context(), r.failed(steps[i].needs))
	}
	for i, want := range []struct{ fault, output string }{
		{"", "yes\nmore\n"}, {"exit status 3", "before\n"}, {"not run: it needs bad", ""}, {"not run: it needs after", ""},
		{"it was ended after 100ms", "begins\n"}, {`exec: "no-such-program": executable file not found in $PATH`, ""}, {"", "end\n"},
	} {
		if got := r.results[i]; got.fault != want.fault || got.output != want.output || !got.done {
			t.Errorf("%s: %+v, want %+v", steps[i].name, got, want)
		}
	}
	if r.results[4].took > 30*time.Second {
		t.Errorf("the step ended after %v", r.results[4].took)
	}
	if text := r.text(); !strings.Contains(text, "7 of 7 steps have run, 5 failed") {
		t.Error(text)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := steps[0].run(ctx, nil); got.fault != "it was interrupted" {
		t.Errorf("%+v", got)
	}
}

// TestText checks what the report makes of output.
func TestText(t *testing.T) {
	t.Setenv("HOME", "/Users/nobody")
	t.Chdir(t.TempDir())
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	r := newReport([]step{{name: "a", about: "About a.", args: []string{"run", dir + "/x"}}, {name: "b"}})
	r.results[0] = result{done: true, output: "/Users/nobody/y and " + dir + "/z\n10 %\r100 %\n\x1b[31mred\x1b[0m\x00\xff\n```\nend", fault: "a|b"}
	const want = "About a.\n\n````text\n$ run ./x\n~/y and ./z\n100 %\nred\uFFFD\n```\nend\nfailed: a|b\n````\n"
	if text := r.text(); !strings.HasSuffix(text, want) || !strings.Contains(text, "| a | **failed**: a\\|b | 0.0 |\n| b | not run | 0.0 |\n") {
		t.Errorf("%s\nwant %s", text, want)
	}
	o := options{list: true, limit: time.Minute}
	old := os.Stdout
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	os.Stdout = write
	err = run(t.Context(), &o, "", []string{"xcode"})
	os.Stdout = old
	write.Close()
	if listed, _ := io.ReadAll(read); err != nil || !strings.HasSuffix(string(listed), "xcodebuild -version\n") {
		t.Errorf("%v: %q", err, listed)
	}
}
