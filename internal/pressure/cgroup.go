package pressure

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Cgroup reads the limits of a cgroup v2 and of those that contain it. Its methods may be used by one
// goroutine at a time.
type Cgroup struct {
	dirs   []string // the cgroup's directory, then those of its parents that have the same files
	stalls string   // file with pressure stall information, or ""
	whole  string   // file like /proc/meminfo, or ""
}

// NewCgroup returns the cgroup with a directory. Its parents up to the directory root, which contains
// dir, count too; root may be dir. The error reports a directory without the memory controller.
func NewCgroup(dir, root string) (*Cgroup, error) {
	dir, root = filepath.Clean(dir), filepath.Clean(root)
	if _, err := os.Stat(filepath.Join(dir, "memory.current")); err != nil {
		return nil, fmt.Errorf("cgroup %s: no memory controller: %w", dir, err)
	}
	g := &Cgroup{}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "memory.current")); err == nil {
			g.dirs = append(g.dirs, at)
		}
		if at == root || at == filepath.Dir(at) {
			break
		}
	}
	if file := filepath.Join(dir, "memory.pressure"); exists(file) {
		g.stalls = file
	}
	return g, nil
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// Read implements Source.
func (g *Cgroup) Read() (r Reading, err error) {
	tightest := -1.0
	for _, dir := range g.dirs {
		used, limit, err := usage(dir)
		if errors.Is(err, fs.ErrNotExist) && dir != g.dirs[0] {
			continue // a parent without limits
		}
		if err != nil {
			return r, err
		}
		if share := float64(used) / float64(limit); limit > 0 && share > tightest {
			tightest, r.Used, r.Limit = share, used, limit
		}
	}
	if g.whole != "" {
		used, limit, err := machine(g.whole)
		if err != nil {
			return r, err
		}
		if share := float64(used) / float64(limit); limit > 0 && share > tightest {
			r.Used, r.Limit = used, limit
		}
	}
	if g.stalls != "" {
		r.Stalled, err = stalled(g.stalls)
	}
	return r, err
}

// maxFile bounds the size of the kernel's files.
const maxFile = 1 << 16

func read(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile))
}

// number reads a file with one number, or the word max, which is the largest number.
func number(file string) (uint64, error) {
	b, err := read(file)
	if err != nil {
		return 0, err
	}
	text := string(bytes.TrimSpace(b))
	if text == "max" {
		return math.MaxUint64, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %.40q is not a number", file, text)
	}
	return n, nil
}

// usage returns the bytes that a cgroup uses, without the pages of files that the kernel can reclaim,
// and its limit, or 0 if it has none.
func usage(dir string) (used, limit uint64, err error) {
	limit = math.MaxUint64
	for _, name := range []string{"memory.max", "memory.high"} {
		n, err := number(filepath.Join(dir, name))
		if err != nil && (name == "memory.max" || !errors.Is(err, fs.ErrNotExist)) {
			return 0, 0, err
		}
		if err == nil {
			limit = min(limit, n)
		}
	}
	if limit == math.MaxUint64 {
		return 0, 0, nil
	}
	if used, err = number(filepath.Join(dir, "memory.current")); err != nil {
		return 0, 0, err
	}
	stat, err := fields(filepath.Join(dir, "memory.stat"), "inactive_file", "active_file")
	if err != nil {
		return 0, 0, err
	}
	return used - min(used, stat[0]+stat[1]), max(limit, 1), nil
}

// machine returns the bytes of a machine's memory that are not available, and all.
func machine(file string) (used, limit uint64, err error) {
	kib, err := fields(file, "MemTotal:", "MemAvailable:")
	if err != nil || kib[0] > math.MaxUint64>>10 {
		return 0, 0, err
	}
	return kib[0]<<10 - min(kib[0], kib[1])<<10, kib[0] << 10, nil
}

// fields returns the numbers after names that begin lines of a file, 0 for a name without a line.
func fields(file string, names ...string) ([]uint64, error) {
	b, err := read(file)
	if err != nil {
		return nil, err
	}
	values := make([]uint64, len(names))
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		words := strings.Fields(s.Text())
		for i, name := range names {
			if len(words) < 2 || words[0] != name {
				continue
			}
			if values[i], err = strconv.ParseUint(words[1], 10, 64); err != nil {
				return nil, fmt.Errorf("%s: %s: %.40q is not a number", file, name, words[1])
			}
		}
	}
	return values, nil
}

// stalled returns the time for which some task has waited for memory.
func stalled(file string) (time.Duration, error) {
	b, err := read(file)
	if err != nil {
		return 0, err
	}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		words := strings.Fields(s.Text())
		if len(words) == 0 || words[0] != "some" {
			continue
		}
		for _, w := range words[1:] {
			text, ok := strings.CutPrefix(w, "total=")
			if !ok {
				continue
			}
			us, err := strconv.ParseUint(text, 10, 64)
			if err != nil || us > math.MaxInt64/uint64(time.Microsecond) {
				return 0, fmt.Errorf("%s: total=%.40s is not a time", file, text)
			}
			return time.Duration(us) * time.Microsecond, nil
		}
	}
	return 0, fmt.Errorf("%s: no line some with a total", file)
}

// own returns the source for the process: its cgroup of the file system of cgroups v2 that mounts
// lists, if it has the memory controller, and the machine. proc is the directory of procfs.
func own(proc string) (Source, error) {
	g := &Cgroup{whole: filepath.Join(proc, "meminfo")}
	if dir, root := place(proc); dir != "" {
		if found, err := NewCgroup(dir, root); err == nil {
			g.dirs, g.stalls = found.dirs, found.stalls
		}
	}
	if file := filepath.Join(proc, "pressure", "memory"); g.stalls == "" && exists(file) {
		g.stalls = file
	}
	_, err := g.Read()
	return g, err
}

// place returns the directory of the process's cgroup v2 and that of the root, or "" if there is none.
func place(proc string) (dir, root string) {
	mounts, err := read(filepath.Join(proc, "self", "mounts"))
	if err != nil {
		return "", ""
	}
	for s := bufio.NewScanner(bytes.NewReader(mounts)); s.Scan(); {
		if words := strings.Fields(s.Text()); len(words) > 2 && words[2] == "cgroup2" {
			root = words[1]
		}
	}
	groups, err := read(filepath.Join(proc, "self", "cgroup"))
	if err != nil || root == "" {
		return "", ""
	}
	for s := bufio.NewScanner(bytes.NewReader(groups)); s.Scan(); {
		if name, ok := strings.CutPrefix(s.Text(), "0::"); ok {
			// In a namespace the path may begin with /.., outside of what is mounted.
			return filepath.Join(root, filepath.FromSlash(path.Clean("/"+name))), root
		}
	}
	return "", ""
}
