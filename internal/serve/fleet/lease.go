package fleet

import (
	"sync"
	"time"
)

// Lease is the use of a model by one caller.
type Lease[M Model] struct {
	model M
	entry Entry
	fleet *Fleet[M]
	of    *member[M]
	once  sync.Once
}

// Model returns the model. It must not be used after Release.
func (l *Lease[M]) Model() M { return l.model }

// Entry returns the model's entry.
func (l *Lease[M]) Entry() Entry { return l.entry }

// Release ends the use of the model. Calling it again has no effect.
func (l *Lease[M]) Release() {
	l.once.Do(func() {
		l.fleet.mu.Lock()
		defer l.fleet.mu.Unlock()
		l.of.users--
		l.of.lastUse = time.Now()
		l.fleet.rest(l.of)
	})
}

// Status is the state of a model of the fleet.
type Status struct {
	Entry   Entry
	State   string // "absent", "loading", "ready" or "closing"
	Bytes   int64  // counted in the budget
	Users   int    // leases
	Waiting int    // callers who wait
}

// Status returns the state of every model, in the order of New.
func (f *Fleet[M]) Status() []Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make([]Status, len(f.all))
	for i, one := range f.all {
		all[i] = Status{one.entry, one.state.String(), one.bytes, one.users, len(one.asking)}
	}
	return all
}

// Visit calls a function for every loaded model. The models are not evicted meanwhile, and their time of
// last use does not change.
func (f *Fleet[M]) Visit(visit func(Entry, M)) {
	f.mu.Lock()
	var held []*member[M]
	var models []M
	for _, one := range f.all {
		if one.state == ready && !f.closed {
			one.users++
			held, models = append(held, one), append(models, one.model)
		}
	}
	f.mu.Unlock()
	for i, one := range held {
		visit(one.entry, models[i])
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, one := range held {
		one.users--
		f.rest(one)
	}
}

// Event is a change that operators want to know.
type Event struct {
	Kind  Kind
	Entry Entry
	Bytes int64
	Took  time.Duration // of a load, with the waiting for memory
	Err   error
}

// Kind is the kind of an event.
type Kind string

// The kinds of events.
const (
	Loaded  Kind = "loaded"
	Failed  Kind = "failed"
	Evicted Kind = "evicted"
)

// tell reports an event.
func (f *Fleet[M]) tell(e Event) {
	if f.o.Event != nil {
		f.o.Event(e)
	}
}
