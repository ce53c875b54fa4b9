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
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// worker is one thread of the team and its own state. Workers share only slots, the barrier and
// the job.
type worker struct {
	team  *team
	id    int
	last  uint64    // the barrier's last word that this worker has seen
	told  uint64    // the last word of the team's jobs that this worker has seen
	slice time.Time // the worker has used its thread without a break since then, or for a shorter time

	step table.Step // current position of the replay
	at   int        // current command, for errors

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
	_       pad
}

// team is the group of threads that replays tables. Worker 0 leads: it takes submissions and
// finishes them.
type team struct {
	dev     *Device
	workers []*worker
	barrier barrier
	shared  []byte // input of a command that the workers have prepared together
	job     *job   // the current job; nil tells the workers to end
	jobs    gate   // counts jobs
	active  gate   // number of other workers that are still executing the job
	waits   waits
	failed  atomic.Pointer[device.CommandError]
}

// newTeam starts n workers with scratch bytes each. cpus, if not nil, lists the processor to bind
// each worker to.
func newTeam(d *Device, n int, scratch uint64, cpus []int) (*team, error) {
	t := &team{dev: d, waits: d.waits}
	warmParking()
	for i := range n {
		mem, err := allocate(scratch)
		if err != nil {
			return nil, err
		}
		t.workers = append(t.workers, &worker{team: t, id: i, scratch: mem})
	}
	if n > 1 {
		var err error
		if t.shared, err = allocate(scratch); err != nil {
			return nil, err
		}
	}
	pinned, start := make(chan error), make(chan bool)
	for i, w := range t.workers {
		d.queue.Go(func() {
			// The thread is never unlocked: it ends with its worker.
			runtime.LockOSThread()
			// A fault in memory mapped from a file, for example because the file shrinks, becomes
			// a panic that run recovers.
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

// teamBytes returns the memory of a team of n workers with scratch bytes each.
func teamBytes(n int, scratch uint64) uint64 {
	if n > 1 {
		n++
	}
	return uint64(n) * scratch
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

// main is the loop of a worker. It sleeps between submissions.
func (w *worker) main() {
	if w.id == 0 {
		w.leadAll()
		return
	}
	t := w.team
	for {
		w.told = t.jobs.await(w.told, t.waits.idle)
		j := t.job
		if j == nil {
			return
		}
		w.renew()
		w.run(j)
		if t.active.word.Add(^uint64(0)) == 0 {
			t.active.wake()
		}
	}
}

// leadAll executes jobs until there will be no more, and then ends the team.
func (w *worker) leadAll() {
	t := w.team
	for j := t.dev.queue.Next(); j != nil; j = t.dev.queue.Next() {
		t.lead(w, j)
	}
	t.announce(nil)
}

// announce passes a job to the other workers, which have left the previous job.
func (t *team) announce(j *job) {
	t.job = j
	t.jobs.set(t.jobs.word.Load() + 1)
}

// lead executes a job with the whole team.
func (t *team) lead(w *worker, j *job) {
	begin(j)
	if ends(j) {
		j.Finish(replay.Result{Stopped: true}, nil)
		return
	}
	start := time.Now()
	t.active.word.Store(uint64(len(t.workers) - 1))
	t.announce(j)
	w.renew()
	w.run(j)
	for n := t.active.word.Load(); n != 0; {
		n = t.active.await(n, t.waits.meet)
	}
	var err error
	if failed := t.failed.Load(); failed != nil {
		err = failed
		t.dev.queue.Lose(err)
	}
	if err == nil {
		err = j.Session.refused
	}
	step := j.Session.step
	j.Finish(replay.Result{
		Count: int(step.Count), Stopped: step.Stop&device.StopID != 0, Elapsed: time.Since(start),
		Drafted: int(step.Drafted), Accepted: int(step.Accepted), Row: int(step.Row), Trust: step.Trust,
	}, err)
}

// begin sets the session's step to the first run's.
func begin(j *job) {
	var step table.Step
	if runs := j.Submission.Runs; len(runs) > 0 {
		step = runs[0].Step
	}
	step.Count, step.Drafted, step.Accepted = 0, 0, 0
	*j.Session.step = step
	j.Session.refused = nil
}

// TraceRegion is the type of the runtime/trace region of each worker during a submission. It
// costs nothing unless a trace is recorded.
const TraceRegion = "pianola.submission"

// run executes the worker's share of a job. A panic, caused by a bug in this package or a fault
// of mapped memory, makes the device unusable but does not end the process.
func (w *worker) run(j *job) {
	defer func() {
		if v := recover(); v != nil {
			t := w.team.dev.table
			w.team.failed.CompareAndSwap(nil, device.NewCommandError(name, t, w.at, &device.PanicError{Value: v}))
			w.team.barrier.poison()
		}
	}()
	defer trace.StartRegion(context.Background(), TraceRegion).End()
	s := j.Submission
	met := false // the team has met at a barrier and no command has run since
	for i := range s.Runs {
		run := &s.Runs[i]
		w.step = run.Step
		for range run.Count {
			timed := s.Timings != nil && i == len(s.Runs)-1
			if w.replay(j, run.Program, timed, met) {
				return
			}
			met = false
			if !w.team.dev.moves[run.Program] {
				device.Advance(&w.step, 1)
				continue
			}
			// The last command has updated the step block.
			if w.meet(j) {
				return
			}
			w.step, met = *j.Session.step, true
		}
	}
}

// replay runs a program once. met reports whether the team has just met at a barrier. replay
// returns whether the submission ends here.
func (w *worker) replay(j *job, program uint32, timed, met bool) (ends bool) {
	p := &w.team.dev.table.Programs[program]
	cmds := j.Session.cmds[p.First : p.First+p.Count]
	if timed && w.meet(j) {
		return true
	}
	for i := range cmds {
		c := &cmds[i]
		w.at = int(p.First) + i
		if c.barrier && (i > 0 || !met) && w.meet(j) {
			return true
		}
		var start time.Time
		if timed && w.id == 0 {
			start = time.Now()
		}
		w.patch(c.cmd)
		if !j.Submission.Dry && w.execute(j, c) {
			return true
		}
		if timed {
			ends := w.meet(j)
			if w.id == 0 {
				j.Submission.Timings[i] += time.Since(start)
			}
			if ends {
				return true
			}
		}
		if tap := j.Submission.Tap; tap != nil && tap.Cmds[w.at] && w.tap(j, tap) {
			return true
		}
	}
	return false
}

// patch sets the worker's patched values for a command.
func (w *worker) patch(c *table.Cmd) {
	second := c.Second
	c.Apply(&w.step, &second)
	w.index = table.Field(&second, decl.SecondIndex)
	w.kvLen = table.Field(&second, decl.SecondKVLen) + table.Field(&second, decl.SecondBehind)
	w.rows = int(table.Field(&second, decl.SecondRows))
}

// execute executes the worker's part of a command. It reports whether the submission ends here.
func (w *worker) execute(j *job, c *command) (ends bool) {
	pieces, team := 0, len(w.team.workers)
	k, ok := c.kernel.(prepared)
	if ok && c.barrier && c.tiles > 1 && team > 1 {
		pieces = k.pieces(w)
	}
	if pieces == 0 {
		w.share(c)
		return false
	}
	// The barrier before the command ended all reading of the memory: commands that follow another
	// without a barrier do not use it.
	w.shared = w.team.shared
	k.prepare(w, pieces*w.id/team, pieces*(w.id+1)/team)
	if ends = w.meet(j); !ends {
		w.share(c)
	}
	w.shared = nil
	return ends
}

// prepared returns the memory of the current command's input.
func (w *worker) prepared() []byte {
	if w.shared != nil {
		return w.shared
	}
	return w.scratch
}

// share executes the worker's units of a command. Its own units are one of nearly equal ranges;
// the rest are in a pool.
func (w *worker) share(c *command) {
	parts := min(len(w.team.workers), c.tiles)
	if w.id >= parts {
		return
	}
	units, pool := c.kernel.units(w), 0
	k, ok := c.kernel.(divisible)
	if ok && parts > 1 && parts == len(w.team.workers) {
		pool = k.pool(w)
	}
	fixed := units - pool
	lo, hi := fixed*w.id/parts, fixed*(w.id+1)/parts
	if lo < hi {
		c.kernel.run(w, lo, hi)
	}
	if pool > 0 {
		w.claim(c, k, fixed, units)
	}
}

// poolPieces is the number of pieces of a pool per worker.
const poolPieces = 8

// claim executes units [lo, hi) in pieces as long as unclaimed pieces are left. If a worker's
// processor is slow or is used by other threads, the other workers execute its pieces.
func (w *worker) claim(c *command, k divisible, lo, hi int) {
	pieces := min(poolPieces*len(w.team.workers), hi-lo)
	before := c.claims.seen[w.id]
	c.claims.seen[w.id] = before + uint64(pieces+len(w.team.workers))
	for {
		i := int(c.claims.next.Add(1) - 1 - before)
		if i >= pieces {
			return
		}
		k.more(w, lo+(hi-lo)*i/pieces, lo+(hi-lo)*(i+1)/pieces)
	}
}

// meet waits at the barrier for the whole team. It reports whether the submission ends here;
// all workers get the same answer.
func (w *worker) meet(j *job) bool {
	return w.team.barrier.wait(int32(len(w.team.workers)), w.team.waits.meet, &w.last, j)
}
