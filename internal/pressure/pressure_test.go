package pressure

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// write writes files below a directory.
func write(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// group returns the files of a cgroup.
func group(current, limit, high, file string) map[string]string {
	return map[string]string{
		"memory.current": current + "\n", "memory.max": limit + "\n", "memory.high": high + "\n",
		"memory.stat": "anon 12\nfile 700\ninactive_file " + file + "\nactive_file 50\nshmem 3\n",
	}
}

const someStall = "some avg10=0.00 avg60=0.00 avg300=0.00 total=%d\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n"

// TestCgroup reads cgroups with limits of their own, of a parent, and without.
func TestCgroup(t *testing.T) {
	for _, c := range []struct {
		name        string
		own, parent map[string]string
		want        Reading
	}{
		{"a limit", group("1000", "2000", "max", "100"), nil, Reading{Used: 850, Limit: 2000}},
		{"the file cache is larger than what is used", group("100", "2000", "max", "100"), nil, Reading{Used: 0, Limit: 2000}},
		{"memory.high is lower", group("1000", "2000", "1500", "100"), nil, Reading{Used: 850, Limit: 1500}},
		{"no limit", group("1000", "max", "max", "100"), nil, Reading{}},
		{"the limit of the parent", group("1000", "max", "max", "100"), group("3000", "3100", "max", "0"), Reading{Used: 2950, Limit: 3100}},
		{"the tighter limit", group("1000", "1000", "max", "0"), group("3000", "9000", "max", "0"), Reading{Used: 950, Limit: 1000}},
		{"a limit of 0", group("50", "0", "max", "0"), nil, Reading{Used: 0, Limit: 1}},
	} {
		root := t.TempDir()
		dir := filepath.Join(root, "a", "b")
		write(t, dir, c.own)
		if c.parent != nil {
			write(t, filepath.Dir(dir), c.parent)
		}
		g, err := NewCgroup(dir, root)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := g.Read(); err != nil || got != c.want {
			t.Errorf("%s: %+v, %v, want %+v", c.name, got, err, c.want)
		}
		write(t, dir, map[string]string{"memory.pressure": fmt.Sprintf(someStall, 250_000)})
		if g, err = NewCgroup(dir, root); err != nil {
			t.Fatal(err)
		}
		if got, err := g.Read(); err != nil || got.Stalled != 250*time.Millisecond {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
	if _, err := NewCgroup(t.TempDir(), "/"); err == nil {
		t.Error("no error for a directory without the memory controller")
	}
}

// TestDamaged reads files that the kernel would not write. There must be an error and no panic.
func TestDamaged(t *testing.T) {
	for name, text := range map[string]string{
		"memory.current": "a lot", "memory.max": "-1", "memory.high": "1e9", "memory.stat": "inactive_file -5\n", "memory.pressure": "some total=99999999999999999999999\n",
	} {
		dir := t.TempDir()
		files := group("1000", "2000", "1900", "10")
		files["memory.pressure"] = fmt.Sprintf(someStall, 1)
		files[name] = text
		write(t, dir, files)
		g, err := NewCgroup(dir, dir)
		if err != nil {
			t.Fatal(err)
		}
		if r, err := g.Read(); err == nil {
			t.Errorf("%s = %q: %+v", name, text, r)
		}
	}
}

// TestOwn finds the cgroup of the process in a directory like /proc.
func TestOwn(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("paths of Linux")
	}
	base := t.TempDir()
	proc, root := filepath.Join(base, "proc"), filepath.Join(base, "cgroup")
	write(t, proc, map[string]string{
		"meminfo": "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 900 kB\n", "pressure/memory": fmt.Sprintf(someStall, 7),
		"self/mounts": "tmpfs /tmp tmpfs rw 0 0\ncgroup2 " + root + " cgroup2 rw 0 0\n", "self/cgroup": "3:cpuset:/x\n0::/../box/one\n",
	})
	read := func() Reading {
		t.Helper()
		s, err := own(proc)
		if err != nil {
			t.Fatal(err)
		}
		r, err := s.Read()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := read(); r != (Reading{Used: 100 << 10, Limit: 1000 << 10, Stalled: 7 * time.Microsecond}) {
		t.Errorf("without the memory controller: %+v", r)
	}
	write(t, filepath.Join(root, "box", "one"), group("900", "1000", "max", "0"))
	if r := read(); r.Used != 850 || r.Limit != 1000 {
		t.Errorf("with a limit: %+v", r)
	}
	write(t, proc, map[string]string{"meminfo": "MemTotal: 1000 kB\nMemAvailable: 20 kB\n"})
	if r := read(); r.Limit != 1000<<10 {
		t.Errorf("the machine is fuller than the cgroup: %+v", r)
	}
	if runtime.GOOS == "linux" {
		s, err := System()
		if err != nil {
			t.Fatal(err)
		}
		if r, err := s.Read(); err != nil || r.Limit == 0 || r.Used > r.Limit {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

// script is a source that returns readings in turn, then an error.
type script struct {
	list []Reading
	at   int
}

var errOver = errors.New("over")

func (s *script) Read() (Reading, error) {
	if s.at == len(s.list) {
		return Reading{}, errOver
	}
	s.at++
	return s.list[s.at-1], nil
}

// TestWatch checks when levels are reported: when they rise, and every tenth time while they last.
func TestWatch(t *testing.T) {
	use := func(percent int) Reading { return Reading{Used: uint64(percent), Limit: 100} }
	s := &script{list: []Reading{use(99), use(10), use(86), use(86), use(96), use(86), use(20), use(85), {Kernel: Critical}}}
	for range 20 {
		s.list = append(s.list, use(97))
	}
	var got []string
	err := Watch(t.Context(), s, time.Microsecond, func(l Level, r Reading) { got = append(got, fmt.Sprintf("%d %v", s.at-1, l)) })
	want := []string{"2 moderate", "4 critical", "7 moderate", "8 critical", "18 critical", "28 critical"}
	if !errors.Is(err, errOver) || !slices.Equal(got, want) {
		t.Errorf("%s; %v, want %s", strings.Join(got, ", "), err, strings.Join(want, ", "))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Watch(ctx, &script{list: s.list}, time.Hour, func(Level, Reading) {}); err != nil {
		t.Errorf("%v", err)
	}
	for _, c := range []struct {
		stall time.Duration // in a second
		want  Level
	}{{0, None}, {40 * time.Millisecond, None}, {60 * time.Millisecond, Moderate}, {300 * time.Millisecond, Critical}} {
		if got := (Reading{Stalled: time.Minute + c.stall}).level(Reading{Stalled: time.Minute}, time.Second); got != c.want {
			t.Errorf("a stall of %v: %v", c.stall, got)
		}
	}
}

// FuzzFields reads random files of the kernel.
func FuzzFields(f *testing.F) {
	f.Add([]byte(fmt.Sprintf(someStall, 5)))
	f.Add([]byte("inactive_file 5\nactive_file\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		file := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		_, _ = stalled(file)
		_, _ = fields(file, "inactive_file", "active_file")
		_, _ = number(file)
	})
}
