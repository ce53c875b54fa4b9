package metal

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pianola-engine/pianola/internal/metal/driver"
)

// touchBytes is the number of bytes of weights that are copied through a buffer at a time.
const touchBytes = 16 << 20

// touch makes the GPU read all weights, so that the first tokens do not wait for pages, including
// pages of experts and embedding rows that the warm-up does not use.
func (d *Device) touch() error {
	if len(d.weights) == 0 {
		return nil
	}
	into, _, err := d.drv.Buffer(min(touchBytes, d.properties.MaxBuffer))
	if err != nil {
		return nil // touching is optional: without memory for it the first tokens are only slower
	}
	defer d.drv.Release(into)
	return d.drv.Touch(d.weights, into)
}

// awake gives an idle GPU a little work at intervals, so that the first token after a pause is
// not slower than others. A nil awake does nothing.
type awake struct {
	d     *Device
	every time.Duration
	from  driver.Buffer
	into  driver.Buffer
	stop  chan struct{}

	mu      sync.Mutex // guards the fields below; submissions that begin wait for it
	working int        // number of submissions
	rested  time.Time  // when the last submission or keep-alive work ended
}

// shortest is the shortest interval at which the GPU gets work.
const shortest = time.Millisecond

// stayAwake makes the executor keep the GPU awake, unless every is 0.
func (e *executor) stayAwake(every time.Duration) error {
	if every <= 0 {
		return nil
	}
	a := &awake{d: e.d, every: max(every, shortest), stop: make(chan struct{}), rested: time.Now()}
	var err error
	if a.from, _, err = e.d.own.buffer(driver.StepBytes); err == nil {
		a.into, _, err = e.d.own.buffer(driver.StepBytes)
	}
	if err != nil {
		return fmt.Errorf("metal: keep-alive: %w", err)
	}
	e.awake = a
	return nil
}

// begin and finish are called at the start and the end of a submission.
func (a *awake) begin() {
	if a != nil {
		a.mu.Lock()
		a.working++
		a.mu.Unlock()
	}
}

func (a *awake) finish() {
	if a != nil {
		a.mu.Lock()
		a.working--
		a.rested = time.Now()
		a.mu.Unlock()
	}
}

// end stops keep, the loop of the keep-alive goroutine.
func (a *awake) end() {
	if a != nil {
		close(a.stop)
	}
}

func (a *awake) keep() {
	timer := time.NewTimer(a.every)
	defer timer.Stop()
	for {
		select {
		case <-a.stop:
			return
		case <-timer.C:
		}
		again, err := a.stir()
		if errors.Is(err, ErrDeviceLost) { // other errors do not make the device unusable
			a.d.queue.Lose(fmt.Errorf("metal: keep-alive: %w", err))
			return
		}
		timer.Reset(again)
	}
}

// stir gives the GPU work if it has been idle for the interval, and returns the time until the
// next check.
func (a *awake) stir() (time.Duration, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.working > 0 {
		return a.every, nil
	}
	if left := a.every - time.Since(a.rested); left > 0 {
		return left, nil
	}
	err := a.d.drv.Touch([]driver.Buffer{a.from}, a.into)
	a.rested = time.Now()
	return a.every, err
}
