package cpu

import (
	"context"
	"errors"
	"runtime"
	"runtime/debug"
	"runtime/trace"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/table"
)

// worker is one thread of the team and its own state. Workers share only the slots, and the
// fields of the team that are atomic or belong to the worker that leads.
type worker struct {
	team   *team
	id     int
	seen   uint64        // the last generation whose phase this worker has left
	job    uint64        // the job that the worker takes part in, or 0
	region *trace.Region // of the job
	slice  time.Time     // the worker has used its thread without a break since then, or for a shorter time
	pace   pace

	// The current phase.
	gen      uint64
	use      int        // number of workers that take part
	replay   uint64     // the replay that step belongs to
	step     table.Step // position of the replay
	item     int
	alone    bool     // the phase has no other command
	division division // of the item
	begun    begun
	at       int // current command, for errors

	// The command's patched values.
	index uint32 // token index, position or first row
	kvLen uint32
	rows  int

	scratch []byte
	shared  []byte // input of the current command that the team has prepared together, or nil
	from    int    // first row of the input that a product computes
	input   input
	tiles   tiledInput // input of a tiled product; a field because it would escape
	float   floatInput
	chunk   [inputChunk]float32
	top     [attnRows]float32 // running maxima of attention; next to them the sums of weights
	sum     [attnRows]float32

	totalTop, totalSum [attnRows]float32 // of an attnTotal
	laneSees           [attnRows]int32   // positions of a block that rows see
	_                  pad
}

// team is the group of threads that replays tables, phase by phase. The worker that completes the
// last piece of a phase leads: it moves the team on to the next phase, or to the next job.
type team struct {
	dev     *Device
	workers []*worker
	shared  []byte // input of a command that the workers have prepared together
	parts   partsMemory
	waits   waits

	// The current phase. gate's word is its generation. A leader stores mode before the other
	// fields and the word after them, so a worker that reads the word, the other fields and then
	// the generation in mode, all of the same generation, has read one phase.
	_      pad
	mode   atomic.Uint64 // generation and mode
	phase  atomic.Pointer[phase]
	job    atomic.Uint64 // number of the job
	replay atomic.Uint64 // number of the replay that step belongs to
	use    atomic.Int64  // number of workers that take part: the first ones
	total  int           // pieces of the phase; constant until all of them are done
	_      pad
	step   [table.StepSize / 8]atomic.Uint64 // position of the replay
	gate   gate
	done   atomic.Int64 // pieces that have been executed
	_      pad
	behind atomic.Uint64 // workers whose homes others had to begin, one bit each
	_      pad
	pool   claims
	homes  []claims // of each worker

	course course // belongs to the leader

	looked func(*worker) // set by tests: called when a worker has read a phase and claimed nothing

	few     int  // number of workers that take part in runs of one row; set between jobs
	reserve gate // counts changes of use that other workers wait for

	failed atomic.Pointer[device.CommandError]
	left   gate // number of workers that have left after a failure
}

// newTeam starts n workers. cpus, if not nil, lists the processor to bind each worker to.
func newTeam(d *Device, n int, size teamSize, cpus []int) (*team, error) {
	t := &team{dev: d, waits: d.waits}
	warmParking()
	for range n {
		mem, err := allocate(size.scratch)
		if err != nil {
			return nil, err
		}
		preferHuge(mem)
		t.add(mem)
	}
	if n > 1 {
		var err error
		if t.shared, err = allocate(size.scratch); err != nil {
			return nil, err
		}
		preferHuge(t.shared)
		parts, err := allocate(size.parts)
		if err != nil {
			return nil, err
		}
		t.parts = partsMemory{float32s(parts), make([]atomic.Uint32, size.heads)}
	}
	pinned, start := make(chan error), make(chan bool)
	for i, w := range t.workers {
		d.queue.Go(func() {
			// The thread is never unlocked: it ends with its worker.
			runtime.LockOSThread()
			// A fault in memory mapped from a file, for example because the file shrinks, becomes
			// a panic that main recovers.
			debug.SetPanicOnFault(true)
			var err error
			if cpus != nil {
				err = pinThread(cpus[i%len(cpus)])
			}
			pinned <- err
			if <-start {
				w.main()
			}
		})
	}
	var err error
	for range t.workers {
		err = errors.Join(err, <-pinned)
	}
	for range t.workers {
		start <- err == nil
	}
	return t, err
}

// add adds a worker with private memory.
func (t *team) add(scratch []byte) {
	t.workers = append(t.workers, &worker{team: t, id: len(t.workers), scratch: scratch})
	t.homes = append(t.homes, claims{})
	t.few = len(t.workers)
	t.use.Store(int64(t.few))
}

// teamSize is the memory that a team needs for a table.
type teamSize struct {
	scratch uint64 // private memory of a worker
	parts   uint64 // bytes of the parts of attention, which a single worker does not need
	heads   int    // most heads of a command
}

func teamSizeOf(t *table.Table) (s teamSize, err error) {
	s.scratch, err = workerBytes(t)
	floats, heads := partsSize(t)
	s.parts, s.heads = 4*floats, heads
	return s, err
}

// bytes returns the memory of a team of n workers.
func (s teamSize) bytes(n int) uint64 {
	if n > 1 {
		return uint64(n+1)*s.scratch + s.parts
	}
	return uint64(n) * s.scratch
}

// warmParking makes the runtime keep enough records of parked goroutines on each processor. A
// goroutine that parks on one processor and wakes on another moves its record to it, so that
// without a stock the first few hundred submissions would allocate some.
func warmParking() {
	const stock, most = 128, 2048 // capacity of the runtime's cache of a processor; limit for all processors
	var parked sync.WaitGroup
	gate := make(chan struct{})
	for range min(stock*runtime.GOMAXPROCS(0), most) {
		parked.Go(func() { <-gate })
	}
	// Yield, so that the goroutines block at the gate. A goroutine that does not block in time
	// only leaves one record fewer.
	for range 4 {
		runtime.Gosched()
	}
	close(gate)
	parked.Wait()
}

// main executes jobs until there will be no more. A panic, caused by a bug in this package or a
// fault of mapped memory, makes the device unusable but does not end the process.
func (w *worker) main() {
	t := w.team
	defer func() {
		w.leave()
		if v := recover(); v != nil {
			at := device.NewCommandError(name, t.dev.table, w.at, &device.PanicError{Value: v})
			if t.failed.CompareAndSwap(nil, at) {
				t.fail(at)
				return
			}
		}
		t.left.word.Add(1)
		t.left.wake()
	}()
	if canMeasure && len(t.workers) > 1 && t.waits != owning {
		w.pace.start()
	}
	if w.id == 0 {
		t.lead(w)
	}
	for w.follow() {
	}
}

// fail ends the current job and the team. The caller has claimed a piece that it will never count as
// done, so the phase does not end.
func (t *team) fail(err error) {
	t.gate.set(poisoned)
	t.recall(len(t.workers))
	for n := t.left.word.Load(); n != uint64(len(t.workers)-1); {
		n = t.left.await(n, t.waits.meet)
	}
	t.dev.queue.Lose(err)
	t.course.finish(err)
	t.dev.queue.Next() // returns once the device is closed
}

// poisoned is the generation after a failure.
const poisoned = ^uint64(0)

// follow waits for a phase and executes pieces of it. It returns false if there will be no more.
func (w *worker) follow() bool {
	t := w.team
	if w.stand() {
		return true
	}
	gen := w.await()
	if w.pace.yield() {
		gen = t.gate.word.Load()
	}
	if gen == poisoned {
		return false
	}
	p, m, ok := w.look(gen)
	if !ok {
		return true // the phase has ended meanwhile
	}
	if t.looked != nil {
		t.looked(w)
	}
	switch {
	case m&modeEnd != 0:
		return false
	case m&modeIdle != 0:
		w.leave()
		w.seen = gen
		return true
	}
	done, stopped := w.own(p, m)
	if !stopped {
		done += w.rescue(p, m)
		w.seen = gen
	}
	w.count(done)
	return true
}

// stand waits while the worker does not take part. It returns false if it does.
func (w *worker) stand() bool {
	t := w.team
	changes := t.reserve.word.Load()
	if w.id < int(t.use.Load()) {
		return false
	}
	w.leave()
	w.pace.pause()
	t.reserve.await(changes, 0)
	w.pace.resume()
	return true
}

// recall sets the number of workers that take part.
func (t *team) recall(n int) {
	more := n > int(t.use.Load())
	t.use.Store(int64(n))
	if more {
		t.reserve.set(t.reserve.word.Load() + 1)
	}
}

// look reads the phase of a generation. It fails if the team has moved on.
func (w *worker) look(gen uint64) (p *phase, m mode, ok bool) {
	t := w.team
	p, job, replay, use := t.phase.Load(), t.job.Load(), t.replay.Load(), int(t.use.Load())
	if replay != w.replay {
		words := stepWords(&w.step)
		for i := range words {
			words[i] = t.step[i].Load()
		}
		w.replay = 0 // unless the step is complete
	}
	word := t.mode.Load()
	if word>>modeBits != gen {
		return nil, 0, false
	}
	m = mode(word & (1<<modeBits - 1))
	w.gen, w.replay, w.use = gen, replay, use
	if job != w.job && m&(modeIdle|modeEnd) == 0 {
		w.join(job)
	}
	return p, m, true
}

// join begins the worker's part of a job.
func (w *worker) join(job uint64) {
	w.leave()
	w.job = job
	w.renew()
	w.region = trace.StartRegion(context.Background(), TraceRegion)
}

// leave ends the worker's part of its job.
func (w *worker) leave() {
	if w.job != 0 {
		w.region.End()
		w.job = 0
	}
}

// TraceRegion is the type of the runtime/trace region of each worker during a submission. It
// costs nothing unless a trace is recorded.
const TraceRegion = "pianola.submission"

// count counts executed pieces. The worker that counts the last one leads the team on.
func (w *worker) count(pieces int) {
	if pieces == 0 {
		return
	}
	t := w.team
	total := t.total // the phase does not end before this worker's pieces are counted
	if t.done.Add(int64(pieces)) == int64(total) {
		t.advance(w)
	}
}

// await waits for another generation than the last one that the worker has left, and returns it.
// It polls the generation for a while and then sleeps. If the phase takes long, it first executes
// pieces that other workers have not begun.
func (w *worker) await() uint64 {
	t := w.team
	last, polls := w.seen, t.waits.idle
	if w.job != 0 {
		polls = t.waits.meet
		for range patience {
			if gen := t.gate.word.Load(); gen != last {
				return gen
			}
		}
		w.help(last)
	}
	for range polls {
		if gen := t.gate.word.Load(); gen != last {
			return gen
		}
	}
	w.pace.pause()
	gen := t.gate.await(last, 0)
	w.pace.resume()
	return gen
}

// patience is the number of polls before a worker that waits takes over pieces of others: a few
// microseconds, longer than most waits for workers that take part.
const patience = 1 << 12

// help executes pieces of the phase that the worker has left and that other workers have not begun.
func (w *worker) help(gen uint64) {
	p, m, ok := w.look(gen)
	if !ok || m&(modeIdle|modeEnd) != 0 {
		return
	}
	done := 0
	for i := range w.use - 1 {
		done += w.steal(p, m, (w.id+1+i)%w.use)
	}
	w.count(done)
}

// late records that a worker had not begun a phase when others waited for it. Until the worker
// returns, others take its pieces without waiting.
func (t *team) late(id int) {
	if id < 64 {
		t.behind.Or(1 << id)
	}
}

// rescue executes the pieces of workers that have been late. It returns their number.
func (w *worker) rescue(p *phase, m mode) (done int) {
	t := w.team
	behind := t.behind.Load()
	if behind == 0 {
		return 0
	}
	if w.id < 64 && behind&(1<<w.id) != 0 {
		t.behind.And(^uint64(1 << w.id))
	}
	for i := range w.use - 1 {
		id := (w.id + 1 + i) % w.use
		if id < 64 && behind&(1<<id) != 0 {
			done += w.steal(p, m, id)
		}
	}
	return done
}

// patch sets the worker's patched values for a command.
func (w *worker) patch(c *table.Cmd) {
	second := c.Second
	c.Apply(&w.step, &second)
	w.index = table.Field(&second, decl.SecondIndex)
	w.kvLen = table.Field(&second, decl.SecondKVLen) + table.Field(&second, decl.SecondBehind)
	w.rows = int(table.Field(&second, decl.SecondRows))
}

// prepared returns the memory of the current command's input.
func (w *worker) prepared() []byte {
	if w.shared != nil {
		return w.shared
	}
	return w.scratch
}
