package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Model is a loaded model.
type Model interface {
	Close() error
}

// Defaults of Options.
const (
	DefaultKeep     = 5 * time.Minute
	DefaultPatience = 10 * time.Second
)

// Options are the settings of a fleet.
type Options[M Model] struct {
	Budget   int64         // bytes of all loaded models; 0 means no limit
	Keep     time.Duration // time from a model's last use to its eviction; 0 means DefaultKeep, negative means for ever
	Patience time.Duration // see the package comment; 0 means DefaultPatience
	// Size returns the memory that a model will need. It may be nil if there is no budget.
	Size func(context.Context, Entry) (int64, error)
	// Load loads a model. Its context ends when nobody waits for the model any more.
	Load func(context.Context, Entry) (M, error)
	// Event, if not nil, is told of loads and evictions, in their order. It must not call the fleet.
	Event func(Event)
}

// Errors of Acquire, besides those of Options.Size and Options.Load, of the context, and *TooLargeError.
var (
	ErrUnknown = errors.New("there is no such model")
	ErrClosed  = errors.New("the models are being closed")
)

// TooLargeError is the error of a model that cannot fit in the budget.
type TooLargeError struct {
	ID            string
	Bytes, Budget int64 // the budget without the models that are pinned
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the model %s needs %d bytes of memory, of %d", quote(e.ID), e.Bytes, e.Budget)
}

// state is the state of a member.
type state int

const (
	absent state = iota
	loading
	ready
	closing
)

// String returns the state's name in lists.
func (s state) String() string { return [...]string{"absent", "loading", "ready", "closing"}[s] }

// member is a model of the fleet. Its fields belong to the fleet's lock.
type member[M Model] struct {
	entry  Entry
	state  state
	asking []*asker[M] // callers who wait, in the order of their calls

	bytes     int64              // counted in the fleet's use, from the reservation to the end of closing
	cancel    context.CancelFunc // of the load in progress
	abandoned bool               // the load in progress was cancelled

	model    M
	users    int
	lastUse  time.Time
	idle     *time.Timer // evicts the model
	rests    int         // number of idle times, which tells their timers apart
	draining bool        // new callers wait, because a load waits for the memory
}

// asker is a caller who waits for a model. done is closed when the other fields are set.
type asker[M Model] struct {
	done  chan struct{}
	lease *Lease[M]
	err   error
}

// Fleet is a set of models. Its methods may be called concurrently.
type Fleet[M Model] struct {
	o      Options[M]
	byName map[string]*member[M]
	all    []*member[M] // in the order of New

	mu      sync.Mutex
	changed *sync.Cond // a lease ended, or a member is absent again
	closed  bool
	used    int64
	queue   []*reservation[M] // loads that wait for memory
	failed  []error           // of models that were closed
}

// New returns a fleet of the models. It loads none.
func New[M Model](o Options[M], entries []Entry) (*Fleet[M], error) {
	byName, all, err := table[M](entries)
	if err != nil {
		return nil, err
	}
	if o.Load == nil || o.Size == nil && o.Budget > 0 || o.Budget < 0 {
		return nil, errors.New("fleet: want a function that loads models, and one that returns sizes for a budget")
	}
	if o.Keep == 0 {
		o.Keep = DefaultKeep
	}
	if o.Patience <= 0 {
		o.Patience = DefaultPatience
	}
	f := &Fleet[M]{o: o, byName: byName, all: all}
	f.changed = sync.NewCond(&f.mu)
	return f, nil
}

// Resolve returns the entry with a name, which is an ID or an alias.
func (f *Fleet[M]) Resolve(name string) (Entry, error) {
	one := f.byName[name]
	if one == nil {
		return Entry{}, fmt.Errorf("%w: %s", ErrUnknown, quote(name))
	}
	return one.entry, nil
}

// Acquire returns a model for use; it loads the model if necessary. The caller must call Release.
func (f *Fleet[M]) Acquire(ctx context.Context, name string) (*Lease[M], error) {
	if _, err := f.Resolve(name); err != nil {
		return nil, err
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	one := f.byName[name]
	a := &asker[M]{done: make(chan struct{})}
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return nil, ErrClosed
	}
	one.asking = append(one.asking, a)
	f.serve(one)
	f.mu.Unlock()
	select {
	case <-a.done:
	case <-ctx.Done():
		if f.leave(one, a) {
			return nil, context.Cause(ctx)
		}
	}
	return a.lease, a.err
}

// serve does what the member's state allows for its callers.
func (f *Fleet[M]) serve(one *member[M]) {
	switch {
	case len(one.asking) == 0:
	case one.state == absent:
		one.state, one.abandoned = loading, false
		var ctx context.Context
		ctx, one.cancel = context.WithCancel(context.Background())
		go f.load(ctx, one)
	case one.state == ready && !one.draining:
		f.grant(one)
	}
}

// grant gives the model to the callers who wait.
func (f *Fleet[M]) grant(one *member[M]) {
	if one.idle != nil {
		one.idle.Stop()
		one.idle = nil
	}
	one.lastUse = time.Now()
	for _, a := range one.asking {
		one.users++
		a.lease = &Lease[M]{model: one.model, entry: one.entry, fleet: f, of: one}
		close(a.done)
	}
	one.asking = nil
}

// refuse ends the callers' waiting with an error.
func (one *member[M]) refuse(err error) {
	for _, a := range one.asking {
		a.err = err
		close(a.done)
	}
	one.asking = nil
}

// leave removes a caller who does not wait any more, and cancels the load if nobody is left. It
// reports false if the caller has been answered.
func (f *Fleet[M]) leave(one *member[M], a *asker[M]) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range one.asking {
		if one.asking[i] != a {
			continue
		}
		one.asking = append(one.asking[:i:i], one.asking[i+1:]...)
		if len(one.asking) == 0 && one.state == loading {
			one.abandoned = true
			one.cancel()
		}
		return true
	}
	return false
}

// load loads a member's model and gives it to its callers.
func (f *Fleet[M]) load(ctx context.Context, one *member[M]) {
	start := time.Now()
	model, err := f.open(ctx, one)
	f.mu.Lock()
	defer f.mu.Unlock()
	one.cancel()
	e := Event{Kind: Loaded, Entry: one.entry, Bytes: one.bytes, Took: time.Since(start), Err: err}
	if err == nil {
		one.state, one.model = ready, model
		if f.closed {
			f.evict(one)
		} else {
			f.grant(one)
			f.rest(one)
			f.fit()
		}
	} else {
		e.Kind = Failed
		f.used -= one.bytes
		one.state, one.bytes = absent, 0
		if one.abandoned && !f.closed { // the callers came after it was cancelled
			f.serve(one)
		} else {
			one.refuse(err)
		}
		f.fit()
		f.changed.Broadcast()
	}
	f.tell(e)
}

// open reserves the memory of a model and loads it.
func (f *Fleet[M]) open(ctx context.Context, one *member[M]) (model M, err error) {
	if f.o.Size != nil {
		size, err := f.o.Size(ctx, one.entry)
		if err == nil && size < 0 {
			err = fmt.Errorf("the model %s has a size of %d bytes", quote(one.entry.ID), size)
		}
		if err == nil {
			err = f.reserve(ctx, one, size)
		}
		if err != nil {
			return model, err
		}
	}
	return f.o.Load(ctx, one.entry)
}

// rest begins the idle time of a model if it has no users.
func (f *Fleet[M]) rest(one *member[M]) {
	if one.users > 0 || one.state != ready { // Close closes models in use
		return
	}
	switch {
	case f.closed:
	case one.draining:
		f.evict(one)
	case one.idle == nil && !one.entry.Pinned && f.o.Keep > 0:
		one.rests++
		rest := one.rests
		one.idle = time.AfterFunc(f.o.Keep, func() { f.expire(one, rest) })
	}
	f.fit()
	f.changed.Broadcast()
}

// expire ends an idle time, unless it has been interrupted.
func (f *Fleet[M]) expire(one *member[M], rest int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if one.idle == nil || one.rests != rest {
		return
	}
	one.idle = nil
	if one.users == 0 { // Visit uses models during their idle time
		f.evict(one)
	}
}

// evict closes a model. Its memory counts as used until it is closed.
func (f *Fleet[M]) evict(one *member[M]) {
	if one.idle != nil {
		one.idle.Stop()
		one.idle = nil
	}
	model := one.model
	var none M
	one.state, one.model, one.draining = closing, none, false
	go func() {
		err := model.Close()
		f.mu.Lock()
		defer f.mu.Unlock()
		if err != nil {
			f.failed = append(f.failed, fmt.Errorf("close %s: %w", quote(one.entry.ID), err))
			f.failed = f.failed[max(0, len(f.failed)-8):]
		}
		f.tell(Event{Kind: Evicted, Entry: one.entry, Bytes: one.bytes, Err: err})
		f.used -= one.bytes
		one.state, one.bytes = absent, 0
		f.serve(one)
		f.fit()
		f.changed.Broadcast()
	}()
}

// Close closes the models. Callers who wait get ErrClosed. Models in use are closed when they are not
// used any more, or when ctx ends.
func (f *Fleet[M]) Close(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.changed.Broadcast()
	})
	defer stop()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for _, one := range f.all {
		one.refuse(ErrClosed)
		if one.state == loading {
			one.cancel()
		}
	}
	for f.remaining(ctx.Err() != nil) > 0 {
		f.changed.Wait()
	}
	return errors.Join(f.failed...)
}

// remaining closes what can be closed and returns the number of models that are not closed yet.
func (f *Fleet[M]) remaining(used bool) int {
	n := 0
	for _, one := range f.all {
		if one.state == ready && (used || one.users == 0) {
			f.evict(one)
		}
		if one.state != absent {
			n++
		}
	}
	return n
}
