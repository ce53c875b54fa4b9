// Package exectrace reads execution traces of runtime/trace for tests. It returns the events
// that affected a goroutine during a trace region.
package exectrace

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/exp/trace"
)

// Region is one trace region of a goroutine, from its beginning to its end.
type Region struct {
	Goroutine trace.GoID
	Begin     trace.Time
	Took      time.Duration
	// Switches lists the changes of the goroutine's state in the region, such as "Running to
	// Runnable: preempted". It is empty for a goroutine that runs without interruption.
	Switches []string
	// Collections lists the garbage collector's activities during the region that affect the
	// goroutine: any mark phase, any stop of the world, and the goroutine's own assists and
	// sweeps.
	Collections []string
}

// Quiet reports whether the goroutine ran undisturbed by the scheduler and the garbage
// collector.
func (r *Region) Quiet() bool { return len(r.Switches) == 0 && len(r.Collections) == 0 }

// Read returns the regions of type regionType in a trace, in the order of their ends. It
// leaves out regions that the trace contains only in part.
func Read(r io.Reader, regionType string) ([]Region, error) {
	in, err := trace.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("exectrace: %w", err)
	}
	x := reader{open: map[trace.GoID]*Region{}, active: map[trace.Range]bool{}}
	for {
		ev, err := in.ReadEvent()
		if errors.Is(err, io.EOF) {
			return x.done, nil
		}
		if err != nil {
			return nil, fmt.Errorf("exectrace: %w", err)
		}
		x.take(ev, regionType)
	}
}

type reader struct {
	open   map[trace.GoID]*Region
	active map[trace.Range]bool // active ranges of the garbage collector
	done   []Region
}

func (x *reader) take(ev trace.Event, regionType string) {
	switch ev.Kind() {
	case trace.EventRegionBegin:
		if ev.Region().Type == regionType {
			r := &Region{Goroutine: ev.Goroutine(), Begin: ev.Time()}
			for of := range x.active {
				r.collects(of)
			}
			x.open[r.Goroutine] = r
		}
	case trace.EventRegionEnd:
		if r := x.open[ev.Goroutine()]; r != nil && ev.Region().Type == regionType {
			r.Took = ev.Time().Sub(r.Begin)
			x.done = append(x.done, *r)
			delete(x.open, r.Goroutine)
		}
	case trace.EventStateTransition:
		if st := ev.StateTransition(); st.Resource.Kind == trace.ResourceGoroutine {
			from, to := st.Goroutine()
			// A new generation of the trace repeats the goroutines' states. That is not a state
			// change.
			if r := x.open[st.Resource.Goroutine()]; r != nil && from != to && from != trace.GoUndetermined {
				r.Switches = append(r.Switches, strings.TrimSuffix(fmt.Sprintf("%v to %v: %s", from, to, st.Reason), ": "))
			}
		}
	case trace.EventRangeBegin, trace.EventRangeActive:
		of := ev.Range()
		if !collector(of) || x.active[of] {
			return
		}
		x.active[of] = true
		for _, r := range x.open {
			r.collects(of)
		}
	case trace.EventRangeEnd:
		delete(x.active, ev.Range())
	}
}

// collector reports whether a range belongs to the garbage collector or stops the world.
func collector(of trace.Range) bool {
	return strings.HasPrefix(of.Name, "GC ") || strings.HasPrefix(of.Name, "stop-the-world")
}

// collects records a range of the garbage collector, unless it is work that another goroutine
// does for the collector.
func (r *Region) collects(of trace.Range) {
	own := of.Scope.Kind == trace.ResourceGoroutine && of.Scope.Goroutine() == r.Goroutine
	if own || of.Scope.Kind == trace.ResourceNone || strings.HasPrefix(of.Name, "stop-the-world") {
		r.Collections = append(r.Collections, of.Name)
	}
}
