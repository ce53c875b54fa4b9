package cuda

import (
	"fmt"
	"time"

	"github.com/pianola-engine/pianola/internal/cuda/driver"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// executor submits jobs to the GPU in order, from one thread.
type executor struct {
	d          *Device
	stream     driver.Stream
	ring       ring
	flight     ring         // limits the graphs in flight; its buffers receive the stop flag of batches
	result     []byte       // pinned memory: the step block at the end of a submission
	begin, end driver.Event // recorded before and after a submission
	times      []driver.Event
	static     []byte // the secondary bytes as in the table
	ms         float32
}

// ring is a ring of pinned buffers that the host fills and the stream copies from. A buffer is
// not written while the GPU may read it.
type ring struct {
	drv   *driver.Driver
	at    int
	slots []ringSlot
}

type ringSlot struct {
	mem   []byte
	event driver.Event
	used  bool
}

// Lengths of the executor's rings.
const (
	copiesAhead = 8
	graphsAhead = 3
)

// next waits until the GPU has read the oldest buffer and returns it.
func (r *ring) next() ([]byte, error) {
	r.at = (r.at + 1) % len(r.slots)
	s := &r.slots[r.at]
	if s.used {
		if err := r.drv.EventSynchronize(s.event); err != nil {
			return nil, err
		}
		s.used = false
	}
	return s.mem, nil
}

// send copies b to the device. b is a part of the buffer that next returned last.
func (r *ring) send(to driver.Ptr, b []byte, stream driver.Stream) error {
	if err := r.drv.MemcpyHtoDAsync(to, b, stream); err != nil {
		return err
	}
	return r.mark(stream)
}

// mark makes next wait, one round later, for everything submitted to the stream so far.
func (r *ring) mark(stream driver.Stream) error {
	s := &r.slots[r.at]
	s.used = true
	return r.drv.EventRecord(s.event, stream)
}

// newExecutor allocates an executor; the device owns its memory.
func newExecutor(d *Device, t *table.Table) (*executor, error) {
	e := &executor{
		d: d, static: secondaryBytes(t),
		ring:   ring{drv: d.drv, slots: make([]ringSlot, copiesAhead)},
		flight: ring{drv: d.drv, slots: make([]ringSlot, graphsAhead)},
	}
	largest, most := table.StepSize, 0
	for i := range t.Programs {
		most = max(most, int(t.Programs[i].Count))
	}
	const caches = 2 // most caches of a command
	largest = max(largest, most*decl.SecondBytes, caches*recordBytes*len(t.Cmds))
	var err error
	o := &d.own
	try := func(f func() error) {
		if err == nil {
			err = f()
		}
	}
	try(func() (err error) { e.stream, err = o.stream(); return })
	try(func() (err error) { e.begin, err = o.event(true); return })
	try(func() (err error) { e.end, err = o.event(true); return })
	try(func() (err error) { e.result, err = o.pinned(table.StepSize); return })
	for i := range e.ring.slots {
		s := &e.ring.slots[i]
		try(func() (err error) { s.mem, err = o.pinned(largest); return })
		try(func() (err error) { s.event, err = o.event(false); return })
	}
	for i := range e.flight.slots {
		s := &e.flight.slots[i]
		try(func() (err error) { s.mem, err = o.pinned(4); return })
		try(func() (err error) { s.event, err = o.event(false); return })
	}
	for range most + 1 {
		try(func() error {
			t, err := o.event(true)
			e.times = append(e.times, t)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("cuda: executor: %w", err)
	}
	return e, nil
}

// start starts the thread and returns when the context is current there.
func (e *executor) start() error {
	ready := make(chan error)
	e.d.queue.Go(func() {
		err := e.d.enter()
		ready <- err
		if err != nil {
			return
		}
		for j := e.d.queue.Next(); j != nil; j = e.d.queue.Next() {
			j.Finish(e.submission(j))
		}
		e.d.leave(&err)
	})
	return <-ready
}

// submission executes a job. A panic, caused by a bug in this package, makes the device unusable
// but does not end the process.
func (e *executor) submission(j *job) (res replay.Result, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("cuda: %w", &device.PanicError{Value: v})
			e.d.queue.Lose(err)
		}
	}()
	err = e.give(j)
	// Wait for everything submitted, so that none of it is in use when the job is done. If
	// waiting fails, this is unknown.
	given := err == nil
	if e := e.wait(j, given, &res); given {
		err = e
	}
	if err != nil {
		return replay.Result{}, err
	}
	return res, nil
}

// give submits a job to the stream.
func (e *executor) give(j *job) error {
	if j.Tapped() {
		return e.giveSteps(j)
	}
	for i := range j.Submission.Runs { // before the time is measured
		if err := e.d.mode.ready(e.d, int(j.Submission.Runs[i].Program), j.Session.brief); err != nil {
			return e.runError(j, i, err)
		}
	}
	if err := e.begins(j); err != nil {
		return e.runError(j, 0, err)
	}
	sub := j.Submission
	for i := range sub.Runs {
		if j.Cancelled() {
			return nil
		}
		r := &sub.Runs[i]
		var err error
		if sub.Timings != nil && i == len(sub.Runs)-1 {
			err = e.d.mode.timed(e, j, r, sub.Timings)
		} else {
			err = e.d.mode.run(e, j, r, i == 0)
		}
		if err != nil {
			return e.runError(j, i, err)
		}
	}
	return nil
}

// runError adds the run to an error that has none.
func (e *executor) runError(j *job, run int, err error) error {
	if _, ok := err.(*device.CommandError); ok {
		return err
	}
	return device.NewRunError(name, e.d.table, j.Submission, run, err)
}

// begins makes the job's session the current one and writes the step block of the first run. From
// then on, Cancel may write the stop flag after it.
func (e *executor) begins(j *job) error {
	sub, s := j.Submission, j.Session
	if err := s.stage.follow(e.stream); err != nil {
		return err
	}
	if err := e.enter(s); err != nil {
		return err
	}
	b, err := e.ring.next()
	if err != nil {
		return err
	}
	var step table.Step
	if len(sub.Runs) > 0 {
		step = sub.Runs[0].Step
	}
	step.Count = 0
	if sub.Dry {
		step.Stop = device.StopDry
	}
	device.PutStep(b, &step)
	if err := e.ring.send(e.d.current.step, b[:table.StepSize], e.stream); err != nil {
		return err
	}
	if err := e.d.drv.EventRecord(e.begin, e.stream); err != nil {
		return err
	}
	for i := range e.flight.slots { // nothing is in flight
		clear(e.flight.slots[i].mem)
	}
	j.OnCancel(s.raise)
	return nil
}

// wait waits for the stream. If the whole submission was given to it, wait reads the step block
// back.
func (e *executor) wait(j *job, given bool, res *replay.Result) error {
	drv := e.d.drv
	var err error
	if given {
		if err = drv.MemcpyDtoHAsync(e.result, e.d.current.step, e.stream); err == nil {
			err = drv.EventRecord(e.end, e.stream)
		}
	}
	if sync := drv.StreamSynchronize(e.stream); sync != nil {
		err = e.runError(j, 0, sync)
		e.d.queue.Lose(err)
		return err
	}
	if !given {
		return nil
	}
	if err == nil {
		err = drv.EventElapsedTime(&e.ms, e.begin, e.end)
	}
	if err != nil {
		return e.runError(j, 0, err)
	}
	*res, _ = device.Result(e.result)
	res.Elapsed = milliseconds(e.ms)
	return nil
}

// milliseconds converts an event's time to a duration of at least a nanosecond.
func milliseconds(ms float32) time.Duration {
	return max(1, time.Duration(float64(ms)*float64(time.Millisecond)))
}

// timed replays a run with an event after each command.
func (encode) timed(e *executor, j *job, r *replay.Run, times []time.Duration) error {
	drv, step := e.d.drv, r.Step
	for range r.Count {
		if j.Cancelled() {
			return nil
		}
		if err := e.token(r.Program, &step, true); err != nil {
			return err
		}
		if err := drv.EventSynchronize(e.times[len(times)]); err != nil {
			return err
		}
		for i := range times {
			if err := drv.EventElapsedTime(&e.ms, e.times[i], e.times[i+1]); err != nil {
				return err
			}
			times[i] += milliseconds(e.ms)
		}
		device.Advance(&step, 1)
	}
	return nil
}

// token submits one token to the stream: one copy of the patched secondary bytes, then a launch per
// command. If timed is set, it records an event before the first command and after each one.
func (e *executor) token(program uint32, step *table.Step, timed bool) error {
	d := e.d
	if err := e.sendSecondary(program, step); err != nil {
		return err
	}
	if timed {
		if err := d.drv.EventRecord(e.times[0], e.stream); err != nil {
			return err
		}
	}
	p := &d.table.Programs[program]
	for i := range int(p.Count) {
		c := int(p.First) + i
		err := d.drv.Launch(&d.launches[c])
		if err == nil && timed {
			err = d.drv.EventRecord(e.times[i+1], e.stream)
		}
		if err != nil {
			return device.NewCommandError(name, d.table, c, err)
		}
	}
	return nil
}

// sendSecondary patches a program's commands for a step on the host, and copies them to the device.
func (e *executor) sendSecondary(program uint32, step *table.Step) error {
	p := &e.d.programs[program]
	if len(p.patched) == 0 {
		return nil
	}
	b, err := e.ring.next()
	if err != nil {
		return err
	}
	lo, hi := p.patchedEnds[0]*decl.SecondBytes, p.patchedEnds[1]*decl.SecondBytes
	b = b[:hi-lo]
	copy(b, e.static[lo:hi])
	for _, c := range p.patched {
		e.d.table.Cmds[c].Apply(step, (*[decl.SecondBytes]byte)(b[c*decl.SecondBytes-lo:]))
	}
	return e.ring.send(e.d.secondary+driver.Ptr(lo), b, e.stream)
}

// encode is the mode in which the host walks the table for each token.
type encode struct{}

func (encode) name() string                       { return "encode" }
func (encode) overlaps() bool                     { return false }
func (encode) modules(*loader) ([]*module, error) { return nil, nil }
func (encode) load(*loader) error                 { return nil }
func (encode) arrays(*Device) (uint64, error)     { return 0, nil }
func (encode) ready(*Device, int, bool) error     { return nil }
func (encode) run(e *executor, j *job, r *replay.Run, _ bool) error {
	step := r.Step
	for range r.Count {
		if j.Cancelled() {
			return nil
		}
		if err := e.token(r.Program, &step, false); err != nil {
			return err
		}
		device.Advance(&step, 1)
	}
	return nil
}
