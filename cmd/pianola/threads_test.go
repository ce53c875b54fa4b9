package main

import (
	"os"
	"runtime"
	"testing"

	"github.com/pianola-engine/pianola/internal/exhaustive"
)

// TestMain runs the commands of a sample on one processor. go test runs several packages at once,
// and threads that wait for a thread without a processor waste time.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == asPianola {
		os.Args = append(os.Args[:1], os.Args[2:]...)
		main()
	}
	if !exhaustive.On {
		runtime.GOMAXPROCS(1)
	}
	os.Exit(m.Run())
}
