package cuda

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pianola-engine/pianola/internal/cuda/fake"
	"github.com/pianola-engine/pianola/replay"
)

// opening describes what happened when a device loaded a model.
type opening struct {
	assembled, jits int
	tokens          []uint32
}

// openCached loads a model on a new device, decodes tokens and closes the device.
func openCached(t *testing.T, drv *fake.Driver, mode, dir string, mods *Modules, m model) (o opening) {
	t.Helper()
	o.assembled, o.jits = -drv.Assembled(), -drv.JITs()
	d, err := New(Options{Library: drv.Path, Mode: mode, Modules: mods, Cache: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Load(context.Background(), m.t, m.src, replay.LoadOptions{}); err != nil {
		t.Fatal(err)
	}
	o.tokens = chains(t, d, begun(t, d), 5, 5)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	drv.Check()
	o.assembled += drv.Assembled()
	o.jits += drv.JITs()
	return o
}

// files returns the paths of the files in a directory.
func files(t *testing.T, dir string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestCache opens a model several times, in every mode. The first opening must assemble each
// module, a second must read no text and assemble nothing, and every change of the cache, the
// driver or the kernels must have its effect. The tokens must not depend on it.
func TestCache(t *testing.T) {
	m := tiny(t, "llama")
	for _, mode := range Modes() {
		drv, dir := fake.New(t), filepath.Join(t.TempDir(), "pianola", "cuda")
		mods, read := fakeModules(), 0
		text := &mods.Texts[0]
		info, err := text.info()
		if err != nil {
			t.Fatal(err)
		}
		text.Describe = func() (TextInfo, error) { return info, nil }
		text.Read = func() ([]byte, error) { read++; return fake.PTX(fake.Kernels()...), nil }
		plain := openCached(t, drv, mode, "", mods, m)
		if plain.assembled != 0 || plain.jits == 0 || read != 1 {
			t.Fatalf("%s: without a cache: %+v, read %d times", mode, plain, read)
		}
		read = 0
		want := func(what string, assembled, jits int) {
			t.Helper()
			o := openCached(t, drv, mode, dir, mods, m)
			if o.assembled != assembled || o.jits != jits || !slices.Equal(o.tokens, plain.tokens) {
				t.Errorf("%s: %s: %+v, want %d assembled, %d from PTX, tokens %v", mode, what, o, assembled, jits, plain.tokens)
			}
			if (read > 0) != (assembled+jits > 0) || read > 1 {
				t.Errorf("%s: %s: the text is read %d times", mode, what, read)
			}
			read = 0
		}
		all := plain.jits
		want("first", all, 0)
		want("second", 0, 0)
		stored := files(t, dir)
		if len(stored) != all {
			t.Fatalf("%s: files %v, want %d", mode, stored, all)
		}
		good, err := os.ReadFile(stored[0])
		if err != nil {
			t.Fatal(err)
		}
		damaged := bytes.Clone(good)
		damaged[len(damaged)-2] ^= 1
		for what, b := range map[string][]byte{"damaged": damaged, "truncated": good[:len(good)/2], "empty": nil, "foreign": []byte("\x7fELF foreign")} {
			if err := os.WriteFile(stored[0], b, 0o600); err != nil {
				t.Fatal(err)
			}
			want(what, 1, 0)
			if b, err := os.ReadFile(stored[0]); err != nil || !bytes.Equal(b, good) {
				t.Errorf("%s: a %s file is not replaced: %v", mode, what, err)
			}
		}
		drv.SetVersion(12080)
		want("another driver version", all, 0)
		drv.SetVersion(13000)
		drv.SetCapability(8, 9)
		want("another GPU", all, 0)
		drv.SetCapability(9, 0)
		want("the first driver and GPU", 0, 0)
		drv.SetRevision(1)
		want("a driver that refuses the cached code", all, 0)
		want("the same driver again", 0, 0)
		info.Hash[0]++
		want("other kernels", all, 0)
	}
}

// TestCacheRefused opens a model on a driver without a linker, which must load PTX and keep
// nothing.
func TestCacheRefused(t *testing.T) {
	m := tiny(t, "llama")
	drv, dir := fake.New(t), t.TempDir()
	drv.RefuseLink(801)
	for range 2 {
		if o := openCached(t, drv, "resident", dir, fakeModules(), m); o.assembled != 0 || o.jits == 0 || len(files(t, dir)) != 0 {
			t.Errorf("%+v, files %v", o, files(t, dir))
		}
	}
}

// TestCacheUnwritable opens a model with directories that cannot be made or written.
func TestCacheUnwritable(t *testing.T) {
	m := tiny(t, "llama")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	readOnly := t.TempDir() // root may write to it nevertheless
	if err := os.Chmod(readOnly, 0o500); err != nil {
		t.Fatal(err)
	}
	drv := fake.New(t)
	for _, dir := range []string{file, filepath.Join(file, "below"), "/proc/nonexistent/pianola", readOnly} {
		for range 2 {
			if o := openCached(t, drv, "record", dir, fakeModules(), m); o.assembled == 0 && len(files(t, dir)) == 0 || o.jits != 0 {
				t.Errorf("%s: %+v", dir, o)
			}
		}
	}
}

// TestCacheConcurrent opens devices of several drivers, as several processes would, with one empty
// cache. Each must work, and the next opening must assemble nothing.
func TestCacheConcurrent(t *testing.T) {
	m := tiny(t, "llama")
	dir := t.TempDir()
	drivers := []*fake.Driver{fake.New(t), fake.New(t), fake.New(t)}
	errs := make([]error, 2*len(drivers))
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = useCached(drivers[i/2], "resident", m, dir) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if o := openCached(t, drivers[0], "resident", dir, fakeModules(), m); o.assembled != 0 || o.jits != 0 {
		t.Errorf("after concurrent openings: %+v", o)
	}
	for _, f := range files(t, dir) {
		if filepath.Ext(f) != ".cubin" {
			t.Errorf("a temporary file is left: %s", f)
		}
	}
}

// TestCacheErrors checks the errors of texts that cannot be assembled, which must be those of a
// device without a cache, and of a cancelled Load.
func TestCacheErrors(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	info, err := fakeModules().Texts[0].info()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		read func() ([]byte, error)
		want string
	}{
		"assembly": {func() ([]byte, error) {
			return bytes.Replace(fake.PTX("rmsnorm", "patch"), []byte("ret;"), []byte("error;"), 1), nil
		}, "cuda: kernels all, sm_70: cuModuleLoadDataEx: CUDA_ERROR_INVALID_PTX (218): line 1: this is no PTX"},
		"PTX":       {func() ([]byte, error) { return []byte("nonsense"), nil }, `cuda: kernels all, sm_70: ptx: line 1: "nonsense" outside of an entry`},
		"no entry":  {func() ([]byte, error) { return fake.PTX("patch"), nil }, "cuda: command 0 (the.norm): entry rmsnorm: cuModuleGetFunction: CUDA_ERROR_NOT_FOUND (500)"},
		"unread":    {func() ([]byte, error) { return nil, os.ErrNotExist }, "cuda: kernels all, sm_70: file does not exist"},
		"cancelled": {func() ([]byte, error) { cancel(); return fake.PTX("rmsnorm", "patch"), nil }, "cuda: load: context canceled"},
	} {
		tab, src := uploads(t, 16)
		drv, mods := fake.New(t), fakeModules()
		mods.Texts[0].Read, mods.Texts[0].Describe = c.read, func() (TextInfo, error) { return info, nil }
		d, err := New(Options{Library: drv.Path, Modules: mods, Cache: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		on := context.Background()
		if name == "cancelled" {
			on = ctx
		}
		if err := d.Load(on, tab, src, replay.LoadOptions{}); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %s", name, err, c.want)
		}
		if err := d.Close(); err != nil {
			t.Errorf("%s: Close: %v", name, err)
		}
		drv.Check()
	}
}

// TestBrief checks that a session of the warm-up causes graphs of one token only, and others all.
func TestBrief(t *testing.T) {
	d := load(t, fake.New(t), "record", tiny(t, "llama"))
	for _, warming := range []bool{true, false} {
		d.warming.Store(warming)
		s, _, err := backend{d}.Open()
		if err == nil {
			err = d.enter()
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := range d.table.Programs {
			if e := d.mode.ready(d, i, s.brief); e != nil {
				t.Error(e)
			}
		}
		if d.leave(&err); err != nil {
			t.Error(err)
		}
		longest := 0
		for _, graphs := range d.recordings.of {
			for _, g := range graphs {
				longest = max(longest, g.tokens)
			}
		}
		if want := map[bool]int{true: 1, false: 64}[warming]; longest != want {
			t.Errorf("warming %v: the longest graph has %d tokens, want %d", warming, longest, want)
		}
		if err := (backend{d}).Free(s); err != nil {
			t.Error(err)
		}
	}
}
