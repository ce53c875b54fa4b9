package cuda

import (
	"context"
	"encoding/binary"
	"errors"
	"path/filepath"
	"testing"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/cuda/fake"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
	"github.com/pianola-engine/pianola/weights"
)

// fakeModules returns the fake driver's kernels: one text for sm_70 with generic instances.
func fakeModules() *Modules {
	m := &Modules{Pooled: true, Texts: []Text{{Name: "all", Arch: 70, Read: func() ([]byte, error) { return fake.PTX(fake.Kernels()...), nil }}}}
	for _, k := range fake.Kernels() {
		m.Instances = append(m.Instances, Instance{Kernel: k, Text: "all", Entry: k})
	}
	return m
}

// model is a tiny model, compiled for the H200 with chunks of 16 rows.
type model struct {
	t   *table.Table
	src replay.Source
}

// unreleased is a source whose memory stays in place when a device has copied it. A test that loads
// a model hundreds of times then reads its files once.
type unreleased struct{ replay.Source }

func tiny(tb testing.TB, name string) model {
	tb.Helper()
	return tinyWith(tb, name, compiler.Options{AllLogits: true})
}

// tinyWith is tiny with other options of the table.
func tinyWith(tb testing.TB, name string, o compiler.Options) model {
	tb.Helper()
	dir, err := weights.OpenDirectory(testmodels.Path(tb, filepath.Join("..", "..", "testdata", "tiny", name)))
	if err != nil {
		tb.Fatal(err)
	}
	cfg, err := arch.Builtin().Read(dir)
	if err != nil {
		tb.Fatal(err)
	}
	c, err := chip.Lookup("h200")
	if err != nil {
		tb.Fatal(err)
	}
	c.PrefillChunk = 16
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

// open returns a new device on a driver.
func open(tb testing.TB, drv *fake.Driver, mode string) *Device {
	tb.Helper()
	d, err := New(Options{Library: drv.Path, Mode: mode, Modules: fakeModules()})
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// load returns a device with a model. The test's cleanup closes the device and checks the
// driver.
func load(tb testing.TB, drv *fake.Driver, mode string, m model) *Device {
	tb.Helper()
	d := open(tb, drv, mode)
	tb.Cleanup(func() {
		if err := d.Close(); err != nil {
			tb.Error(err)
		}
		drv.Check()
	})
	if err := d.Load(context.Background(), m.t, m.src, replay.LoadOptions{}); err != nil {
		tb.Fatal(err)
	}
	return d
}

// begun returns a session whose ring begins with a token. stops are its stop ids.
func begun(tb testing.TB, d *Device, stops ...uint32) replay.SessionID {
	tb.Helper()
	id, err := start(d, stops...)
	if err != nil {
		tb.Fatal(err)
	}
	return id
}

func start(d *Device, stops ...uint32) (replay.SessionID, error) {
	id, err := d.NewSession()
	if err != nil {
		return 0, err
	}
	_, tokens, _ := d.table.Slot(table.SlotTokens)
	_, ids, _ := d.table.Slot(table.SlotStops)
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(stops)))
	for _, s := range stops {
		b = binary.LittleEndian.AppendUint32(b, s)
	}
	return id, errors.Join(d.Write(id, tokens, 0, []byte{7, 0, 0, 0}), d.Write(id, ids, 0, b))
}

// decode returns a submission of n tokens beginning at position at.
func decode(d *Device, id replay.SessionID, at, n int) *replay.Submission {
	_, p, _ := d.table.Program(table.ProgramDecode)
	return &replay.Submission{Session: id, Runs: []replay.Run{{Program: uint32(p), Count: uint32(n), Step: table.Step{
		Position: uint32(at), KVRow: uint32(at), KVLen: uint32(at + 1), TokenIndex: uint32(at), Rows: 1,
	}}}}
}

func submit(d *Device, sub *replay.Submission) (replay.Result, error) {
	t, err := d.Submit(sub)
	if err != nil {
		return replay.Result{}, err
	}
	return d.Wait(t)
}

// tokens returns the first n tokens of the ring.
func tokens(d *Device, id replay.SessionID, n int) ([]uint32, error) {
	_, slot, _ := d.table.Slot(table.SlotTokens)
	b := make([]byte, 4*n)
	err := d.Read(id, slot, 0, b)
	out := make([]uint32, n)
	for i := range out {
		out[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return out, err
}

// chains decodes n tokens in chains of the given length and returns the ring.
func chains(tb testing.TB, d *Device, id replay.SessionID, n, length int) []uint32 {
	tb.Helper()
	for at := 0; at < n; {
		res, err := submit(d, decode(d, id, at, min(length, n-at)))
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
	out, err := tokens(d, id, n+1)
	if err != nil {
		tb.Fatal(err)
	}
	return out
}
