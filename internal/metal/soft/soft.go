//go:build softmetal

package soft

/*
#cgo CFLAGS: -O2 -g -fblocks -isystem ${SRCDIR}/stub -Wall -Wextra -Werror -Wno-nullability-completeness
#cgo LDFLAGS: -lobjc -lBlocksRuntime -lpthread -ldl
#include <stdlib.h>
#include "soft.h"

double softPrice(char *kernel, uint32_t *specs, void *params, void *second, uint32_t *groups, uint32_t threads);
*/
import "C"

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/shaders"
)

// Start builds the emulator of the repository's kernels in Apple's configuration, unless another
// test has, and makes the software Metal execute it. root is the repository. Before Start, there is no Metal device.
func Start(root string) error { return start(root) }

var start = func() func(string) error {
	var once sync.Once
	var err error
	return func(root string) error {
		once.Do(func() { err = load(root) })
		return err
	}
}()

func load(root string) error {
	if err := open(root, "shaders"); err != nil {
		return err
	}
	made, err := shaders.Made()
	if err != nil {
		return fmt.Errorf("soft: %w", err)
	}
	for i := range made.Kernels {
		if err := add(&made.Kernels[i]); err != nil {
			return err
		}
	}
	return nil
}

// A ProgramKernel is a kernel of a program that does Metal work of its own.
type ProgramKernel struct {
	Name       string
	MaxThreads int
	Writes     []bool // for each buffer argument from index 0: whether the kernel writes to it
}

// Add makes the software Metal execute the kernels of a program too, after Start. Their Metal
// sources are those in dir, a folder of the repository. The kernels' names must differ from those
// of the repository's kernels.
func Add(root, dir string, kernels ...ProgramKernel) error {
	if err := Start(root); err != nil {
		return err
	}
	if err := open(root, dir); err != nil {
		return err
	}
	for _, k := range kernels {
		var c C.soft_kernel
		if len(k.Name) >= len(c.name) || len(k.Writes) > len(c.writes) {
			return fmt.Errorf("soft: kernel %s is too large", k.Name)
		}
		for i := range k.Name {
			c.name[i] = C.char(k.Name[i])
		}
		c.max_threads, c.bindings = C.uint32_t(k.MaxThreads), C.uint32_t(len(k.Writes))
		for i, writes := range k.Writes {
			c.only_if[i], c.or_if[i] = -1, -1
			if writes {
				c.writes[i] = 1
			}
		}
		C.soft_add_kernel(&c)
	}
	return nil
}

// open builds the emulator of the kernels in a folder of the repository and opens it.
func open(root, dir string) error {
	lib, err := build(root, dir)
	if err != nil {
		return err
	}
	path := C.CString(lib)
	defer C.free(unsafe.Pointer(path))
	if why := C.soft_load(path); why != nil {
		return fmt.Errorf("soft: %s: %s", lib, C.GoString(why))
	}
	return nil
}

// types are the quantised weight types of the models in tests. With all types, building the emulator
// takes minutes.
const types = "Q8_0,Q4_0,MXFP4"

// build returns the path of the emulator of the kernels in a folder, which is built once per state
// of the sources.
func build(root, kernels string) (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, kernels)
	for _, dir := range []string{"shaders", "internal/decl", kernels} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() || strings.HasSuffix(path, ".gz") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			b, err := os.ReadFile(path)
			fmt.Fprintf(sum, "%s %d\n", path, len(b))
			sum.Write(b)
			return err
		})
		if err != nil {
			return "", fmt.Errorf("soft: %w", err)
		}
	}
	lib := filepath.Join(os.TempDir(), fmt.Sprintf("pianola-softmetal-%d-%x.so", os.Getuid(), sum.Sum(nil)[:12]))
	if _, err := os.Stat(lib); err == nil {
		return lib, nil
	}
	dir, err := os.MkdirTemp("", "pianola-softmetal-")
	if err != nil {
		return "", fmt.Errorf("soft: %w", err)
	}
	defer os.RemoveAll(dir)
	made := filepath.Join(dir, "emulator.so")
	args := []string{"run", "./internal/shadergen", "-apple", "-types", types, "-host", made}
	if kernels != "shaders" {
		args = append(args, "-sources", kernels, "-undeclared")
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("soft: go run ./internal/shadergen -host: %w\n%s", err, out)
	}
	if err := os.Rename(made, lib); err != nil {
		return "", fmt.Errorf("soft: %w", err)
	}
	return lib, nil
}

// add registers the properties of a kernel that pipelines check.
func add(k *shaders.Kernel) error {
	var c C.soft_kernel
	bindings, constants := decl.Of(k.Name).Bindings, decl.Of(k.Name).Specs
	if len(k.Name) >= len(c.name) || len(bindings) > len(c.writes) || len(constants) > len(c.numbers) {
		return fmt.Errorf("soft: kernel %s is too large", k.Name)
	}
	for i := range k.Name {
		c.name[i] = C.char(k.Name[i])
	}
	c.max_threads, c.bindings, c.constants = C.uint32_t(k.MaxThreads), C.uint32_t(len(bindings)), C.uint32_t(len(constants))
	if decl.Of(k.Name).TGMem != "" {
		c.threadgroup_memory = 1
	}
	for i, s := range constants {
		n, _ := decl.FunctionConstant(s.Name)
		c.numbers[i] = C.uint32_t(n)
	}
	for i := range bindings {
		b := &bindings[i]
		if b.Role.Writes() {
			c.writes[i] = 1
		}
		c.only_if[i], c.or_if[i] = -1, -1
		for j, name := range b.Needs() {
			at, _ := decl.Of(k.Name).Spec(name)
			if j == 0 {
				c.only_if[i], c.values[i] = C.int32_t(at), enabling(b, name)
			} else {
				c.or_if[i] = C.int32_t(at)
			}
		}
	}
	C.soft_add_kernel(&c)
	return nil
}

// enabling returns the values below 32 of a constant, one bit each, with which a kernel has a binding if its
// other constants are 0.
func enabling(b *decl.Binding, constant string) (bits C.uint32_t) {
	for v := range 32 {
		if b.Present(oneConstant{constant, uint64(v)}) {
			bits |= 1 << v
		}
	}
	return bits
}

// oneConstant is the decl.Env of a constant; others are 0.
type oneConstant struct {
	name  string
	value uint64
}

// Value implements decl.Env.
func (c oneConstant) Value(name string) (uint64, bool) {
	if name == c.name {
		return c.value, true
	}
	return 0, true
}

// SetOrder runs unordered commands as encoded; SetRandomOrder runs them in a random order.
func SetOrder()                  { C.soft_order(C.soft_as_encoded, 0) }
func SetRandomOrder(seed uint64) { C.soft_order(C.soft_random, C.uint64_t(seed)) }

// IgnoreFences makes passes run in any order.
func IgnoreFences(on bool) { C.soft_ignore_fences(flag(on)) }

// SetNull makes devices opened from now on do nothing.
func SetNull(on bool) { C.soft_null(flag(on)) }

// SetResidency sets whether residency sets are available (the default) or not, as on macOS 14.
func SetResidency(on bool) { C.soft_residency(flag(on)) }

// SetTimestamps sets where timestamps can be sampled: 0 means nowhere, 1 (the default) at the
// beginning and end of encoders, 2 also between commands.
func SetTimestamps(where int) { C.soft_timestamps(C.int(where)) }

// SetDelay delays each command by the given number of microseconds.
func SetDelay(us int) { C.soft_delay(C.unsigned(us)) }

// A Command is a command that the software Metal executes.
type Command struct {
	Kernel  string
	Specs   [C.soft_max_constants]uint32
	Params  [decl.ParamBytes]byte
	Second  [decl.SecondBytes]byte
	Groups  [3]uint32 // threadgroups
	Threads uint32    // threads in a threadgroup
}

// A Clock makes the GPU's time virtual.
type Clock struct {
	// Price returns the duration of a command in seconds. It is called by one thread of each queue.
	Price    func(c *Command) float64
	Watchdog float64 // duration in seconds after which a command buffer ends with a timeout
	Idle     bool    // do not execute commands, except the kernel patch
}

// clock is the clock in use, or nil.
var clock atomic.Pointer[Clock]

// SetClock makes the GPU's time that of a clock, or real if c is nil. Nothing may be in flight.
func SetClock(c *Clock) {
	clock.Store(c)
	if c == nil {
		C.soft_clock(nil, 0, 0)
		return
	}
	C.soft_clock(C.soft_price(C.softPrice), C.double(c.Watchdog), flag(!c.Idle))
}

//export softPrice
func softPrice(kernel *C.char, specs *C.uint32_t, params, second unsafe.Pointer, groups *C.uint32_t, threads C.uint32_t) C.double {
	c := Command{
		Kernel: C.GoString(kernel), Specs: *(*[C.soft_max_constants]uint32)(unsafe.Pointer(specs)),
		Params: *(*[decl.ParamBytes]byte)(params), Groups: *(*[3]uint32)(unsafe.Pointer(groups)), Threads: uint32(threads),
	}
	if second != nil {
		c.Second = *(*[decl.SecondBytes]byte)(second)
	}
	return C.double(clock.Load().Price(&c))
}

// Longest returns the virtual duration in seconds of the longest command buffer since the last call,
// and Buffers the number of command buffers that have ended since the last call.
func Longest() float64 { return float64(C.soft_longest()) }
func Buffers() int     { return int(C.soft_buffers()) }

// SetLimits sets the length of the longest buffer and the total memory in bytes; 0 restores the
// default.
func SetLimits(buffer, memory uint64) { C.soft_limits(C.uint64_t(buffer), C.uint64_t(memory)) }

func flag(on bool) C.int {
	if on {
		return 1
	}
	return 0
}

// FailAt makes the n-th fallible call from now on fail, once: it returns nil, with an error if
// the method has one; or, if code is not 0 and the call is commit, its command buffer ends with
// that error. If n is 0, no call fails. A removed device is restored.
func FailAt(n, code int) { C.soft_fail(C.uint64_t(n), C.int(code)) }

// Failed returns the call that FailAt made fail, or "".
func Failed() string { return C.GoString(C.soft_failed()) }

// Fallible returns the number of calls that could have failed.
func Fallible() int { return int(C.soft_fallible()) }

// Live returns the number of live objects and of bytes in buffers.
func Live() (objects, bytes int) { return int(C.soft_objects()), int(C.soft_bytes()) }

// Violation returns the first broken rule since the last call, or nil.
func Violation() error {
	if s := C.GoString(C.soft_violation()); s != "" {
		return errors.New("soft: " + s)
	}
	return nil
}

// Misuse breaks a rule, by number, and returns its name, or "" after the last rule.
func Misuse(rule int) string {
	if s := C.soft_misuse(C.unsigned(rule)); s != nil {
		return C.GoString(s)
	}
	return ""
}

// Copied returns the number of bytes copied.
func Copied() int { return int(C.soft_copied()) }

// Compiled returns the number of pipelines that were not found in an archive.
func Compiled() int { return int(C.soft_compiled()) }

// Calls returns the number of calls of each selector.
func Calls() map[string]int {
	calls := map[string]int{}
	for i := 0; ; i++ {
		var n C.uint64_t
		s := C.soft_call(C.unsigned(i), &n)
		if s == nil {
			return calls
		}
		calls[C.GoString(s)] += int(n)
	}
}

// Redundant returns the number of calls that set a value that was already set.
func Redundant() int { return int(C.soft_redundant()) }

// Dispatches returns the number of commands that have run.
func Dispatches() int { return int(C.soft_dispatches()) }

// InFlight returns the largest number of command buffers in flight since the last call.
func InFlight() int { return int(C.soft_most()) }
