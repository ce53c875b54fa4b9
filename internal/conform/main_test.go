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

// checked selects the emulator with the sanitizers in an exhaustive run. A sample uses the other,
// which tests need anyway.
var checked = emu.Options{Sanitize: exhaustive.On}

func TestMain(m *testing.M) {
	code := m.Run()
	if err := builds.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
