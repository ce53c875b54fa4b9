package pianola

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/pianola-engine/pianola/internal/pressure"
)

// Pressure lets a model give memory back when memory becomes scarce. On Linux that is when a cgroup
// v2 comes close to its limit, when the machine has little memory available, or when tasks wait for
// memory; on macOS, when the kernel says so. Other systems are not supported.
//
// At moderate pressure, from 85 % of a limit on, the model releases the KV caches of sessions that
// have been idle for Idle, as Model.ReleaseIdle does. At critical pressure, from 95 % on, it releases
// those of all sessions that no call is using.
type Pressure struct {
	// Cgroup is the directory of a cgroup v2. "" selects the one of the process.
	Cgroup string
	// Interval is the time from one look to the next. 0 selects a second.
	Interval time.Duration
	// Idle is the time for which a session must have been idle at moderate pressure. 0 selects 30 s.
	Idle time.Duration
	// Notify is called after each release; it may be nil. It is called from one goroutine at a
	// time, never after Model.Close has returned, and must not close the model.
	Notify func(PressureEvent)
}

// PressureEvent reports scarce memory and what a model has done about it.
type PressureEvent struct {
	Critical    bool
	Used, Limit uint64 // bytes of the cgroup or the machine, or 0 if the system gives none
	Released    uint64 // bytes of KV caches that were given back
	// Err is the reason why memory could not be released. After an error of the system's files, the
	// model looks no more.
	Err error
}

// watcher gives memory back until stop is called. A nil watcher has nothing to stop.
type watcher struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// watchPressure starts what the options select.
func (m *Model) watchPressure(p *Pressure) error {
	if p == nil {
		return nil
	}
	o := *p
	if o.Interval < 0 || o.Idle < 0 {
		return fmt.Errorf("pianola: Pressure: the interval %v and the idle time %v must not be negative", o.Interval, o.Idle)
	}
	if o.Interval == 0 {
		o.Interval = time.Second
	}
	if o.Idle == 0 {
		o.Idle = 30 * time.Second
	}
	source, err := o.source()
	if err != nil {
		return fmt.Errorf("pianola: Pressure: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.watch = &watcher{cancel, make(chan struct{})}
	go func() {
		defer close(m.watch.done)
		err := pressure.Watch(ctx, source, o.Interval, func(l pressure.Level, r pressure.Reading) {
			e := PressureEvent{Critical: l == pressure.Critical, Used: r.Used, Limit: r.Limit}
			idle := o.Idle
			if e.Critical {
				idle = 0
			}
			e.Released, e.Err = m.ReleaseIdle(idle)
			o.notify(e)
		})
		if err != nil {
			o.notify(PressureEvent{Err: fmt.Errorf("pianola: Pressure: %w", err)})
		}
	}()
	return nil
}

// source returns what is watched.
func (p *Pressure) source() (pressure.Source, error) {
	if p.Cgroup == "" {
		return pressure.System()
	}
	g, err := pressure.NewCgroup(p.Cgroup, filepath.Dir(p.Cgroup))
	if err != nil {
		return nil, err
	}
	_, err = g.Read()
	return g, err
}

func (p *Pressure) notify(e PressureEvent) {
	if p.Notify != nil {
		p.Notify(e)
	}
}

// stop ends the watch and waits for it.
func (w *watcher) stop() {
	if w != nil {
		w.cancel()
		<-w.done
	}
}
