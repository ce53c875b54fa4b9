package cpu

import (
	"time"

	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// course is the way of the team through a job. It belongs to the leader.
type course struct {
	job    *job
	number uint64 // of the job; the first is 1
	replay uint64 // number of the replay; the first of all jobs is 1
	start  time.Time

	run      int    // current run
	use      int    // number of workers that take part in it
	left     uint32 // replays of the run that have not begun
	phases   []phase
	at       int // current phase
	step     table.Step
	prepares bool // the current phase prepares the input of its first command
	prepared bool // it has been prepared
	timed    bool // the run is timed
	began    time.Time
}

// lead takes the next job and publishes its first phase. Jobs without work for more than one
// worker end here. If there are no more jobs, the team ends.
func (t *team) lead(w *worker) {
	for {
		j := t.dev.queue.Next()
		if j == nil {
			t.course.use = len(t.workers)
			t.publish(nil, modeEnd, 0)
			return
		}
		if t.course.begin(j) && t.proceed(w) {
			return
		}
	}
}

// advance moves the team on when a phase is complete.
func (t *team) advance(w *worker) {
	if !t.proceed(w) {
		t.lead(w)
	}
}

// begin starts a job. It returns false if the job ends at once.
func (c *course) begin(j *job) bool {
	var step table.Step
	if runs := j.Submission.Runs; len(runs) > 0 {
		step = runs[0].Step
	}
	step.Count, step.Drafted, step.Accepted = 0, 0, 0
	*j.Session.step = step
	j.Session.refused = nil
	if ends(j) {
		j.Finish(replay.Result{Stopped: true}, nil)
		return false
	}
	*c = course{job: j, number: c.number + 1, replay: c.replay, start: time.Now(), run: -1}
	return true
}

// proceed publishes the next phase of the job. It returns false if the job has ended. A phase that
// is a single piece needs no other worker: it is executed here.
func (t *team) proceed(w *worker) bool {
	c := &t.course
	for c.next(w) {
		p, m := &c.phases[c.at], c.mode()
		if w.job != c.number {
			w.join(c.number)
		}
		w.step, w.replay, w.use = c.step, c.replay, c.use
		total := w.pieces(p, m)
		if total > 1 {
			t.publish(p, m, total)
			return true
		}
		d := w.enter(p, m, 0)
		lo, hi := d.home(0, 0)
		w.execute(&p.items[0], &d, m, lo, hi)
	}
	w.leave()
	t.rest()
	c.finish(nil)
	return false
}

// rest tells the other workers that there is no job at the moment. It need not wake those that sleep.
func (t *team) rest() {
	if gen := t.gate.word.Load() + 1; mode(t.mode.Load())&modeIdle == 0 {
		t.mode.Store(gen<<modeBits | uint64(modeIdle))
		t.gate.word.Store(gen)
	}
}

// publish makes a phase the current one. The previous phase is complete.
func (t *team) publish(p *phase, m mode, total int) {
	c := &t.course
	gen := t.gate.word.Load() + 1
	t.mode.Store(gen<<modeBits | uint64(m))
	t.phase.Store(p)
	if t.replay.Load() != c.replay {
		t.job.Store(c.number)
		t.replay.Store(c.replay)
		for i, word := range stepWords(&c.step) {
			t.step[i].Store(word)
		}
	}
	if int(t.use.Load()) != c.use {
		t.recall(c.use)
	}
	t.total = total
	t.done.Store(0)
	t.gate.set(gen)
}

// next moves on to the next phase. It returns false if the job ends here.
func (c *course) next(w *worker) bool {
	if c.prepares && !c.prepared {
		c.prepared = true
		return !ends(c.job)
	}
	if c.phases != nil {
		c.complete(w)
		c.at++
	}
	for c.at == len(c.phases) {
		if !c.again(w.team) {
			return false
		}
	}
	if ends(c.job) {
		return false
	}
	c.prepares, c.prepared = c.together(w), false
	if c.timed {
		c.began = time.Now()
	}
	return true
}

// complete ends the current phase.
func (c *course) complete(w *worker) {
	s := c.job.Submission
	if c.timed {
		s.Timings[c.at] += time.Since(c.began)
	}
	if tap := s.Tap; tap != nil && !s.Dry {
		if w.at = c.phases[c.at].items[0].cmds[0].index; tap.Cmds[w.at] {
			c.job.Session.refused = w.show(c.job, tap)
		}
	}
}

// again begins the next replay, of the current run or of the next one. It returns false if there is
// none.
func (c *course) again(t *team) bool {
	j := c.job
	runs := j.Submission.Runs
	if c.phases != nil {
		if t.dev.moves[runs[c.run].Program] {
			c.step = *j.Session.step // the last command has updated the step block
			if ends(j) {
				return false
			}
		} else {
			device.Advance(&c.step, 1)
		}
	}
	for c.left == 0 {
		if c.run++; c.run == len(runs) {
			return false
		}
		run := &runs[c.run]
		c.left, c.step, c.use = run.Count, run.Step, len(t.workers)
		if run.Step.Rows <= 1 {
			c.use = t.few
		}
		c.timed = j.Submission.Timings != nil && c.run == len(runs)-1
		c.phases = j.Session.phases[run.Program].of(c.timed || j.Submission.Tap != nil)
	}
	c.left--
	c.replay++
	c.at = 0
	return true
}

// together reports whether the workers prepare the input of the current phase's first command
// together. The barrier before the phase has ended all reading of the memory for it.
func (c *course) together(w *worker) bool {
	first := &c.phases[c.at].items[0].cmds[0]
	k, ok := first.kernel.(prepared)
	if !ok || !first.barrier || c.use == 1 || c.job.Submission.Dry {
		return false
	}
	w.step = c.step
	w.patch(first.cmd)
	return k.pieces(w, first.tiles) > 0
}

// mode returns the mode of the current phase.
func (c *course) mode() (m mode) {
	switch {
	case c.prepared:
		m = modePrepared
	case c.prepares:
		m = modePrepare
	}
	if c.job.Submission.Dry {
		m |= modeDry
	}
	return m
}

// finish ends the job.
func (c *course) finish(err error) {
	j := c.job
	if err == nil {
		err = j.Session.refused
	}
	step := j.Session.step
	j.Finish(replay.Result{
		Count: int(step.Count), Stopped: step.Stop&device.StopID != 0, Elapsed: time.Since(c.start),
		Drafted: int(step.Drafted), Accepted: int(step.Accepted), Row: int(step.Row), Trust: step.Trust,
	}, err)
}

// ends reports whether the rest of a job is skipped.
func ends(j *job) bool { return j.Cancelled() || j.Session.step.Stop != 0 || j.Session.refused != nil }
