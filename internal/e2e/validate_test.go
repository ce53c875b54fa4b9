package e2e_test

import (
	"bytes"
	"context"
	"runtime/trace"
	"testing"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/exectrace"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/table"
)

// TestOpenValidatesOnce counts the calls of table.Validate in an execution trace of Open.
// There must be one call for a compiled table and one for a roll.
func TestOpenValidatesOnce(t *testing.T) {
	const path = "testdata/tiny/llama"
	o := pianola.TableOptions{Context: 32}
	for name, o := range map[string]pianola.Options{"compiled": {Table: o}, "roll": {Roll: roll(t, path, "cpu", o)}} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := trace.Start(&b); err != nil {
				t.Skip("another trace is being recorded: ", err)
			}
			m, err := pianola.Open(context.Background(), testmodels.Path(t, path), o)
			trace.Stop()
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			calls, err := exectrace.Read(&b, table.TraceValidate)
			if err != nil {
				t.Fatal(err)
			}
			if len(calls) != 1 {
				t.Errorf("Open validates the table %d times, want once", len(calls))
			}
		})
	}
}
