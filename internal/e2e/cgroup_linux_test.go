package e2e_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pianola-engine/pianola"
)

// inCgroup is the cgroup that TestCgroupLimit has started this process in.
var inCgroup = flag.String("in-cgroup", "", "cgroup of this process, for TestCgroupLimit")

// TestCgroupLimit runs a process in a cgroup whose limit is below what the KV caches of its sessions
// would take together. The process must give caches of idle sessions back and end normally, and not be
// killed. TestPressure does the same with a directory that looks like a cgroup.
func TestCgroupLimit(t *testing.T) {
	if *inCgroup != "" {
		fillCgroup(t, *inCgroup)
		return
	}
	dir := makeCgroup(t)
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command(os.Args[0], "-test.run=^TestCgroupLimit$", "-test.v", "-in-cgroup="+dir)
	cmd.Dir = filepath.Join("internal", "e2e") // where TestMain expects to be
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(f.Fd())}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// makeCgroup returns a cgroup with the memory controller, which the test's cleanup removes. It skips
// the test if the system does not let it.
func makeCgroup(t *testing.T) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(mounts)) {
		words := strings.Fields(line)
		if len(words) < 3 || words[2] != "cgroup2" {
			continue
		}
		dir := filepath.Join(words[1], fmt.Sprintf("pianola-test-%d", os.Getpid()))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skipf("no rights to make a cgroup: %v", err)
		}
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		})
		if _, err := os.Stat(filepath.Join(dir, "memory.max")); err != nil {
			t.Skipf("the cgroup has no memory controller: %v", err)
		}
		return dir
	}
	t.Skip("there is no file system of cgroups v2")
	return ""
}

// fillCgroup prefills sessions until their caches would take twice the room that the cgroup has.
func fillCgroup(t *testing.T, dir string) {
	const room, context = 24 << 20, 500
	var released atomic.Uint64
	m := open(t, gopher, pianola.Options{
		Device: pianola.DeviceCPU, Threads: 1, Table: pianola.TableOptions{Context: 512},
		Pressure: &pianola.Pressure{Interval: 2 * time.Millisecond, Notify: func(e pianola.PressureEvent) {
			if e.Err != nil {
				t.Error(e.Err)
			}
			released.Add(e.Released)
		}},
	})
	text, err := os.ReadFile(filepath.Join(dir, "memory.current"))
	if err != nil {
		t.Fatal(err)
	}
	used, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	limit := []byte(strconv.FormatUint(used+room, 10))
	err = os.WriteFile(filepath.Join(dir, "memory.max"), limit, 0o644)
	if swap := filepath.Join(dir, "memory.swap.max"); err == nil {
		if err = os.WriteFile(swap, []byte("0"), 0o644); errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		t.Skipf("no rights to limit the cgroup: %v", err)
	}
	prompt := heldout(t, m, context)
	var sessions []*pianola.Session
	for range 2 * room / (4 << 10 * context) {
		s := newSession(t, m, pianola.SessionOptions{IgnoreStops: true})
		ids(t, s, prompt, pianola.GenerateOptions{MaxTokens: 2})
		sessions = append(sessions, s)
	}
	if _, _, err := sessions[0].Chain(t.Context(), 2); err != nil {
		t.Error(err)
	}
	if released.Load() == 0 {
		t.Error("nothing was released")
	}
}
