package metal

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/metal/driver"
	"github.com/pianola-engine/pianola/internal/sequence"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

const (
	// flights is the number of command buffers in flight: one is encoded while the GPU runs the
	// other.
	flights = 2
	// maxTokens and maxRuns are the largest numbers of tokens and runs in a command buffer.
	maxTokens = 64
	maxRuns   = 64
)

// executor submits jobs to the GPU in order. One goroutine encodes, another waits.
type executor struct {
	d      *Device
	free   chan *flight
	flying chan *flight // in the order of their commits
	awake  *awake       // nil: the GPU may idle

	prices *prices

	mu   sync.Mutex // guards the field below, and the progress of jobs
	pace []float64  // measured duration of each program, divided by the predicted one; 0 if unknown
}

// flight is a command buffer with its arrays in C and its buffers.
type flight struct {
	i      int
	chain  *driver.Chain
	runs   []driver.Run
	result []byte // the step block at the end of the command buffer
	places []byte // leading bytes of the step blocks of all runs except a submission's first

	job       *job
	used      int     // number of runs
	tokens    int     // tokens of all runs whose last commands it contains
	seconds   float64 // expected duration
	predicted float64 // predicted duration, which does not depend on measurements
	run       int     // index in the submission of the first run
	program   uint32  // its program
	last      uint32  // program of the last run
	from, to  int     // its tokens [from, to)
	mixed     bool    // it contains runs of other programs
}

// share is what a flight takes of a run: whole tokens, or some commands of one token.
type share struct {
	tokens     uint32 // whole tokens; 0: commands of one token
	first, end int    // indices of the commands in the table, if tokens is 0
}

// newExecutor allocates an executor; the device owns its memory.
func newExecutor(d *Device, t *table.Table) (*executor, error) {
	c, _, err := chip.ForGPU(chip.GPU{Name: d.properties.Name, Family: int(d.properties.Family), Cores: int(d.properties.Cores)})
	if err != nil {
		return nil, fmt.Errorf("metal: %w", err)
	}
	e := &executor{d: d, free: make(chan *flight, flights), flying: make(chan *flight, flights), pace: make([]float64, len(t.Programs))}
	if e.prices, err = newPrices(t, c); err != nil {
		return nil, fmt.Errorf("metal: %w", err)
	}
	d.predicted.Store(e.prices)
	for i := range flights {
		f := &flight{i: i}
		chains, err := array[driver.Chain](&d.own, 1)
		if err == nil {
			f.chain = &chains[0]
			f.runs, err = array[driver.Run](&d.own, maxRuns)
		}
		if err == nil {
			f.chain.Runs = unsafe.SliceData(f.runs)
			f.chain.Result, f.result, err = d.own.buffer(driver.StepBytes)
		}
		if err == nil {
			f.chain.Places, f.places, err = d.own.buffer(maxRuns * driver.PlaceBytes)
		}
		if err != nil {
			return nil, fmt.Errorf("metal: executor: %w", err)
		}
		f.chain.Params, f.chain.Secondary = d.params, d.secondary[i]
		f.chain.Ranges = uint64(len(t.Cmds)) * driver.SecondBytes
		f.chain.Serial, f.chain.Labels = bit(d.o.Serial), bit(d.o.Labels)
		d.memory.Executor += driver.StepBytes + maxRuns*driver.PlaceBytes
		e.free <- f
	}
	return e, nil
}

func bit(on bool) uint32 {
	if on {
		return 1
	}
	return 0
}

// start starts the goroutines.
func (e *executor) start() {
	if e.awake != nil {
		e.d.queue.Go(e.awake.keep)
	}
	e.d.queue.Go(func() {
		defer close(e.flying)
		defer e.awake.end()
		for j := e.d.queue.Next(); j != nil; j = e.d.queue.Next() {
			e.submission(j)
		}
	})
	e.d.queue.Go(func() {
		for f := range e.flying {
			e.land(f)
		}
	})
}

// submission encodes a job. A panic, caused by a bug in this package, makes the device unusable
// but does not end the process.
func (e *executor) submission(j *job) {
	p := &j.Session.progress
	p.cut.Store(false)
	e.awake.begin()
	e.mu.Lock()
	p.flying, p.encoded, p.result, p.stop, p.took, p.start, p.err = 0, false, replay.Result{}, 0, 0, time.Now(), nil
	e.mu.Unlock()
	var err error
	func() {
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("metal: %w", &device.PanicError{Value: v})
				e.d.queue.Lose(err)
			}
		}()
		err = e.encode(j)
	}()
	e.mu.Lock()
	p.encoded = true
	if p.err == nil {
		p.err = err
	}
	last := p.flying == 0
	e.mu.Unlock()
	if last {
		e.ended(j)
	}
}

// ended finishes a job that has nothing in flight.
func (e *executor) ended(j *job) {
	e.awake.finish()
	p := &j.Session.progress
	if p.err != nil {
		j.Finish(replay.Result{}, p.err)
		return
	}
	r := p.result
	r.Elapsed = max(1, time.Duration(p.took*1e9))
	if j.Submission.Dry {
		r.Elapsed = max(1, time.Since(p.start))
	}
	j.Finish(r, nil)
}

// over reports whether no more of a job is to be encoded.
func over(j *job) bool { return j.Cancelled() || j.Session.progress.cut.Load() }

// encode submits a job's runs to the GPU, in command buffers of bounded duration. A run of a program that
// advances the step itself may end before its last replay: a replay that takes longer than a command buffer
// may is encoded in pieces, which need the position, and the host knows only that of the first replay.
func (e *executor) encode(j *job) error {
	sub, s := j.Submission, j.Session
	var step table.Step
	if len(sub.Runs) > 0 {
		step = e.stepOf(&sub.Runs[0])
	}
	step.Count, step.Stop = 0, 0
	if sub.Dry {
		step.Stop = device.StopDry
	}
	device.PutStep(s.step.mem[:table.StepSize], &step)
	if j.Tapped() {
		return e.steps(j)
	}
	var f *flight
	placed := true // the device's step block holds the position of the next token
	for i := range sub.Runs {
		r := &sub.Runs[i]
		if sub.Timings != nil && i == len(sub.Runs)-1 {
			if err := e.commit(f); err != nil {
				return err
			}
			return e.timed(j, i, r, sub.Timings)
		}
		step := e.stepOf(r)
		placed = placed && i == 0
		advances := e.d.table.Programs[r.Program].Flags.Has(table.FlagAdvances)
		for from, done := uint32(0), 0; from < r.Count; { // done commands of token from are encoded
			if f == nil {
				f = <-e.free
				f.begin(j)
			}
			if over(j) {
				e.free <- f
				return nil
			}
			take, ok := e.room(f, r.Program, &step, done, r.Count-from)
			if !ok {
				if err := e.commit(f); err != nil {
					return err
				}
				f = nil
				continue
			}
			if advances && from > 0 && (take.tokens == 0 || !placed) {
				// The step after a replay is known to the device alone, and only a recording takes it from there.
				return e.commit(f)
			}
			if err := e.add(f, i, r.Program, from, take, &step, placed); err != nil {
				e.free <- f
				return err
			}
			placed = take.tokens > 0
			n := take.tokens
			if n == 0 {
				if done = take.end - int(e.d.table.Programs[r.Program].First); done < int(e.d.table.Programs[r.Program].Count) {
					continue
				}
				n, done = 1, 0
			}
			e.advance(r.Program, &step, n)
			from += n
		}
	}
	return e.commit(f)
}

// stepOf returns a run's step as it is in the step block.
func (e *executor) stepOf(r *replay.Run) table.Step {
	step := r.Step
	if e.d.programs[r.Program].ranged {
		step.Row = e.d.table.Programs[r.Program].Count // length of the token's execution range, see patch.go
	}
	return step
}

// begin prepares a flight for a job's runs.
func (f *flight) begin(j *job) {
	f.job, f.used, f.tokens, f.seconds, f.predicted, f.run, f.mixed = j, 0, 0, 0, 0, -1, false
}

// room returns what still fits in a flight: some of the left tokens of a run at a step, or, if one
// token takes longer than a flight may, some of the token's commands after the first done ones. ok is
// false if nothing fits.
func (e *executor) room(f *flight, program uint32, step *table.Step, done int, left uint32) (take share, ok bool) {
	if f.used == maxRuns || f.tokens >= e.d.o.tokens {
		return take, false
	}
	p := &e.d.table.Programs[program]
	first, end, sees := int(p.First)+done, int(p.First+p.Count), e.positions(program, step)
	pace, known := e.paceOf(program)
	bound := e.d.bound().Seconds()
	one := pace * e.prices.of(int(p.First), end, sees)
	if done > 0 || one > bound && !e.d.o.whole {
		cut := e.prices.fit(first, end, sees, (bound-f.seconds)/pace)
		if cut == first && f.used == 0 {
			cut = first + 1
		}
		return share{first: first, end: cut}, cut > first
	}
	n := min(left, uint32(e.d.o.tokens-f.tokens))
	if !known { // use a separate command buffer
		return share{tokens: 1}, f.used == 0
	}
	// The last token sees the most positions.
	final := *step
	e.advance(program, &final, n-1)
	last := pace * e.prices.of(int(p.First), end, e.positions(program, &final))
	n = min(n, uint32(max(0, min((bound-f.seconds)/last, float64(n)))))
	if f.used == 0 {
		n = max(n, 1)
	}
	return share{tokens: n}, n > 0
}

// positions returns the largest number of positions that a row of a program's step sees.
func (e *executor) positions(program uint32, step *table.Step) int {
	if e.d.table.Programs[program].Flags.Has(table.FlagBatch) {
		return int(step.KVLen)
	}
	return int(step.KVLen) + int(step.Rows) - 1
}

// advance moves a step of a program on by a number of tokens. That of a batch has only predictions to serve.
func (e *executor) advance(program uint32, step *table.Step, tokens uint32) {
	if e.d.table.Programs[program].Flags.Has(table.FlagBatch) {
		step.KVLen += tokens
		return
	}
	device.Advance(step, tokens)
}

// add appends a share of a run to a flight. from is its first token. placed reports whether the
// device's step block holds that token's position.
func (e *executor) add(f *flight, run int, program, from uint32, take share, step *table.Step, placed bool) error {
	d, s := e.d, f.job.Session
	p, of := &d.programs[program], &d.table.Programs[program]
	tokens := max(1, take.tokens)
	first, count := int(of.First), int(of.Count)
	if take.tokens == 0 {
		first, count = take.first, take.end-take.first
	}
	if f.run < 0 {
		f.run, f.program, f.from = run, program, int(from)
	}
	if f.run == run {
		f.to = int(from + tokens)
	}
	f.last = program
	f.mixed = f.mixed || f.program != program
	r := &f.runs[f.used]
	*r = driver.Run{
		Commands: &s.cmds[first], Label: p.label, Count: uint32(count), Tokens: tokens, Place: driverPlace(step), First: uint32(first),
		Encoded: bit(take.tokens == 0),
	}
	if d.o.Mode == modeRecord && take.tokens > 0 {
		if err := d.record(s, f.i, program); err != nil {
			return e.fault(f, err)
		}
		r.Patch = uint32(p.patch)
		if !placed {
			device.PutStep(f.places[f.used*driver.PlaceBytes:][:driver.PlaceBytes], step)
			r.Move, r.PlaceAt = 1, uint32(f.used)
		}
		if p.ranged {
			r.Ranged, r.Range = 1, uint32(f.tokens)
			r.Patch += uint32(f.tokens)
			for i := range int(tokens) {
				b := d.ranges[f.i][(f.tokens+i)*driver.RangeBytes:]
				binary.LittleEndian.PutUint32(b, of.First)
				binary.LittleEndian.PutUint32(b[rangeLength:], 0)
			}
		}
	}
	last := *step
	e.advance(program, &last, tokens-1)
	predicted := float64(tokens) * e.prices.of(first, first+count, e.positions(program, &last))
	f.predicted += predicted
	pace, _ := e.paceOf(program)
	f.seconds += predicted * pace
	f.used++
	if take.tokens > 0 || take.end == int(of.First+of.Count) {
		f.tokens += int(tokens)
	}
	return nil
}

// paceOf returns the expected duration of a program, divided by the predicted one, and whether the
// program has been measured. Until then the pace is 1.
func (e *executor) paceOf(program uint32) (pace float64, known bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	pace = e.pace[program]
	return cmp.Or(pace, 1), pace > 0
}

// bind sets a flight's chain to its job's session.
func (e *executor) bind(f *flight) {
	c, s := f.chain, f.job.Session
	c.RunCount, c.Step, c.StepOffset = uint32(f.used), s.step.buffer, s.step.offset
	if e.d.o.Mode == modeRecord {
		c.Recording = e.d.recordings[f.i].buffer
		c.Written, c.WrittenCount = unsafe.SliceData(s.written[f.i]), uint32(len(s.written[f.i]))
		c.Read, c.ReadCount = unsafe.SliceData(e.d.read), uint32(len(e.d.read))
	}
}

// commit submits a flight, if it is not nil, to the GPU.
func (e *executor) commit(f *flight) error {
	if f == nil {
		return nil
	}
	if f.used == 0 {
		e.free <- f
		return nil
	}
	e.bind(f)
	if err := e.send(f); err != nil {
		err = e.fault(f, err)
		e.free <- f
		return err
	}
	e.d.calls.Add(f.chain.Calls)
	e.mu.Lock()
	f.job.Session.progress.flying++
	e.mu.Unlock()
	e.flying <- f
	return nil
}

// waitCalls is the number of Metal messages for waiting for a command buffer.
const waitCalls = 4

// land waits for a command buffer and finishes its job if it was the last.
func (e *executor) land(f *flight) {
	j := f.job
	p := &j.Session.progress
	err := e.d.drv.Wait(f.chain)
	e.d.calls.Add(waitCalls)
	e.mu.Lock()
	if err == nil {
		took := max(f.chain.End-f.chain.Start, 1e-9)
		p.took += took
		p.result, p.stop = device.Result(f.result)
		if p.stop == 0 || p.stop == sequence.StopBatch && e.filled(f) {
			e.learn(f, took)
		}
	} else {
		err = e.fault(f, err)
		if p.err == nil {
			p.err = err
		}
	}
	p.flying--
	cut, last := p.stop != 0 && !j.Submission.Dry || err != nil, p.encoded && p.flying == 0
	if cut { // before another goroutine can finish the job, which is reused
		p.cut.Store(true)
	}
	e.mu.Unlock()
	if errors.Is(err, ErrDeviceLost) {
		e.d.queue.Lose(err)
	}
	e.free <- f
	if last {
		e.ended(j)
	}
}

// filled reports whether a flight at whose end all rows of a batch have stopped has decoded all of its
// tokens: one of the rows has chosen the last one.
func (e *executor) filled(f *flight) bool {
	l, _ := sequence.Of(e.d.table.Header.Options, int(e.d.table.Header.Context))
	r := &f.job.Submission.Runs[f.run]
	for i := range int(r.Step.Rows) {
		at := l.RowAt(i)
		row := sequence.Parse((*[sequence.RowBytes]byte)(f.job.Session.step.mem[at:]))
		if f.run == 0 && int64(row.Count) >= int64(f.to) {
			return true
		}
	}
	return false
}

// learn compares the duration of a flight with the predicted one. e.mu must be held.
func (e *executor) learn(f *flight, took float64) {
	if f.mixed || f.predicted <= 0 {
		return
	}
	pace := &e.pace[f.program]
	if now := took / f.predicted; *pace == 0 {
		*pace = now
	} else {
		*pace += (now - *pace) / 4
	}
}

// forget makes a program unmeasured again.
func (e *executor) forget(program int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pace[program] = 0
}

// fault adds a flight's first run to an error.
func (e *executor) fault(f *flight, err error) error {
	re := device.NewRunError(name, e.d.table, f.job.Submission, f.run, err)
	re.First, re.End = f.from, f.to
	return re
}

// timed replays a run command by command, after everything before it has ended, and adds the
// commands' times to times.
func (e *executor) timed(j *job, run int, r *replay.Run, times []time.Duration) error {
	f, other := <-e.free, <-e.free // nothing is in flight
	defer func() {
		e.free <- f
		e.free <- other
	}()
	p := &j.Session.progress
	if p.cut.Load() {
		return nil
	}
	step := r.Step
	seconds := make([]float64, len(times))
	first := int(e.d.table.Programs[r.Program].First)
	for token := range r.Count {
		if over(j) {
			break
		}
		f.begin(j)
		if err := e.add(f, run, r.Program, token, share{tokens: 1}, &step, true); err != nil {
			return err
		}
		e.bind(f)
		f.chain.Recording = 0
		f.chain.Labels = 1
		failed, err := e.d.drv.Timed(f.chain, seconds)
		f.chain.Labels = bit(e.d.o.Labels)
		if err != nil {
			if errors.Is(err, ErrDeviceLost) {
				e.d.queue.Lose(fmt.Errorf("metal: %w", err))
			}
			if failed >= 0 {
				return device.NewCommandError(name, e.d.table, first+failed, err)
			}
			return e.fault(f, err)
		}
		for i, t := range seconds {
			times[i] += max(1, time.Duration(t*1e9))
			e.mu.Lock()
			p.took += t
			e.mu.Unlock()
		}
		device.Advance(&step, 1)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	p.result, p.stop = device.Result(j.Session.step.mem)
	return nil
}
