//go:build softmetal

package metal_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/metal/kernels"
	"github.com/pianola-engine/pianola/internal/metal/soft"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/metal"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/weights"
)

func TestMain(m *testing.M) {
	if err := soft.Start("../.."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// model is a tiny model, compiled for the M4 Pro.
type model struct {
	t   *table.Table
	src *weights.Mapped
}

// small changes the chip so that a prompt has several chunks and attention has splits.
func small(c *chip.Chip) {
	c.PrefillChunk, c.LogitsRows, c.SplitContext, c.SplitSpan = 16, 7, 63, 64
}

func compiled(tb testing.TB, path string, context int, o compiler.Options) model {
	tb.Helper()
	dir, err := weights.OpenDirectory(testmodels.Path(tb, filepath.Join("..", "..", "testdata", path)))
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
	o.Context = context
	t, err := compiler.Compile(compiler.Input{Config: cfg, Tensors: dir, Chip: c, Options: o})
	if err != nil {
		tb.Fatal(err)
	}
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

func tiny(tb testing.TB, name string) model {
	tb.Helper()
	m := compiled(tb, filepath.Join("tiny", name), 128, compiler.Options{AllLogits: true})
	quick(tb, m.t)
	return m
}

// options returns the options of a device that skips the warm-up of Load, because it is slow on
// the emulator. For the same reason command buffers may take a second; otherwise a token might
// take several.
func options(tb testing.TB, mode string) metal.Options {
	tb.Helper()
	k, err := kernels.Embedded()
	if err != nil {
		tb.Fatal(err)
	}
	return metal.Options{Mode: mode, Kernels: k, ChainTime: time.Second}.ForTest(0, false, true)
}

// checked fails the test at its end if an object is still alive or a rule of Metal was broken.
func checked(tb testing.TB) {
	tb.Helper()
	soft.SetOrder()
	soft.Violation()
	objects, bytes := soft.Live()
	tb.Cleanup(func() {
		if err := soft.Violation(); err != nil {
			tb.Error(err)
		}
		if o, b := soft.Live(); o != objects || b != bytes {
			tb.Errorf("%d objects and %d bytes are left", o-objects, b-bytes)
		}
		soft.SetOrder()
		soft.FailAt(0, 0)
		soft.SetDelay(0)
		soft.SetLimits(0, 0)
		soft.SetTimestamps(1)
	})
}

// load returns a device with a model. The test's cleanup closes the device.
func load(tb testing.TB, o metal.Options, m model) *metal.Device {
	tb.Helper()
	d, err := metal.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := errors.Join(d.Close(), d.Close()); err != nil {
			tb.Error(err)
		}
	})
	if err := d.Load(context.Background(), m.t, m.src, replay.LoadOptions{}); err != nil {
		tb.Fatal(err)
	}
	return d
}

// replayer has the methods of a device that the helpers use.
type replayer interface {
	NewSession() (replay.SessionID, error)
	Reserve(id replay.SessionID, positions int) error
	Write(id replay.SessionID, slot uint32, offset uint64, p []byte) error
	Read(id replay.SessionID, slot uint32, offset uint64, p []byte) error
	Submit(s *replay.Submission) (replay.Ticket, error)
	Wait(t replay.Ticket) (replay.Result, error)
}

// begin returns a session whose ring begins with a token. stops are its stop ids.
func begin(d replayer, t *table.Table, stops ...uint32) (replay.SessionID, error) {
	id, err := d.NewSession()
	if err != nil {
		return 0, err
	}
	if err := d.Reserve(id, 1); err != nil { // as sessions of package replay do
		return 0, err
	}
	_, tokens, _ := t.Slot(table.SlotTokens)
	_, ids, _ := t.Slot(table.SlotStops)
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(stops)))
	for _, s := range stops {
		b = binary.LittleEndian.AppendUint32(b, s)
	}
	return id, errors.Join(d.Write(id, tokens, 0, []byte{7, 0, 0, 0}), d.Write(id, ids, 0, b))
}

func begun(tb testing.TB, d *metal.Device, stops ...uint32) replay.SessionID {
	tb.Helper()
	id, err := begin(d, d.Table(), stops...)
	if err != nil {
		tb.Fatal(err)
	}
	return id
}

// decode returns a submission of n tokens beginning at position at.
func decode(t *table.Table, id replay.SessionID, at, n int) *replay.Submission {
	_, p, _ := t.Program(table.ProgramDecode)
	return &replay.Submission{Session: id, Runs: []replay.Run{{Program: uint32(p), Count: uint32(n), Step: table.Step{
		Position: uint32(at), KVRow: uint32(at), KVLen: uint32(at + 1), TokenIndex: uint32(at), Rows: 1,
	}}}}
}

// prompt returns a submission that prefills n positions in chunks and runs the head.
func prompt(t *table.Table, id replay.SessionID, n int) *replay.Submission {
	_, prefill, _ := t.Program(table.ProgramPrefill)
	_, head, _ := t.Program(table.ProgramHead)
	s := &replay.Submission{Session: id}
	chunk := int(t.Header.Chunk)
	for at := 0; at < n; at += chunk {
		rows := min(chunk, n-at)
		step := table.Step{Position: uint32(at), KVRow: uint32(at), KVLen: uint32(at + 1), TokenIndex: uint32(at), Rows: uint32(rows)}
		s.Runs = append(s.Runs, replay.Run{Program: uint32(prefill), Count: 1, Step: step})
		if at+rows == n {
			last := uint32(n - 1)
			s.Runs = append(s.Runs, replay.Run{Program: uint32(head), Count: 1, Step: table.Step{
				Position: last, KVRow: last, KVLen: last + 1, TokenIndex: last, Row: uint32(rows - 1), Rows: 1,
			}})
		}
	}
	return s
}

func submit(d replayer, sub *replay.Submission) (replay.Result, error) {
	t, err := d.Submit(sub)
	if err != nil {
		return replay.Result{}, err
	}
	return d.Wait(t)
}

// ring returns the first n tokens of the ring.
func ring(tb testing.TB, d replayer, t *table.Table, id replay.SessionID, n int) []uint32 {
	tb.Helper()
	_, slot, _ := t.Slot(table.SlotTokens)
	b := make([]byte, 4*n)
	if err := d.Read(id, slot, 0, b); err != nil {
		tb.Fatal(err)
	}
	out := make([]uint32, n)
	for i := range out {
		out[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return out
}

// chains decodes n tokens in chains of the given length and returns the ring.
func chains(tb testing.TB, d replayer, t *table.Table, id replay.SessionID, n, length int) []uint32 {
	tb.Helper()
	for at := 0; at < n; {
		res, err := submit(d, decode(t, id, at, min(length, n-at)))
		if err != nil {
			tb.Fatal(err)
		}
		if res.Elapsed <= 0 || res.Count == 0 {
			tb.Fatalf("%+v", res)
		}
		if at += res.Count; res.Stopped {
			n = at
		}
	}
	return ring(tb, d, t, id, n+1)
}

// activations returns the content of a session's slots, except the step block, and of scratch.
func activations(tb testing.TB, d *metal.Device, id replay.SessionID) []byte {
	tb.Helper()
	t := d.Table()
	var all bytes.Buffer
	for i, s := range t.Slots {
		if s.Scope != table.ScopeSession || s.Kind == table.SlotStep {
			continue
		}
		b := make([]byte, s.Size)
		if err := d.Read(id, uint32(i), 0, b); err != nil {
			tb.Fatal(err)
		}
		all.Write(b)
	}
	all.Write(d.Scratch())
	return all.Bytes()
}

// quick reduces the work of a table for the emulator.
func quick(tb testing.TB, t *table.Table) {
	tb.Helper()
	if err := soft.Quicken(t); err != nil {
		tb.Fatal(err)
	}
}
