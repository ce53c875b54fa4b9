package device_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// TestStates calls methods before Load and after Close.
func TestStates(t *testing.T) {
	d := newFake()
	load := func() error { return d.Load(bg, small(), nil, replay.LoadOptions{}) }
	if _, err := d.NewSession(); !errors.Is(err, device.ErrNotLoaded) || err.Error() != "fake: no table is loaded" {
		t.Errorf("NewSession before Load: %v", err)
	}
	if _, err := d.Submit(&replay.Submission{}); !errors.Is(err, device.ErrSession) {
		t.Errorf("Submit before Load: %v", err)
	}
	if d.Memory() != (replay.Memory{}) {
		t.Errorf("%+v before Load", d.Memory())
	}
	if err := load(); err != nil {
		t.Fatal(err)
	}
	if err := load(); !errors.Is(err, device.ErrLoaded) {
		t.Errorf("a second Load: %v", err)
	}
	id := session(t, d)
	session(t, d)
	want := replay.Memory{Weights: 100, Mapped: 20, Sessions: 32, Executor: 3}
	want.Kinds[table.SlotWeight] = replay.Usage{Active: 120, Peak: 120}
	want.Kinds[table.SlotTokens] = replay.Usage{Active: 32, Peak: 32}
	if d.Memory() != want {
		t.Errorf("%+v, want %+v", d.Memory(), want)
	}
	if err := errors.Join(d.Close(), d.Close()); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{
		"NewSession": second(d.NewSession()), "Submit": second(d.Submit(tokens(id, 1))),
		"Read": d.Read(id, 0, 0, nil), "Write": d.Write(id, 0, 0, nil), "CloseSession": d.CloseSession(id), "Load": load(),
	} {
		if !errors.Is(err, device.ErrClosed) || err.Error() != "fake: the device is closed" {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
	if d.Memory() != (replay.Memory{}) || d.closes != 1 || d.left != 2 {
		t.Errorf("%+v after Close, %d times, %d sessions left", d.Memory(), d.closes, d.left)
	}
}

// TestLoadFails makes Load and Warm fail. Everything must be freed, and another table can be loaded.
func TestLoadFails(t *testing.T) {
	d := newFake()
	fault := errors.New("fault")
	d.warm = []replay.Run{{Count: 1, Step: table.Step{KVLen: 1, Rows: 1}}}
	for i, f := range []*error{&d.loadErr, &d.warmErr, &d.openErr} {
		*f = fault
		if err := d.Load(bg, small(), nil, replay.LoadOptions{}); err != fault {
			t.Errorf("case %d: %v", i, err)
		}
		*f = nil
		if d.closes != i+1 || d.left != 0 {
			t.Errorf("case %d: %d Unload, of %d sessions", i, d.closes, d.left)
		}
		if _, err := d.NewSession(); !errors.Is(err, device.ErrNotLoaded) {
			t.Errorf("case %d: NewSession: %v", i, err)
		}
	}
	// The session that Warm used cannot be freed.
	d.freeErr = fault
	if err := d.Load(bg, small(), nil, replay.LoadOptions{}); err != fault || d.left != 1 {
		t.Errorf("%v, %d sessions left", err, d.left)
	}
	d.freeErr = nil
	d.ran = nil
	if err := d.Load(bg, small(), nil, replay.LoadOptions{}); err != nil {
		t.Fatal(err)
	}
	if len(d.ran) != 2 || d.ran[0] != d.ran[1] || d.Memory().Sessions != 0 {
		t.Errorf("sessions %v warmed up, %+v", d.ran, d.Memory())
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	for i, s := range d.open {
		if s.freed != 1 {
			t.Errorf("session %d was freed %d times", i, s.freed)
		}
	}
}

// closing is a backend that calls methods of the device during Load.
type closing struct {
	backend
	t *testing.T
}

func (c closing) Load(ctx context.Context, t *table.Table, src replay.Source, o replay.LoadOptions) (replay.Memory, error) {
	if err := c.Base.Close(); err == nil || err.Error() != "fake: Close during Load" {
		c.t.Errorf("Close during Load: %v", err)
	}
	if err := c.Base.Load(ctx, t, src, o); !errors.Is(err, device.ErrLoaded) {
		c.t.Errorf("Load during Load: %v", err)
	}
	return c.backend.Load(ctx, t, src, o)
}

func TestCloseDuringLoad(t *testing.T) {
	d := &fake{}
	d.queue = device.New("fake", closing{backend{d}, t})
	d.Base = d.queue.Base()
	if err := errors.Join(d.Load(bg, small(), nil, replay.LoadOptions{}), d.Close()); err != nil {
		t.Error(err)
	}
}

// TestCloseSession checks that closing a session waits for the submission in flight, that calls
// on closed sessions get the right errors, and that Unload frees a session that could not be
// freed before.
func TestCloseSession(t *testing.T) {
	d := loaded(t)
	id := session(t, d)
	gate := hold(t, d, id)
	ticket := submit(t, d, tokens(id, 1))
	closed := make(chan error)
	go func() { closed <- d.CloseSession(id) }()
	select {
	case err := <-closed:
		t.Fatalf("closed in flight: %v", err)
	case <-time.After(2 * time.Millisecond):
	}
	<-gate
	gate <- true
	if err := <-closed; err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{
		"CloseSession": d.CloseSession(id), "Submit": second(d.Submit(tokens(id, 1))), "Read": d.Read(id, 0, 0, nil),
	} {
		if !errors.Is(err, device.ErrSession) {
			t.Errorf("%s of a closed session: %v", what, err)
		}
	}
	if _, err := d.Wait(ticket); !errors.Is(err, device.ErrTicket) {
		t.Errorf("Wait of a closed session: %v", err)
	}
	id = session(t, d)
	d.freeErr = errors.New("fault")
	if err := d.CloseSession(id); err != d.freeErr {
		t.Errorf("a session that cannot be freed: %v", err)
	}
	d.freeErr = nil
	if _, err := d.Submit(tokens(id, 1)); !errors.Is(err, device.ErrSession) {
		t.Errorf("it is used after that: %v", err)
	}
	if err := d.Close(); err != nil || d.left != 1 {
		t.Errorf("%v, %d sessions left, want the one that could not be freed", err, d.left)
	}
}

// TestErrors checks the texts of errors and what they wrap.
func TestErrors(t *testing.T) {
	tab := small()
	inner := errors.New("inner")
	sub := &replay.Submission{Runs: make([]replay.Run, 2)}
	part := device.NewRunError("fake", tab, sub, 1, inner)
	part.First, part.End = 3, 5
	for want, err := range map[string]error{
		"fake: command 1 (b): inner":                          device.NewCommandError("fake", tab, 1, inner),
		"fake: run 0 (decode): inner":                         device.NewRunError("fake", tab, sub, 0, inner),
		"fake: run 2: inner":                                  device.NewRunError("fake", tab, sub, 2, inner),
		"fake: run 1 (decode), tokens 3 to 4: inner":          part,
		"fake: the table is not valid: inner":                 &device.InvalidTableError{Device: "fake", Faults: []error{inner}},
		"fake: the table is not valid: a (and 1 more faults)": &device.InvalidTableError{Device: "fake", Faults: []error{errors.New("a"), inner}},
		"panic: inner":                                        &device.PanicError{Value: inner},
	} {
		if err.Error() != want || !errors.Is(err, inner) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if errors.Unwrap(&device.PanicError{Value: "text"}) != nil {
		t.Error("a text is unwrapped")
	}
	err := device.EachCmd("fake", tab, func(i int, p *table.Program, c *table.Cmd) error {
		if i == 2 && p.Name == "prefill" && c == &tab.Cmds[2] {
			return inner
		}
		return nil
	})
	var ce *device.CommandError
	if !errors.As(err, &ce) || ce.Command != 2 || ce.Label != "c" || ce.Device != "fake" {
		t.Errorf("%v", err)
	}
	if err := device.CheckChip("fake", tab); err != nil {
		t.Error(err)
	}
	if err := device.CheckChip("other", tab); err == nil || err.Error() != "other: the table was compiled for chip fake of device fake" {
		t.Errorf("%v", err)
	}
	var invalid *device.InvalidTableError
	if err := device.CheckTable("fake", tab); !errors.As(err, &invalid) {
		t.Errorf("a table without a step slot: %v", err)
	}
	c := &table.Cmd{Bindings: 2}
	c.Bind[0].Slot, c.Bind[1].Offset, c.Bind[2].Offset = table.NoSlot, 24, 1
	c.Bind[0].Offset = 3
	if err := errors.Join(device.CheckAlign(c, 0), device.CheckAlign(c, 8)); err != nil {
		t.Error(err)
	}
	if err := device.CheckAlign(c, 16); err == nil || err.Error() != "binding 1: offset 24 is not a multiple of 16" {
		t.Errorf("%v", err)
	}
}

// TestStep encodes step blocks and patches.
func TestStep(t *testing.T) {
	s := table.Step{RNG: 1 << 40, Position: 2, KVRow: 3, KVLen: 4, TokenIndex: 5, Row: 6, Rows: 7, Stop: 8, Count: 9}
	b := slices.Repeat([]byte{0xff}, table.StepSize)
	device.PutStep(b[:device.StepPlace], &s)
	if b[device.StepPlace] != 0xff {
		t.Error("a step's place is longer than StepPlace")
	}
	device.PutStep(b, &s)
	if r, stop := device.Result(b); r.Count != 9 || stop != 8 || b[len(b)-1] != 0 {
		t.Errorf("%+v, stop %d: %v", r, stop, b)
	}
	device.Advance(&s, 3)
	if s.Position != 23 || s.KVRow != 24 || s.KVLen != 25 || s.TokenIndex != 26 || s.Row != 6 {
		t.Errorf("%+v", s)
	}
	tab := small()
	tab.Cmds[1].Patch, tab.Cmds[1].PatchOffset = table.PatchToken|table.PatchRows, [2]uint8{4, table.NoPatch}
	tab.Cmds[2].Patch = table.PatchRow
	want := []byte{1, 0, 0, 0, byte(table.PatchToken), 1, 4, 0}
	if got := device.AppendPatches([]byte{5}, tab, &tab.Programs[0]); !slices.Equal(got[1:], want) || len(want) != device.PatchSize {
		t.Errorf("%v, want %v", got, want)
	}
}
