package conform

import (
	"fmt"
	"os"
	"testing"

	"github.com/pianola-engine/pianola/internal/emu"
)

// builds caches the emulators, because building one takes half a minute.
var builds emu.Builds

func TestMain(m *testing.M) {
	code := m.Run()
	if err := builds.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
