//go:build softmetal

package soft

/*
#cgo CFLAGS: -O2 -g -fblocks -isystem ${SRCDIR}/stub -Wall -Wextra -Werror -Wno-nullability-completeness
#cgo LDFLAGS: -lobjc -lBlocksRuntime -lpthread -ldl
#include <stdlib.h>
#include "soft.h"
*/
import "C"

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/pianola-engine/pianola/internal/decl"
)

// Start builds the emulator of the repository's kernels, unless another test
// has, and makes it what the software Metal executes. root is the repository.
// Before it, there is no Metal device.
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
	lib, err := build(root)
	if err != nil {
		return err
	}
	path := C.CString(lib)
	defer C.free(unsafe.Pointer(path))
	if why := C.soft_load(path); why != nil {
		return fmt.Errorf("soft: %s: %s", lib, C.GoString(why))
	}
	var made struct{ Kernels []kernel }
	b, err := os.ReadFile(filepath.Join(root, "shaders", "manifest.json"))
	if err == nil {
		err = json.Unmarshal(b, &made)
	}
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

// kernel is a kernel of the manifest.
type kernel struct {
	Name       string
	MaxThreads int    `json:"max_threads"`
	TGMem      string `json:"threadgroup_memory"`
	Bindings   []struct{ Name, Role string }
	Constants  []constant
}

type constant struct {
	Name   string
	Number int
}

// build returns the emulator's file, which is built once for each state of the
// sources.
func build(root string) (string, error) {
	sum := sha256.New()
	for _, dir := range []string{"shaders", "internal/decl"} {
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
	cmd := exec.Command("go", "run", "./internal/shadergen", "-host", made)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("soft: go run ./internal/shadergen -host: %w\n%s", err, out)
	}
	if err := os.Rename(made, lib); err != nil {
		return "", fmt.Errorf("soft: %w", err)
	}
	return lib, nil
}

// add tells the pipelines what they check of a kernel.
func add(k *kernel) error {
	var c C.soft_kernel
	if len(k.Name) >= len(c.name) || len(k.Bindings) > len(c.writes) || len(k.Constants) > len(c.numbers) {
		return fmt.Errorf("soft: kernel %s is too large", k.Name)
	}
	for i := range k.Name {
		c.name[i] = C.char(k.Name[i])
	}
	c.max_threads, c.bindings, c.constants = C.uint32_t(k.MaxThreads), C.uint32_t(len(k.Bindings)), C.uint32_t(len(k.Constants))
	if k.TGMem != "" {
		c.threadgroup_memory = 1
	}
	for i, n := range k.Constants {
		c.numbers[i] = C.uint32_t(n.Number)
	}
	declared := &decl.Kernel{}
	if id, ok := decl.ByName(k.Name); ok {
		declared, _ = decl.Lookup(id)
	}
	for i, b := range k.Bindings {
		if c.only_if[i] = -1; b.Role != "r" {
			c.writes[i] = 1
		}
		c.or_if[i] = -1
		if i >= len(declared.Bindings) {
			continue
		}
		for j, name := range declared.Bindings[i].Needs() {
			at := C.int32_t(slices.IndexFunc(k.Constants, func(n constant) bool { return n.Name == name }))
			if j == 0 {
				c.only_if[i] = at
			} else {
				c.or_if[i] = at
			}
		}
	}
	C.soft_add_kernel(&c)
	return nil
}

// SetOrder makes what nothing orders run as it was encoded; SetRandomOrder, at
// random.
func SetOrder()                  { C.soft_order(C.soft_as_encoded, 0) }
func SetRandomOrder(seed uint64) { C.soft_order(C.soft_random, C.uint64_t(seed)) }

// IgnoreFences makes passes run in any order.
func IgnoreFences(on bool) { C.soft_ignore_fences(flag(on)) }

// SetNull makes devices that are opened from now on do nothing.
func SetNull(on bool) { C.soft_null(flag(on)) }

// SetResidency says whether there are residency sets, as at first, or this is
// macOS 14.
func SetResidency(on bool) { C.soft_residency(flag(on)) }

// SetTimestamps says where the time can be taken: 0: nowhere, 1: where encoders
// begin and end, as at first, 2: between commands too.
func SetTimestamps(where int) { C.soft_timestamps(C.int(where)) }

// SetDelay makes each command take so many microseconds more.
func SetDelay(us int) { C.soft_delay(C.unsigned(us)) }

// SetLimits sets the length of the longest buffer and how many bytes there are;
// 0: as at first.
func SetLimits(buffer, memory uint64) { C.soft_limits(C.uint64_t(buffer), C.uint64_t(memory)) }

func flag(on bool) C.int {
	if on {
		return 1
	}
	return 0
}

// FailAt makes the n-th call from now on that may fail do so, once: it returns
// nil, with an error where the method has one, or, where code is not 0 and the call is commit, its
// command buffer ends with that error. 0: none. A device that was removed is back.
func FailAt(n, code int) { C.soft_fail(C.uint64_t(n), C.int(code)) }

// Failed returns what FailAt made fail, or "".
func Failed() string { return C.GoString(C.soft_failed()) }

// Fallible counts calls that may fail.
func Fallible() int { return int(C.soft_fallible()) }

// Live returns how many objects and how many bytes of buffers there are.
func Live() (objects, bytes int) { return int(C.soft_objects()), int(C.soft_bytes()) }

// Violation returns the first broken rule since the last call, or nil.
func Violation() error {
	if s := C.GoString(C.soft_violation()); s != "" {
		return errors.New("soft: " + s)
	}
	return nil
}

// Misuse breaks a rule, by number, and returns its name, or "" behind the last.
func Misuse(rule int) string {
	if s := C.soft_misuse(C.unsigned(rule)); s != nil {
		return C.GoString(s)
	}
	return ""
}

// Copied counts the bytes that copies have moved.
func Copied() int { return int(C.soft_copied()) }

// Compiled counts pipelines that no archive had.
func Compiled() int { return int(C.soft_compiled()) }

// Calls counts calls by selector.
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

// Redundant counts calls that set what was set.
func Redundant() int { return int(C.soft_redundant()) }

// Dispatches counts commands that have run.
func Dispatches() int { return int(C.soft_dispatches()) }

// InFlight returns how many command buffers were in flight at most since it was
// last asked.
func InFlight() int { return int(C.soft_most()) }
