package conform

import (
	"fmt"
	"os"
	"testing"

	"github.com/pianola-engine/pianola/internal/emu"
	"github.com/pianola-engine/pianola/internal/exhaustive"
)

// builds caches the emulators, because building one takes a minute.
var builds emu.Builds

// fast selects the emulator that runs fastest, and checked the one with the sanitizers. A sample
// uses one emulator for both, which has no sanitizers and only some weight types.
var (
	fast    = emu.Options{Sample: !exhaustive.On}
	checked = emu.Options{Sanitize: exhaustive.On, Sample: !exhaustive.On}
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := builds.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
