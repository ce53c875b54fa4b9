//go:build softmetal

package metal_test

import (
	"bytes"
	"errors"
	"flag"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/metal/soft"
	"github.com/pianola-engine/pianola/internal/sampler"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/metal"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/weights"
)

// single returns a model whose programs all have one row, which is fast on the emulator.
func single(tb testing.TB, noFuse bool) model {
	tb.Helper()
	dir, err := weights.OpenDirectory(testmodels.Path(tb, filepath.Join("..", "..", "testdata", "tiny", "qwen3")))
	if err != nil {
		tb.Fatal(err)
	}
	cfg, err := arch.Builtin().Read(dir)
	if err != nil {
		tb.Fatal(err)
	}
	c, err := chip.Lookup("m4-pro")
	if err != nil {
		tb.Fatal(err)
	}
	small(c)
	c.PrefillChunk, c.LogitsRows = 1, 1
	t, err := compiler.Compile(compiler.Input{Config: cfg, Tensors: dir, Chip: c, Options: compiler.Options{AllLogits: true, Context: 96, NoFuse: noFuse}})
	if err != nil {
		tb.Fatal(err)
	}
	quick(tb, t)
	src, err := dir.Map()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := src.Close(); err != nil {
			tb.Error(err)
		}
	})
	return model{t, src}
}

// medley returns submissions of all programs, such that each program follows several others.
func medley(t *table.Table, id replay.SessionID) (list []*replay.Submission) {
	at := uint32(0)
	for _, names := range [][]string{
		{table.ProgramPrefill, table.ProgramHead, table.ProgramDecode, table.ProgramDecode},
		{table.ProgramPrefill, table.ProgramLogits},
		{table.ProgramPrefill, table.ProgramHead, table.ProgramPrefill, table.ProgramDecode, table.ProgramPrefill, table.ProgramPrefill, table.ProgramHead},
		{table.ProgramDecode, table.ProgramPrefill, table.ProgramHead, table.ProgramLogits},
		{table.ProgramLogits, table.ProgramDecode},
		{table.ProgramPrefill, table.ProgramSampleHead, table.ProgramSample, table.ProgramDecode, table.ProgramSample},
	} {
		s := &replay.Submission{Session: id}
		for _, name := range names {
			_, p, _ := t.Program(name)
			moves := name == table.ProgramPrefill || name == table.ProgramDecode || name == table.ProgramSample
			pos := at
			if !moves {
				pos = at - 1
			}
			s.Runs = append(s.Runs, replay.Run{Program: uint32(p), Count: 1, Step: table.Step{
				Position: pos, KVRow: pos, KVLen: pos + 1, TokenIndex: pos, Rows: 1,
			}})
			if moves {
				at++
			}
		}
		list = append(list, s)
	}
	return list
}

// whole returns options with which a command buffer contains a whole submission.
func whole(tb testing.TB, mode string) metal.Options {
	tb.Helper()
	o := options(tb, mode)
	o.ChainTime = time.Minute
	return o
}

// left replays the medley on a new device and returns the activations.
func left(tb testing.TB, o metal.Options, m model) []byte {
	tb.Helper()
	d, err := metal.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			tb.Error(err)
		}
	}()
	if err := d.Load(bg, m.t, m.src, replay.LoadOptions{}); err != nil {
		tb.Fatal(err)
	}
	return again(tb, d)
}

// again replays the medley in a new session. It returns the activations after each submission.
func again(tb testing.TB, d *metal.Device) (all []byte) {
	tb.Helper()
	id := begun(tb, d)
	// Sample with every stage enabled, so that all commands of the sampler do work.
	settings := sampler.Settings{
		Seed: 5, InvTemperature: 1, TopK: 60, TopP: 0xe0000000, TopPScale: math.Log2E, MinPDrop: 6,
		Repetition: 1.2, Presence: 0.1, Frequency: 0.1, Window: 16,
	}
	var words [sampler.Words * 4]byte
	settings.Put(&words)
	_, sampler, _ := d.Table().Slot(table.SlotSampler)
	if err := d.Write(id, sampler, 0, words[:]); err != nil {
		tb.Fatal(err)
	}
	for _, sub := range medley(d.Table(), id) {
		if _, err := submit(d, sub); err != nil {
			tb.Fatal(err)
		}
		all = append(all, activations(tb, d, id)...)
	}
	if err := d.CloseSession(id); err != nil {
		tb.Fatal(err)
	}
	return all
}

// TestOrder runs the commands between two barriers in 100 random orders, with and without
// fusion. The results must not change.
func TestOrder(t *testing.T) {
	n := uint64(0)
	for _, noFuse := range []bool{false, true} {
		checked(t)
		m := single(t, noFuse)
		var want []byte
		for _, mode := range metal.Modes() {
			soft.SetOrder()
			d := load(t, whole(t, mode), m)
			if got := again(t, d); want == nil {
				want = got
			} else if !bytes.Equal(got, want) {
				t.Errorf("no fusion %t: mode %s leaves other activations", noFuse, mode)
			}
			for range 25 { // of 4 tables and modes: 100
				n++
				soft.SetRandomOrder(n)
				if got := again(t, d); !bytes.Equal(got, want) {
					t.Errorf("no fusion %t, %s, seed %d: other activations", noFuse, mode, n)
				}
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
		for _, mode := range metal.Modes() {
			o := whole(t, mode)
			o.Serial = true
			soft.SetRandomOrder(7)
			if !bytes.Equal(left(t, o, m), want) {
				t.Errorf("no fusion %t, %s: commands in their order leave other activations", noFuse, mode)
			}
		}
	}
}

// TestBarriers removes each barrier of a table in turn. Some order must then give other
// activations.
func TestBarriers(t *testing.T) {
	m := single(t, false)
	checked(t)
	want := left(t, whole(t, "encode"), m)
	for _, mode := range metal.Modes() {
		o := whole(t, mode).ForTest(0, true, true)
		barriers, seeds := 0, 0
		for i := range m.t.Cmds {
			first := slices.ContainsFunc(m.t.Programs, func(p table.Program) bool { return int(p.First) == i })
			// A recorded program follows its patch, which has barriers.
			if m.t.Cmds[i].Barrier == 0 || first && mode == "record" {
				continue
			}
			barriers++
			// The filter's input determines the addresses to which it writes. Without the
			// barrier it may read garbage and write anywhere, so it runs in a separate process,
			// which may crash.
			if m.t.Cmds[i].Kernel == kernels.SampleFilter {
				if !apart(t, mode, i) {
					t.Errorf("%s: command %d (%s): without its barrier nothing changes in a separate process", mode, i, m.t.Label(i))
				}
				continue
			}
			n, seen := without(t, o, m, want, i, 40)
			seeds += n
			if !seen {
				t.Errorf("%s: command %d (%s): without its barrier nothing changes", mode, i, m.t.Label(i))
			}
		}
		if apart(t, mode, -1) {
			t.Errorf("%s: a separate process gives other activations with all barriers", mode)
		}
		t.Logf("%s: %d barriers, %d seeds", mode, barriers, seeds)
		if barriers < 10 {
			t.Errorf("%s: %d barriers", mode, barriers)
		}
	}
}

// without replays the medley in the given number of random orders until the activations differ,
// without the barrier of command cmd; -1 removes none.
func without(t *testing.T, o metal.Options, m model, want []byte, cmd, most int) (seeds int, seen bool) {
	t.Helper()
	damaged := *m.t
	damaged.Cmds = slices.Clone(m.t.Cmds)
	if cmd >= 0 {
		damaged.Cmds[cmd].Barrier = 0
	}
	d := load(t, o, model{&damaged, m.src})
	for seeds < most && !seen {
		seeds++
		soft.SetRandomOrder(uint64(seeds))
		seen = !bytes.Equal(again(t, d), want)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	return seeds, seen
}

// Arguments of the process that apart starts.
var (
	withoutBarrier = flag.Int("without-barrier", -1, "the command that TestApart takes the barrier of; -1: none")
	apartMode      = flag.String("apart-mode", "", "the mode of TestApart")
)

// apart runs without in a separate process. It reports whether the activations differed or the
// process crashed.
func apart(t *testing.T, mode string, cmd int) bool {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(self, "-test.run", "^TestApart$", "-without-barrier", strconv.Itoa(cmd), "-apart-mode", mode).CombinedOutput()
	var end *exec.ExitError
	if err != nil && !errors.As(err, &end) {
		t.Fatalf("%v\n%s", err, out)
	}
	return err != nil
}

// TestApart is the test that apart runs.
func TestApart(t *testing.T) {
	if *apartMode == "" {
		t.Skip("TestBarriers runs this test in a separate process")
	}
	m := single(t, false)
	want := left(t, whole(t, "encode"), m)
	seeds := 40
	if *withoutBarrier < 0 {
		seeds = 3 // with all barriers, no seed may show a difference
	}
	if n, seen := without(t, whole(t, *apartMode).ForTest(0, true, true), m, want, *withoutBarrier, seeds); seen {
		t.Errorf("other activations in the order of seed %d", n)
	}
}

// TestFences removes the order of passes, which must change the results.
func TestFences(t *testing.T) {
	checked(t)
	m := single(t, false)
	want := left(t, whole(t, "encode"), m)
	o := whole(t, "record").ForTest(2, false, true) // makes many command buffers
	soft.SetRandomOrder(3)
	if !bytes.Equal(left(t, o, m), want) {
		t.Error("command buffers of two tokens leave other activations")
	}
	soft.IgnoreFences(true)
	defer soft.IgnoreFences(false)
	for seed := uint64(1); ; seed++ {
		if seed > 40 {
			t.Fatal("without fences nothing changes")
		}
		soft.SetRandomOrder(seed)
		d, err := metal.New(o)
		if err == nil {
			err = d.Load(bg, m.t, m.src, replay.LoadOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		seen := !bytes.Equal(again(t, d), want)
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if seen {
			break
		}
	}
}
