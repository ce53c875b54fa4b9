package cuda

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/pianola-engine/pianola/internal/cuda/cubin"
	"github.com/pianola-engine/pianola/internal/cuda/driver"
	"github.com/pianola-engine/pianola/internal/cuda/ptx"
)

// module is a module of the driver and what is needed to assemble it.
type module struct {
	key   cubin.Key              // of the code in the cache
	exact int                    // compute capability of a text for GPUs of exactly that capability, or 0
	text  func() ([]byte, error) // makes the text; several goroutines may make texts
	place func(err error) error  // adds the place to an error

	code   []byte // what the driver assembles from the text; nil if it refused
	cached bool   // code is from the cache
	handle driver.Module
}

// newKey returns a hash with the fields of every key: the driver, the GPU, the rules that make
// texts, the kind of the module and the target.
func (d *Device) newKey(kind, target string) *cubin.Hash {
	h, rules := cubin.NewHash(), ptx.Revision()
	h.Numbers(int(d.drv.Version()), d.gpu.Major, d.gpu.Minor)
	h.Strings(d.drv.Build(), d.gpu.Name, kind, target)
	h.Add(rules[:])
	return h
}

// loadModules loads modules. With a cache, it assembles those that the cache lacks in parallel and
// stores them.
func (l *loader) loadModules(ctx context.Context, all []*module) error {
	if l.d.cache.On() {
		var missing []*module
		for _, m := range all {
			if m.code, m.cached = l.d.cache.Get(m.key); !m.cached {
				missing = append(missing, m)
			}
		}
		if err := l.assemble(ctx, missing); err != nil {
			return err
		}
	}
	for _, m := range all {
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("cuda: load: %w", err)
		}
		if err := l.loadModule(m); err != nil {
			return m.place(err)
		}
		l.d.own.add(func() error { return l.d.drv.ModuleUnload(m.handle) })
	}
	return nil
}

// loadModule loads a module from its code, or from its text if the driver refuses the code.
func (l *loader) loadModule(m *module) (err error) {
	drv := l.d.drv
	for m.code != nil {
		if m.handle, err = drv.ModuleLoadImage(m.code); err == nil || errors.Is(err, ErrDeviceLost) || errors.Is(err, ErrOutOfMemory) {
			m.code = nil
			return err
		}
		m.code = nil
		if m.cached {
			m.cached = false
			if err := l.assembleModule(m); err != nil { // sets code, if the driver assembles the text
				return err
			}
		}
	}
	text, err := m.text()
	if err != nil {
		return err
	}
	m.handle, err = drv.ModuleLoad(text)
	return err
}

// assemble assembles modules on several threads until ctx is done.
func (l *loader) assemble(ctx context.Context, all []*module) error {
	next := make(chan *module, len(all))
	for _, m := range all {
		next <- m
	}
	close(next)
	errs := make([]error, min(len(all), runtime.GOMAXPROCS(0)))
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			if errs[i] = l.d.enter(); errs[i] != nil {
				return
			}
			defer l.d.leave(&errs[i])
			for m := range next {
				if ctx.Err() != nil {
					return // the caller returns the cause
				}
				if err := l.assembleModule(m); err != nil {
					errs[i] = m.place(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// assembleModule sets a module's code and stores it. If the driver refuses the text, the code
// remains nil, and loading the text gives the driver's reason.
func (l *loader) assembleModule(m *module) error {
	text, err := m.text()
	if err != nil {
		return err
	}
	if m.code, err = l.d.drv.Assemble(text, m.exact); err != nil {
		m.code = nil
		if errors.Is(err, ErrDeviceLost) {
			return err
		}
		return nil
	}
	// Without a writable directory, the next Load assembles again.
	_ = l.d.cache.Put(m.key, m.code)
	return nil
}
