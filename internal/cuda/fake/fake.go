// Package fake is a CUDA driver for tests: a shared library with the functions that package
// driver calls, over host memory. It checks every call, executes the operations of streams
// either at once or as late as possible, runs kernels written in C, and fails at the calls that
// a test selects. It needs a C compiler.
package fake

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
)

//go:embed c
var sources embed.FS

// Kernels returns the names of the available kernels.
func Kernels() []string {
	return []string{
		"embed", "rope_angles", "rmsnorm", "add_rmsnorm", "add_rmsnorm_halves", "add", "gemv", "gemm", "head_norm", "rope", "kv_write",
		"qk_rope_kv", "attn", "attn_tile", "attn_chunk", "rope_attn", "rope_attn_tile", "attn_merge", "silu_mul", "halves", "gemm_halves", "gemm_few", "argmax_part", "argmax", "accept", "draft",
		"sample_adjust", "sample_filter", "sample_draw", "rank_part", "rank", "activate", "soft_cap", "norm_add", "choose_rows", "patch", "layernorm",
		"route", "route_scored", "expert_gemv", "expert_rows", "expert_halves", "expert_gemm", "expert_sum", "scale_rows", "latent_kv", "causal_conv", "delta_rule", "sigmoid_mul", "ssm_scan", "gated_norm", "scale_columns",
		"altup_predict", "altup_correct", "altup_add", "altup_match", "top_gates", "head_layernorm",
	}
}

// PTX returns a text that the driver accepts as one with the given entries. An entry is the
// name of a kernel, optionally followed by "__" and any suffix.
func PTX(entries ...string) []byte {
	var b bytes.Buffer
	b.WriteString(".version 7.8\n.target sm_90\n.address_size 64\n")
	for _, e := range entries {
		fmt.Fprintf(&b, ".visible .entry %s(\n", e)
		for i := range 12 {
			switch i {
			case 8:
				fmt.Fprintf(&b, "\t.param .align 16 .b8 %s_param_8[64],\n", e)
			case 11:
				fmt.Fprintf(&b, "\t.param .align 16 .b8 %s_param_11[32]\n", e)
			default:
				fmt.Fprintf(&b, "\t.param .u64 %s_param_%d,\n", e, i)
			}
		}
		b.WriteString(")\n{\n\tret;\n}\n")
	}
	b.WriteByte(0)
	return b.Bytes()
}

// Driver is a fake driver with its own state.
type Driver struct {
	Path string // path of the library
	tb   testing.TB
	lib  uintptr
}

// New builds a driver for the exclusive use of the caller. defines are macros for the C
// sources. Without a C compiler, or on a system that package driver does not support, the test
// is skipped.
func New(tb testing.TB, defines ...string) *Driver {
	tb.Helper()
	if !supported {
		tb.Skip("the driver's calls are for Linux")
	}
	cc, err := exec.LookPath("cc")
	if err != nil {
		tb.Skip("no C compiler to build the fake driver with")
	}
	built := build(tb, cc, defines)
	// The dynamic linker loads a copy as a separate library, with its own state.
	b, err := os.ReadFile(built)
	if err != nil {
		tb.Fatal(err)
	}
	d := &Driver{Path: filepath.Join(tb.TempDir(), "libcuda.so.1"), tb: tb}
	if err := os.WriteFile(d.Path, b, 0o700); err != nil {
		tb.Fatal(err)
	}
	if d.lib, err = dlopen(d.Path); err != nil {
		tb.Fatal(err)
	}
	return d
}

// build compiles the library, once for all tests with the same sources, and returns its path.
func build(tb testing.TB, cc string, defines []string) string {
	tb.Helper()
	params, err := os.ReadFile(filepath.Join(root(tb), "shaders", "params.h"))
	if err != nil {
		tb.Fatal(err)
	}
	files, err := sources.ReadDir("c")
	if err != nil {
		tb.Fatal(err)
	}
	hash := sha256.New()
	fmt.Fprintf(hash, "%s %q %x", cc, defines, sha256.Sum256(params))
	dir := tb.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "params.h"), params, 0o600); err != nil {
		tb.Fatal(err)
	}
	args := []string{"-std=gnu11", "-O3", "-march=native", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread", "-Wl,-Bsymbolic", "-I", dir}
	for _, d := range defines {
		args = append(args, "-D"+d)
	}
	for _, f := range files {
		b, err := sources.ReadFile("c/" + f.Name())
		if err != nil {
			tb.Fatal(err)
		}
		fmt.Fprintf(hash, "%s %x", f.Name(), sha256.Sum256(b))
		path := filepath.Join(dir, f.Name())
		if err := os.WriteFile(path, b, 0o600); err != nil {
			tb.Fatal(err)
		}
		if strings.HasSuffix(path, ".c") {
			args = append(args, path)
		}
	}
	cache := filepath.Join(os.TempDir(), fmt.Sprintf("pianola-fake-%d", os.Getuid()))
	built := filepath.Join(cache, fmt.Sprintf("%x.so", hash.Sum(nil)[:12]))
	if _, err := os.Stat(built); err == nil {
		return built
	}
	if err := os.MkdirAll(cache, 0o700); err != nil {
		tb.Fatal(err)
	}
	out := filepath.Join(dir, "fake.so")
	args = append(slices.Clip(args), "-lm", "-o", out)
	if text, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		tb.Fatalf("the fake driver does not compile: %v\n%s", err, text)
	}
	b, err := os.ReadFile(out)
	if err == nil {
		// If several tests build it at the same time, the last rename wins.
		part := fmt.Sprintf("%s.%d", built, os.Getpid())
		if err = os.WriteFile(part, b, 0o600); err == nil {
			err = os.Rename(part, built)
		}
	}
	if err != nil {
		tb.Fatal(err)
	}
	return built
}

// root returns the directory of the module that contains the test.
func root(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			tb.Fatal("the test runs outside of the module")
		}
		dir = parent
	}
}

// FailAt makes the n-th call from now on return the given code, once. n = 0 disables this.
// Codes of at least 700 lose the device.
func (d *Driver) FailAt(n, code int) { d.call("fake_fail_at", uintptr(n), uintptr(code)) }

// FailAlloc makes the n-th allocation from now on fail, once.
func (d *Driver) FailAlloc(n int) { d.call("fake_fail_alloc", uintptr(n)) }

// FailKernel makes the n-th kernel execution from now on lose the device.
func (d *Driver) FailKernel(n int) { d.call("fake_fail_kernel", uintptr(n)) }

// SetVersion sets the CUDA version of the driver: 1000*major + 10*minor.
func (d *Driver) SetVersion(v int) { d.call("fake_set_version", uintptr(v)) }

// SetInit makes cuInit return a code.
func (d *Driver) SetInit(code int) { d.call("fake_set_init", uintptr(code)) }

// SetDevices sets the number of GPUs.
func (d *Driver) SetDevices(n int) { d.call("fake_set_devices", uintptr(n)) }

// SetCapability sets the GPUs' compute capability.
func (d *Driver) SetCapability(major, minor int) {
	d.call("fake_set_capability", uintptr(major), uintptr(minor))
}

// SetMemory sets the GPUs' memory in bytes.
func (d *Driver) SetMemory(n uint64) { d.call("fake_set_memory", uintptr(n)) }

// SetEager makes streams execute operations at once instead of as late as possible.
func (d *Driver) SetEager() { d.call("fake_set_eager", 1) }

// SetDelay adds the given number of microseconds to the time of every kernel.
func (d *Driver) SetDelay(microseconds int) { d.call("fake_set_delay", uintptr(microseconds)) }

// RefuseLink makes links fail with a code, as if the driver had no linker. 0 disables this.
func (d *Driver) RefuseLink(code int) { d.call("fake_refuse_link", uintptr(code)) }

// SetRevision makes the driver reject the images of other revisions, which begin at 0.
func (d *Driver) SetRevision(n int) { d.call("fake_set_revision", uintptr(n)) }

// Assembled returns the number of images that links have made.
func (d *Driver) Assembled() int { return d.count("fake_assembled") }

// JITs returns the number of modules that were loaded from PTX.
func (d *Driver) JITs() int { return d.count("fake_jits") }

// Calls returns the number of driver calls so far.
func (d *Driver) Calls() int { return d.count("fake_calls") }

// Trace returns the names of the driver calls so far, in order, of at most the first 16,384.
func (d *Driver) Trace() []string { return strings.Fields(d.text("fake_trace")) }

// Called returns the number of calls of each driver function so far.
func (d *Driver) Called() map[string]int {
	calls := map[string]int{}
	for line := range strings.Lines(d.text("fake_called")) {
		name, n, _ := strings.Cut(strings.TrimSpace(line), " ")
		calls[name], _ = strconv.Atoi(n)
	}
	return calls
}

// Kernels returns the number of kernels that have run.
func (d *Driver) Kernels() int { return d.count("fake_kernels") }

// Launches returns the number of kernels launched, without kernels in graphs.
func (d *Driver) Launches() int { return d.count("fake_launches") }

// GraphLaunches returns the number of graph launches.
func (d *Driver) GraphLaunches() int { return d.count("fake_graph_launches") }

// Used returns the bytes of device memory that are allocated.
func (d *Driver) Used() int { return d.count("fake_used") }

// Live returns the number of objects that the caller has not tried to free.
func (d *Driver) Live() int { return d.count("fake_live") }

// Retained returns the number of times that the context is retained.
func (d *Driver) Retained() int { return d.count("fake_retained") }

// Excused returns the number of context releases that were made to fail.
func (d *Driver) Excused() int { return d.count("fake_excused") }

// Leaked returns the number of objects that were destroyed with their context without having
// been freed.
func (d *Driver) Leaked() int { return d.count("fake_leaked") }

// Complaint returns the first misuse of the driver, or "".
func (d *Driver) Complaint() string { return d.text("fake_complaint") }

// Failed returns the name of the call that FailAt made fail, or "".
func (d *Driver) Failed() string { return d.text("fake_failed") }

// Check fails the test if the driver was misused or an object was not freed.
func (d *Driver) Check() {
	d.tb.Helper()
	if c := d.Complaint(); c != "" {
		d.tb.Errorf("the driver was misused: %s", c)
	}
	if d.Live() != 0 || d.Retained() != 0 || d.Leaked() != 0 {
		d.tb.Errorf("%d objects are left, %d went with their context, which is retained %d times", d.Live(), d.Leaked(), d.Retained())
	}
}

func (d *Driver) count(name string) int { return int(d.call(name)) }

// Release destroys contexts that remained because their release was made to fail.
func (d *Driver) Release() { d.call("fake_release") }

// Race reports whether the race detector is on. With it, pools drop objects at random, so
// allocations cannot be counted.
func Race() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// Forgive clears the misuse that Complaint returns.
func (d *Driver) Forgive() { d.call("fake_forgive") }
