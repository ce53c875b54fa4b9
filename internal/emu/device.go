package emu

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/shaders"
	"github.com/pianola-engine/pianola/table"
)

// DeviceOptions are the settings of a device.
type DeviceOptions struct {
	Order Order  // order of threads, and of the commands between two barriers
	Seed  uint64 // seed of order Random

	// Unchecked loads a table without validating it, so that a test can observe what its
	// kernels do.
	Unchecked bool
}

// Device replays tables with the emulated kernels, for tests. Its methods implement
// replay.Device and are described there.
//
// Each device has its own emulator process. A kernel gets each binding cut to the extent
// that its declaration states: with Options.Sanitize, an access one byte past it is an
// error. Commands between two barriers run in the order selected by the options.
type Device struct {
	p *Program
	o DeviceOptions

	// Set by Load and constant afterwards.
	t        *table.Table
	model    [][]byte // by slot, for slots of model and executor scope
	launches []launch // by command
	weights  uint64
	executor uint64

	turn   sync.Mutex // held by the running submission
	random *rand.Rand // guarded by turn

	mu       sync.Mutex // guards the fields below
	closed   bool
	sessions map[replay.SessionID]*deviceSession
	jobs     map[replay.Ticket]*job
	last     uint64 // last number given to a session or a ticket
}

// launch is a prepared command without its memory.
type launch struct {
	dispatch Dispatch // without buffers, secondary bytes and step block
	bindings []cut
}

// cut is a binding: the bytes [from, to) of a slot.
type cut struct {
	slot     uint32
	from, to uint64
}

type deviceSession struct {
	id  replay.SessionID
	mem [][]byte // by slot, including those of model and executor scope
	own []bool   // by slot
	job *job     // the submission in flight, until Wait
}

type job struct {
	session   *deviceSession
	sub       *replay.Submission
	cancelled atomic.Bool
	done      chan struct{} // closed when the fields below are set
	result    replay.Result
	err       error
}

// Errors of a device.
var (
	ErrClosed  = errors.New("emu: the device is closed, or has no table")
	ErrSession = errors.New("emu: no such session")
	ErrTicket  = errors.New("emu: no such submission")
	ErrBusy    = errors.New("emu: the session has a submission in flight")
)

// CommandError reports a command that failed or cannot be launched.
type CommandError struct {
	Command int
	Label   string
	Err     error
}

// Error implements error.
func (e *CommandError) Error() string {
	return fmt.Sprintf("emu: command %d (%s): %v", e.Command, e.Label, e.Err)
}

// Unwrap returns the fault.
func (e *CommandError) Unwrap() error { return e.Err }

// NewDevice returns a device that runs the kernels of a built emulator in its own process.
func NewDevice(p *Program, o DeviceOptions) *Device {
	return &Device{
		p: &Program{path: p.path, types: p.types, apple: p.apple, count: p.count}, o: o, random: rand.New(rand.NewPCG(o.Seed, 0)),
		sessions: map[replay.SessionID]*deviceSession{}, jobs: map[replay.Ticket]*job{},
	}
}

// Info describes the device.
func (d *Device) Info() replay.Info {
	return replay.Info{Device: "emulator", Name: "emulator of Metal kernels", Modes: []string{"encode"}}
}

// Load accepts a table of any chip.
func (d *Device) Load(ctx context.Context, t *table.Table, src replay.Source, o replay.LoadOptions) error {
	if faults := t.Validate(); len(faults) > 0 && !d.o.Unchecked {
		return fmt.Errorf("emu: %w", faults[0])
	}
	made, err := shaders.Made()
	if err != nil {
		return err
	}
	launches := make([]launch, len(t.Cmds))
	for pi := range t.Programs {
		p := &t.Programs[pi]
		for i := int(p.First); i < int(p.First+p.Count); i++ {
			if launches[i], err = launchOf(made, t, p, &t.Cmds[i]); err != nil {
				return &CommandError{i, t.Label(i), err}
			}
		}
	}
	model := make([][]byte, len(t.Slots))
	var weights, executor uint64
	for i, s := range t.Slots {
		switch s.Scope {
		case table.ScopeModel:
			model[i] = make([]byte, s.Size)
			weights += s.Size
		case table.ScopeExecutor:
			// Memory starts as NaN, so that reading unwritten floats shows.
			model[i] = slices.Repeat([]byte{0xff}, int(s.Size))
			executor += s.Size
		}
	}
	if err := upload(ctx, t, src, model, o.Progress); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.t != nil {
		return errors.New("emu: the device is closed, or has a table")
	}
	d.t, d.model, d.launches, d.weights, d.executor = t, model, launches, weights, executor
	return nil
}

// launchOf prepares a command and checks the conditions on which devices rely.
func launchOf(m *shaders.Manifest, t *table.Table, p *table.Program, c *table.Cmd) (launch, error) {
	env, err := t.NewEnv(c, p)
	if err != nil {
		return launch{}, err
	}
	k, ok := decl.Lookup(c.Kernel)
	if !ok {
		return launch{}, fmt.Errorf("unknown kernel %d", c.Kernel)
	}
	if _, ok := m.Kernel(k.Name); !ok {
		return launch{}, fmt.Errorf("the manifest has no kernel %s", k.Name)
	}
	threads := int(c.Threadgroup[0]) * int(c.Threadgroup[1]) * int(c.Threadgroup[2])
	memory, err := k.ThreadgroupBytes(env, threads)
	if err != nil {
		return launch{}, err
	}
	l := launch{
		dispatch: Dispatch{
			Kernel: k.Name, Grid: c.Grid, Threads: uint32(threads), TGMem: uint32(memory),
			Specs: t.Specs[c.Spec].Values, Params: c.Param,
		},
		bindings: make([]cut, len(k.Bindings)),
	}
	for i := range k.Bindings {
		b := c.Bind[i]
		if l.bindings[i].slot = b.Slot; b.Slot == table.NoSlot {
			continue
		}
		n, err := env.Extent(i)
		if err != nil {
			return launch{}, err
		}
		switch {
		case uint64(b.Slot) >= uint64(len(t.Slots)):
			return launch{}, fmt.Errorf("binding %s: slot %d of %d", k.Bindings[i].Name, b.Slot, len(t.Slots))
		case b.Offset > t.Slots[b.Slot].Size || n > t.Slots[b.Slot].Size-b.Offset:
			return launch{}, fmt.Errorf("binding %s: %d + %d bytes are past the end of slot %s", k.Bindings[i].Name, b.Offset, n, t.Slots[b.Slot].Name)
		case b.Offset%uint64(m.BindingAlign) != 0:
			return launch{}, fmt.Errorf("binding %s: offset %d is not a multiple of %d", k.Bindings[i].Name, b.Offset, m.BindingAlign)
		}
		l.bindings[i].from, l.bindings[i].to = b.Offset, b.Offset+n
	}
	return l, nil
}

// Memory returns the memory that the device uses.
func (d *Device) Memory() replay.Memory {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := replay.Memory{Weights: d.weights, Executor: d.executor}
	for _, s := range d.sessions {
		for i, own := range s.own {
			if own {
				m.Sessions += uint64(len(s.mem[i]))
			}
		}
	}
	return m
}

// Close waits for the submission in flight and ends the process.
func (d *Device) Close() error {
	d.mu.Lock()
	d.closed = true
	for _, j := range d.jobs {
		j.cancelled.Store(true)
	}
	d.mu.Unlock()
	d.turn.Lock()
	defer d.turn.Unlock()
	d.p.stop()
	return nil
}

// NewSession allocates the slots of session scope.
func (d *Device) NewSession() (replay.SessionID, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.t == nil {
		return 0, ErrClosed
	}
	s := &deviceSession{mem: slices.Clone(d.model), own: make([]bool, len(d.model))}
	for i, slot := range d.t.Slots {
		if s.own[i] = slot.Scope == table.ScopeSession; s.own[i] {
			s.mem[i] = make([]byte, slot.Size)
		}
	}
	d.last++
	s.id = replay.SessionID(d.last)
	d.sessions[s.id] = s
	return s.id, nil
}

// Reserve does nothing: KV caches are allocated for the whole context.
func (d *Device) Reserve(replay.SessionID, int) error { return nil }

// Fork returns a session with a copy of the slots of an idle session.
func (d *Device) Fork(id replay.SessionID, _ int) (replay.SessionID, error) {
	to, err := d.NewSession()
	if err != nil {
		return 0, err
	}
	d.mu.Lock()
	s, fork := d.sessions[id], d.sessions[to]
	switch {
	case s == nil:
		err = ErrSession
	case s.job != nil:
		err = ErrBusy
	}
	for i := range d.t.Slots {
		if err == nil && s.own[i] {
			copy(fork.mem[i], s.mem[i])
		}
	}
	d.mu.Unlock()
	if err != nil {
		return 0, errors.Join(err, d.CloseSession(to))
	}
	return to, nil
}

// CloseSession waits for the session's submission and frees its slots.
func (d *Device) CloseSession(id replay.SessionID) error {
	d.mu.Lock()
	s := d.sessions[id]
	if s == nil {
		d.mu.Unlock()
		return ErrSession
	}
	j := s.job
	delete(d.sessions, id)
	d.mu.Unlock()
	if j != nil {
		<-j.done
	}
	return nil
}

// Write copies p to a slot.
func (d *Device) Write(id replay.SessionID, slot uint32, offset uint64, p []byte) error {
	b, err := d.bytes(id, slot, offset, len(p))
	copy(b, p)
	return err
}

// Read copies from a slot to p.
func (d *Device) Read(id replay.SessionID, slot uint32, offset uint64, p []byte) error {
	b, err := d.bytes(id, slot, offset, len(p))
	copy(p, b)
	return err
}

// bytes returns n bytes of a slot of an idle session.
func (d *Device) bytes(id replay.SessionID, slot uint32, offset uint64, n int) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.sessions[id]
	switch {
	case s == nil:
		return nil, ErrSession
	case s.job != nil:
		return nil, ErrBusy
	}
	return s.bytes(slot, offset, n)
}

// bytes returns n bytes of a slot.
func (s *deviceSession) bytes(slot uint32, offset uint64, n int) ([]byte, error) {
	switch {
	case uint64(slot) >= uint64(len(s.mem)) || !s.own[slot]:
		return nil, fmt.Errorf("emu: slot %d does not have session scope", slot)
	case offset > uint64(len(s.mem[slot])) || uint64(n) > uint64(len(s.mem[slot]))-offset:
		return nil, fmt.Errorf("emu: slot %d: %d + %d bytes are past its %d", slot, offset, n, len(s.mem[slot]))
	}
	return s.mem[slot][offset:][:n], nil
}

// send executes the moves and writes of a submission.
func (s *deviceSession) send(sub *replay.Submission) error {
	for _, m := range sub.Moves {
		to, err := s.bytes(m.Slot, m.To, int(m.Size))
		if err != nil {
			return err
		}
		from, err := s.bytes(m.Slot, m.From, int(m.Size))
		if err != nil {
			return err
		}
		copy(to, from)
	}
	for _, w := range sub.Writes {
		b, err := s.bytes(w.Slot, w.Offset, len(w.Bytes))
		if err != nil {
			return err
		}
		copy(b, w.Bytes)
	}
	return nil
}

// fetch executes the reads of a submission.
func (s *deviceSession) fetch(sub *replay.Submission) error {
	for _, r := range sub.Reads {
		b, err := s.bytes(r.Slot, r.Offset, len(r.Bytes))
		if err != nil {
			return err
		}
		copy(r.Bytes, b)
	}
	return nil
}

// Submit starts a submission.
func (d *Device) Submit(sub *replay.Submission) (replay.Ticket, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.sessions[sub.Session]
	switch {
	case d.closed:
		return 0, ErrClosed
	case s == nil:
		return 0, ErrSession
	case s.job != nil:
		return 0, ErrBusy
	}
	for i := range sub.Runs {
		if err := replay.CheckRun(d.t, &sub.Runs[i]); err != nil {
			return 0, fmt.Errorf("emu: run %d: %w", i, err)
		}
	}
	if err := replay.CheckTimings(d.t, sub); err != nil {
		return 0, fmt.Errorf("emu: %w", err)
	}
	if err := s.send(sub); err != nil {
		return 0, err
	}
	j := &job{session: s, sub: sub, done: make(chan struct{})}
	s.job = j
	d.last++
	ticket := replay.Ticket(d.last)
	d.jobs[ticket] = j
	go func() {
		defer close(j.done)
		d.turn.Lock()
		defer d.turn.Unlock()
		start := time.Now()
		if j.result, j.err = d.run(j); j.err == nil {
			j.err = s.fetch(sub)
		}
		j.result.Elapsed = time.Since(start)
	}()
	return ticket, nil
}

// Cancel makes the device skip the rest of a submission.
func (d *Device) Cancel(t replay.Ticket) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if j := d.jobs[t]; j != nil {
		j.cancelled.Store(true)
	}
}

// Wait waits for a submission and returns its result.
func (d *Device) Wait(t replay.Ticket) (replay.Result, error) {
	d.mu.Lock()
	j := d.jobs[t]
	delete(d.jobs, t)
	d.mu.Unlock()
	if j == nil {
		return replay.Result{}, ErrTicket
	}
	<-j.done
	d.mu.Lock()
	defer d.mu.Unlock()
	j.session.job = nil
	return j.result, j.err
}

// Offsets of the stop flag and the count in the step block.
const stepStop, stepCount, stepSequence = 32, 36, 60

// putStep writes a step block except for its stop flag and its count.
func putStep(b []byte, s *table.Step) {
	binary.LittleEndian.PutUint64(b, s.RNG)
	for i, v := range [...]uint32{s.Position, s.KVRow, s.KVLen, s.TokenIndex, s.Row, s.Rows} {
		binary.LittleEndian.PutUint32(b[8+4*i:], v)
	}
}

// run replays a submission. d.turn is held.
func (d *Device) run(j *job) (replay.Result, error) {
	_, slot, _ := d.t.Slot(table.SlotStep)
	block := j.session.mem[slot]
	clear(block[:table.StepSize]) // not the row records and page tables behind it
	for i := range j.sub.Runs {
		r := &j.sub.Runs[i]
		binary.LittleEndian.PutUint32(block[stepSequence:], r.Step.Sequence)
		step := r.Step
		timings := j.sub.Timings
		if i < len(j.sub.Runs)-1 {
			timings = nil
		}
		for range r.Count {
			// The commands after a stop are dispatched, too: kernels check the flag.
			putStep(block, &step)
			if err := d.replay(j, &d.t.Programs[r.Program], &step, block, timings); err != nil {
				return replay.Result{}, err
			}
			step.Position += step.Rows
			step.KVRow += step.Rows
			step.KVLen += step.Rows
			step.TokenIndex += step.Rows
		}
	}
	return replay.Result{
		Count:   int(binary.LittleEndian.Uint32(block[stepCount:])),
		Stopped: block[stepStop] != 0, // the other bytes are of stops that are no stop ids
	}, nil
}

// replay executes a program once. Commands between two barriers run in the order selected
// by the options, because a device may run them in any order.
func (d *Device) replay(j *job, p *table.Program, step *table.Step, block []byte, timings []time.Duration) error {
	first, end := int(p.First), int(p.First+p.Count)
	var phase []int
	for i := first; i < end; i++ {
		phase = append(phase, i)
		if i+1 < end && d.t.Cmds[i+1].Barrier == 0 {
			continue
		}
		switch d.o.Order {
		case Reverse:
			slices.Reverse(phase)
		case Random:
			d.random.Shuffle(len(phase), func(a, b int) { phase[a], phase[b] = phase[b], phase[a] })
		}
		for _, c := range phase {
			if j.cancelled.Load() || j.sub.Dry {
				continue
			}
			start := time.Now()
			if err := d.command(j.session, c, step, block); err != nil {
				return &CommandError{c, d.t.Label(c), err}
			}
			if timings != nil {
				timings[c-first] += time.Since(start)
			}
		}
		phase = phase[:0]
	}
	return nil
}

// command runs one command on the bytes that it may access.
func (d *Device) command(s *deviceSession, c int, step *table.Step, block []byte) error {
	l := &d.launches[c]
	do := l.dispatch
	do.Order, do.Seed = d.o.Order, d.random.Uint64()
	do.Second = d.t.Cmds[c].Second
	d.t.Cmds[c].Apply(step, &do.Second)
	copy(do.Step[:], block)
	do.Behind = block[table.StepSize:]
	for i, b := range l.bindings {
		if b.slot != table.NoSlot {
			do.Buffers[i] = s.mem[b.slot][b.from:b.to:b.to]
		}
	}
	if err := d.p.Run(&do); err != nil {
		return err
	}
	copy(block, do.Step[:])
	return nil
}
