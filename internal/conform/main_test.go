package conform

import (
	"fmt"
	"os"
	"testing"

	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/exhaustive"
)

// builds caches the emulators, because building one takes a minute.
var builds emu.Builds

// fast selects the emulator that runs fastest, and checked the one with the sanitizers, which has a
// sample of the weight types, because its build takes several times as long. A sample uses one
// emulator for both, which has no sanitizers and only some weight types.
var (
	fast    = emu.Options{Sample: !exhaustive.On}
	checked = emu.Options{Sanitize: exhaustive.On, Sample: true}
)

// appleFast and appleChecked are the same in Apple's configuration.
var (
	appleFast    = emu.Options{Apple: true, Sample: !exhaustive.On}
	appleChecked = emu.Options{Apple: true, Sanitize: exhaustive.On, Sample: true}
)

// typed returns the emulator for commands with weights of a type: the one with the sanitizers if it
// has the type, and otherwise the fast one.
func typed(t *testing.T, typ dtype.Type, apple bool) *emu.Program {
	t.Helper()
	o := checked
	if o.Apple = apple; !emu.Sampled(typ) {
		o = fast
		o.Apple = apple
	}
	return builds.Get(t, o)
}

// configurations are the emulators of the two configurations. Tests of random commands use them by turns, so
// that the second configuration costs no time but that of its build.
type configurations struct{ shared, apple *emu.Program }

// inBoth returns the emulators of both configurations, with the sanitizers in exhaustive tests.
func inBoth(t *testing.T) configurations {
	t.Helper()
	return configurations{builds.Get(t, checked), builds.Get(t, appleChecked)}
}

// at returns the emulator for a command.
func (c configurations) at(seed uint64) *emu.Program {
	if seed%2 == 1 {
		return c.apple
	}
	return c.shared
}

// of returns the emulator for a command with weights of a type.
func (c configurations) of(t *testing.T, typ dtype.Type, seed uint64) *emu.Program {
	t.Helper()
	if !emu.Sampled(typ) {
		return typed(t, typ, false)
	}
	return c.at(seed)
}

func TestMain(m *testing.M) {
	code := m.Run()
	if err := builds.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
