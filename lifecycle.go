package pianola

import (
	"context"
	"time"
)

// State is where a model is in its life.
type State string

// The states. Open goes through them in this order and ends in StateReady, when it
// returns a model, or, from any other, in StateFailed.
const (
	StateOpening State = "opening" // reads the headers of the files
	StateLoading State = "loading" // reads the tokenizer, compiles the table, brings the weights to the device
	StateLoaded  State = "loaded"  // the weights are where the device uses them
	StateReady   State = "ready"   // kernels are compiled and have run once, weights in memory: the first token takes as long as others
	StateFailed  State = "failed"  // and nothing is left of what was loaded
)

// Stage is a part of loading.
type Stage string

// The stages, in order: all but the last are of StateLoading, that is of
// StateLoaded. Those that are counted in bytes have an event for every few megabytes,
// others one when they begin.
const (
	StageTokenizer Stage = "tokenizer"
	StageCompile   Stage = "compile" // makes the table, or decodes a roll
	StageCheck     Stage = "check"   // in bytes, if Options.CheckWeights: reads all tensors
	StageTouch     Stage = "touch"   // in bytes: reads one of each page of the weights that stay where they are
	StageUpload    Stage = "upload"  // in bytes: executes the upload section, which reads the others
	StageWarm      Stage = "warm"    // on GPUs: replays every program once
)

// Event is something that happens to a model while it is opened.
type Event struct {
	State State
	Stage Stage         // "" where a state begins
	After time.Duration // since Open began

	Done, Total uint64 // bytes of the stage; 0 and 0 where it is not counted in bytes

	// Note says in StateReady what is not so: that weights were not touched, since they
	// are more than the memory that is free.
	Note string
	Err  error // in StateFailed: what Open returns
}

// lifecycle tells of the events of one model; nil tells nobody.
type lifecycle struct {
	tell  func(Event)
	start time.Time
	state State
	note  string
}

func newLifecycle(tell func(Event)) *lifecycle {
	if tell == nil {
		return nil
	}
	return &lifecycle{tell: tell, start: time.Now()}
}

func (l *lifecycle) event(e Event) {
	e.State, e.After = l.state, time.Since(l.start)
	l.tell(e)
}

// enter begins a state, and its first stage unless that is "". It returns why the
// context has ended, maybe by who was told: nobody is told that a cancelled model is
// ready.
func (l *lifecycle) enter(ctx context.Context, s State, first Stage) error {
	if err := context.Cause(ctx); l == nil || err != nil {
		return err
	}
	l.state = s
	e := Event{}
	if s == StateReady {
		e.Note = l.note
	}
	if l.event(e); first == "" {
		return context.Cause(ctx)
	}
	return l.begin(ctx, first)
}

// begin begins a stage that is not counted in bytes.
func (l *lifecycle) begin(ctx context.Context, s Stage) error {
	if err := context.Cause(ctx); l == nil || err != nil {
		return err
	}
	l.event(Event{Stage: s})
	return context.Cause(ctx)
}

// stage returns a progress function for a stage, nil if nobody listens.
func (l *lifecycle) stage(s Stage) func(done, total uint64) {
	if l == nil {
		return nil
	}
	return func(done, total uint64) { l.event(Event{Stage: s, Done: done, Total: total}) }
}

// untouched notes why weights were not touched.
func (l *lifecycle) untouched(why string) {
	if l != nil {
		l.note = "weights were not touched: " + why
	}
}

// fail ends the life and returns err.
func (l *lifecycle) fail(err error) error {
	if l != nil {
		l.state = StateFailed
		l.event(Event{Err: err})
	}
	return err
}
