package fleet

import (
	"context"
	"slices"
	"time"
)

// reservation is a load that waits for memory. Its fields belong to the fleet's lock.
type reservation[M Model] struct {
	of      *member[M]
	bytes   int64
	since   time.Time
	granted chan struct{}
	victims []*member[M] // models that are draining for it
	err     error
}

// reserve waits until the memory of a model is free, and counts it as used. Loads wait in the order
// in which they came, so that a large model is not kept out by small ones.
func (f *Fleet[M]) reserve(ctx context.Context, one *member[M], bytes int64) error {
	f.mu.Lock()
	r := &reservation[M]{of: one, bytes: bytes, since: time.Now(), granted: make(chan struct{})}
	f.queue = append(f.queue, r)
	f.fit()
	f.mu.Unlock()
	// The queue looks again when the load's patience is over.
	timer := time.AfterFunc(f.o.Patience, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.fit()
	})
	defer timer.Stop()
	select {
	case <-r.granted:
		return r.err
	case <-ctx.Done():
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if i := slices.Index(f.queue, r); i >= 0 {
		f.queue = slices.Delete(f.queue, i, i+1)
		f.settle(r)
		f.fit()
	}
	return context.Cause(ctx) // memory that was granted is returned by load
}

// fit gives memory to the loads that wait, and makes room for the first one.
func (f *Fleet[M]) fit() {
	for len(f.queue) > 0 {
		r := f.queue[0]
		if r.err = f.tooLarge(r); r.err == nil {
			if !f.room(r) {
				return
			}
			f.used += r.bytes
			r.of.bytes = r.bytes
		}
		f.queue = f.queue[1:]
		f.settle(r)
		close(r.granted)
	}
}

// tooLarge returns an error if a load would wait for ever.
func (f *Fleet[M]) tooLarge(r *reservation[M]) error {
	budget := f.o.Budget
	if budget == 0 {
		return nil
	}
	for _, one := range f.all {
		if one.entry.Pinned && one != r.of {
			budget -= one.bytes
		}
	}
	if r.bytes > budget {
		return &TooLargeError{ID: r.of.entry.ID, Bytes: r.bytes, Budget: max(0, budget)}
	}
	return nil
}

// room reports whether a load fits. Otherwise it evicts idle models, the least recently used first, if
// that makes the load fit. If the load has waited long enough, it drains models in use too.
func (f *Fleet[M]) room(r *reservation[M]) bool {
	if f.o.Budget == 0 {
		return true
	}
	need := r.bytes - (f.o.Budget - f.used)
	if need <= 0 {
		return true
	}
	var idle, busy []*member[M]
	for _, one := range f.all {
		switch {
		case one.state == closing || one.draining:
			need -= one.bytes
		case one.state != ready || one.entry.Pinned:
		case one.users == 0:
			idle = append(idle, one)
		default:
			busy = append(busy, one)
		}
	}
	oldest := func(a, b *member[M]) int { return a.lastUse.Compare(b.lastUse) }
	slices.SortStableFunc(idle, oldest)
	slices.SortStableFunc(busy, oldest)
	var chosen []*member[M]
	choose := func(from []*member[M]) {
		for _, one := range from {
			if need > 0 && one.bytes > 0 {
				need -= one.bytes
				chosen = append(chosen, one)
			}
		}
	}
	choose(idle)
	if need > 0 && time.Since(r.since) >= f.o.Patience {
		choose(busy)
	}
	if need > 0 {
		return false // too little becomes free
	}
	for _, one := range chosen {
		if one.users == 0 {
			f.evict(one)
		} else {
			one.draining = true
			r.victims = append(r.victims, one)
		}
	}
	return false
}

// settle ends the draining of the models that a load does not need any more.
func (f *Fleet[M]) settle(r *reservation[M]) {
	for _, one := range r.victims {
		if one.state == ready && one.draining {
			one.draining = false
			f.serve(one)
		}
	}
	r.victims = nil
}
