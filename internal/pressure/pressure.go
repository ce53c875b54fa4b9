// Package pressure watches how scarce memory is: on Linux by the limits of cgroups v2, the available
// memory of the machine and the pressure stall information of the kernel, on Darwin by the level that
// the kernel reports. It must know neither models nor devices.
package pressure

import (
	"context"
	"errors"
	"time"
)

// Level is how scarce memory is.
type Level int

// The levels.
const (
	None     Level = iota
	Moderate       // memory that is easily made again should be given back
	Critical       // the next allocation may end the process
)

// String returns the level's name.
func (l Level) String() string { return [...]string{"none", "moderate", "critical"}[l] }

// ErrUnsupported reports a system on which nothing can be watched.
var ErrUnsupported = errors.New("memory pressure cannot be watched on this system")

// Shares of a limit, and shares of the time in which a task waits for memory, from which a level begins.
const (
	moderateUse, criticalUse     = 0.85, 0.95
	moderateStall, criticalStall = 0.05, 0.20
)

// Reading is the state of memory at one time.
type Reading struct {
	// Used and Limit are bytes of what is closest to its limit, without what the kernel can reclaim
	// from files. A Limit of 0 means that there is none.
	Used, Limit uint64
	// Stalled is the time for which some task has waited for memory since the system or the cgroup
	// was started. It never decreases.
	Stalled time.Duration
	Kernel  Level // the level that the kernel itself reports
}

// Source reads the state of memory.
type Source interface {
	Read() (Reading, error)
}

// level returns the level of a reading, given the one before it and the time between them.
func (r Reading) level(before Reading, since time.Duration) Level {
	l := r.Kernel
	if r.Limit > 0 {
		switch used := float64(r.Used) / float64(r.Limit); {
		case used >= criticalUse:
			l = max(l, Critical)
		case used >= moderateUse:
			l = max(l, Moderate)
		}
	}
	if since > 0 {
		switch stall := float64(r.Stalled-before.Stalled) / float64(since); {
		case stall >= criticalStall:
			l = max(l, Critical)
		case stall >= moderateStall:
			l = max(l, Moderate)
		}
	}
	return l
}

// repeat is the number of readings after which a level that lasts is reported again.
const repeat = 10

// Watch reads a source at each interval until ctx ends, and calls f when the level rises, and again
// while it lasts. It returns the error of a reading, or nil when ctx ends.
func Watch(ctx context.Context, s Source, interval time.Duration, f func(Level, Reading)) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	before, err := s.Read()
	at, last, quiet := time.Now(), None, 0
	for err == nil {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		var now Reading
		if now, err = s.Read(); err != nil {
			break
		}
		since := time.Since(at)
		l := now.level(before, since)
		before, at = now, at.Add(since)
		if quiet++; l != None && (l > last || quiet >= repeat) {
			quiet = 0
			f(l, now)
		}
		last = l
	}
	return err
}
