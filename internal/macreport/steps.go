package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// options select what is run.
type options struct {
	dir, library, device string
	shapes               []string      // SHAPE:TYPE
	limit                time.Duration // of a step
	list                 bool
}

// step is one command.
type step struct {
	name  string
	about string // what the output shows
	args  []string
	env   []string // in addition to the environment
	needs []string // steps without which this one cannot run
	limit time.Duration
}

// String returns the command.
func (s *step) String() string { return strings.Join(append(slices.Clone(s.env), s.args...), " ") }

const model = "testdata/gopher-q8_0.gguf"

// withC enables cgo, which the Metal device needs.
var withC = []string{"CGO_ENABLED=1"}

// steps returns all steps in the order in which they run.
func (o *options) steps() []step {
	exe := filepath.Join(o.dir, "pianola")
	quick, slow := min(time.Minute, o.limit), o.limit
	steps := []step{
		{name: "machine", about: "The machine and its processors.", args: []string{"sysctl", "hw.model", "machdep.cpu.brand_string", "hw.memsize", "hw.ncpu"}, limit: quick},
		{name: "system", about: "The version of macOS.", args: []string{"sw_vers"}, limit: quick},
		{name: "gpu", about: "The GPU's cores and the version of Metal.", args: []string{"system_profiler", "-detailLevel", "mini", "SPDisplaysDataType"}, limit: quick},
		{name: "power", about: "The source of power and the power mode.", args: []string{"pmset", "-g"}, limit: quick},
		{name: "xcode", about: "The version of Xcode.", args: []string{"xcodebuild", "-version"}, limit: quick},
		{name: "compiler", about: "The version of the Metal compiler.", args: []string{"xcrun", "-sdk", "macosx", "metal", "--version"}, limit: quick},
		{name: "go", about: "The version of Go.", args: []string{"go", "version"}, limit: quick},
		{name: "commit", about: "The commit, and files that differ from it.", args: []string{"git", "-c", "core.fsmonitor=false", "log", "-1", "--format=%H %cs"}, limit: quick},
		{name: "changes", about: "Files that differ from the commit.", args: []string{"git", "-c", "core.fsmonitor=false", "status", "--short"}, limit: quick},
		{name: "metallib", about: "The warnings of the Metal compiler.", args: []string{"go", "run", "./internal/metal/kernels/gen", "-o", o.library}, limit: slow},
		{name: "build", about: "The program, with the compiled kernels if there are any.", args: []string{"go", "build", "-o", exe, "./cmd/pianola"}, env: withC, limit: slow},
		{name: "devices", about: "The devices as Pianola sees them.", args: []string{exe, "devices"}, needs: []string{"build"}, limit: quick},
		{name: "pipelines", about: "The limits of each kernel: threads of a threadgroup as launched, as the pipeline allows, and as registers allow without a demand; the execution width; bytes of static and dynamic threadgroup memory.",
			args: append([]string{"go", "run", "./internal/metal/pipelines", model, "llama-3.1-8b:Q4_0", "llama-3.1-8b:Q4_K_M"}, o.shapes...), env: withC, limit: slow},
		{name: "goldens", about: "Goldens of tokens and logits, agreement with the CPU device, and equal bits in all modes and chain lengths.",
			args: []string{"go", "test", "-count=1", "-timeout=0", "-v", "-run", "TestGPU", "./internal/e2e"}, env: withC, limit: slow},
		{name: "device-tests", about: "The tests of every device.", args: []string{"go", "test", "-count=1", "-timeout=0", "-v", "-run", "TestMetal", "./replay", "."}, env: withC, limit: slow},
	}
	measured := func(name, path string, needs ...string) {
		needs = append(needs, "build")
		on := func(command string, args ...string) []string {
			return append([]string{exe, command, path, "--device", o.device}, args...)
		}
		for _, mode := range []string{"encode", "record"} {
			steps = append(steps,
				step{name: name + "-decode-" + mode, about: "Decoding in mode " + mode + ", and the cost of a command.", args: on("bench", "--mode", mode, "-p", "16", "-n", "128", "-r", "5"), needs: needs, limit: slow},
				step{name: name + "-chains-" + mode, about: "Decoding in mode " + mode + " by the length of a chain.", args: on("bench", "--mode", mode, "-p", "0", "-n", "128", "--chain", "1,2,4,8,16,32,64,128"), needs: needs, limit: slow})
		}
		for _, n := range []int{16, 64, 128, 512, 1024, 2048} {
			context := max(n+16, 512)
			if name == "gopher" && context > 2048 {
				continue // longer than the model's context
			}
			steps = append(steps, step{name: fmt.Sprintf("%s-prefill-%d", name, n), about: fmt.Sprintf("Prefill of %d tokens.", n),
				args: on("bench", "-p", fmt.Sprint(n), "-n", "0", "--ctx", fmt.Sprint(context)), needs: needs, limit: slow})
		}
		steps = append(steps,
			step{name: name + "-depth", about: "Decoding after 1,000 tokens.", args: on("bench", "-d", "1000", "-p", "0", "-n", "64"), needs: needs, limit: slow},
			step{name: name + "-cost", about: "The cost model's prediction of a token after 16.", args: o.predict(exe, path, "-d", "16"), needs: needs, limit: quick},
			step{name: name + "-cost-prefill", about: "The cost model's prediction of a prompt of 512 tokens.", args: o.predict(exe, path, "--prefill", "512"), needs: needs, limit: quick},
			step{name: name + "-profile", about: "The profile of decoding, by label.", args: on("profile", "--by-label", "-n", "32"), needs: needs, limit: slow},
			step{name: name + "-profile-prefill", about: "The profile of a prompt of 512 tokens, by label.", args: on("profile", "--by-label", "--prefill", "512"), needs: needs, limit: slow})
	}
	measured("gopher", model)
	for _, s := range o.shapes {
		shape, quant, _ := strings.Cut(s, ":")
		name := shape + "-" + quant
		path := filepath.Join(o.dir, name+".gguf")
		steps = append(steps, step{name: name, about: "A model with random weights.", args: []string{exe, "synth", shape, "--quant", quant, "-o", path}, needs: []string{"build"}, limit: slow})
		measured(name, path, name)
	}
	return steps
}

// predict returns a command that runs "pianola cost" for the chip of this machine, which "pianola
// devices" names.
func (o *options) predict(exe, path string, args ...string) []string {
	if o.device != "metal" {
		return append([]string{exe, "cost", path, "--chip", o.device}, args...)
	}
	const script = `chip=$("$0" devices | sed -n 's/^metal .*chip \([a-z0-9-]*\).*/\1/p'); exec "$0" cost "$@" --chip "${chip:?is not named by pianola devices}"`
	return append([]string{"sh", "-c", script, exe, path}, args...)
}

// choose returns the steps in only, and those that they need. A name stands for all steps whose
// names begin with it and a hyphen, too. If only is empty, it returns all.
func choose(all []step, only []string) ([]step, error) {
	if len(only) == 0 {
		return all, nil
	}
	wanted := map[string]bool{}
	for _, name := range only {
		known := false
		for _, s := range all {
			if s.name == name || strings.HasPrefix(s.name, name+"-") {
				wanted[s.name], known = true, true
			}
		}
		if !known {
			return nil, fmt.Errorf("there is no step %s; -list shows the steps", name)
		}
	}
	// A step needs earlier ones only.
	for _, s := range slices.Backward(all) {
		for _, n := range s.needs {
			wanted[n] = wanted[n] || wanted[s.name]
		}
	}
	return slices.DeleteFunc(all, func(s step) bool { return !wanted[s.name] }), nil
}
