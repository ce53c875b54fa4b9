package exectrace_test

import (
	"bytes"
	"context"
	"runtime"
	"runtime/debug"
	"runtime/trace"
	"strings"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/exectrace"
)

// record traces f in a region of type "work".
func record(t *testing.T, f func()) exectrace.Region {
	t.Helper()
	var b bytes.Buffer
	if err := trace.Start(&b); err != nil {
		t.Fatal(err)
	}
	trace.WithRegion(context.Background(), "work", f)
	trace.WithRegion(context.Background(), "other", func() { runtime.Gosched() })
	trace.Stop()
	list, err := exectrace.Read(&b, "work")
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 1 {
		t.Fatalf("%d regions", len(list))
	}
	return list[0]
}

// TestRegions checks that Read reports each event that can disturb a goroutine.
func TestRegions(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // only the test itself collects garbage
	gate := make(chan bool)
	for _, c := range []struct {
		name               string
		f                  func()
		switch_, collected string // a part of the expected entry; "" expects none
	}{
		{"nothing", func() {}, "", ""},
		{"yield", runtime.Gosched, "Running to Runnable", ""},
		{"wait", func() { go func() { gate <- true }(); <-gate }, "Running to Waiting", ""},
		{"sleep", func() { time.Sleep(time.Millisecond) }, "Running to Waiting: sleep", ""},
		{"collection", runtime.GC, "Running to ", "GC concurrent mark phase"},
		{"another's collection", func() {
			go func() { runtime.GC(); gate <- true }()
			<-gate
		}, "Running to Waiting", "GC concurrent mark phase"},
		{"stop", func() { runtime.ReadMemStats(new(runtime.MemStats)) }, "", "stop-the-world"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := record(t, c.f)
			for _, x := range []struct {
				what string
				got  []string
				want string
			}{{"switches", r.Switches, c.switch_}, {"collections", r.Collections, c.collected}} {
				if all := strings.Join(x.got, "\n"); !strings.Contains(all, x.want) || x.want == "" && c.name == "nothing" && all != "" {
					t.Errorf("%s are %q, want %q", x.what, x.got, x.want)
				}
			}
			if quiet := c.name == "nothing"; r.Quiet() != quiet || r.Took <= 0 {
				t.Errorf("quiet is %t after %v", r.Quiet(), r.Took)
			}
		})
	}
}

// TestNoTrace checks that Read rejects data that is not a trace.
func TestNoTrace(t *testing.T) {
	for _, s := range []string{"", "not a trace, but long enough to hold a header"} {
		if _, err := exectrace.Read(strings.NewReader(s), "work"); err == nil {
			t.Errorf("Read accepts %q as a trace", s)
		}
	}
}

// TestCutTrace reads every prefix of a trace. Read may return an error but must not panic.
func TestCutTrace(t *testing.T) {
	var b bytes.Buffer
	if err := trace.Start(&b); err != nil {
		t.Fatal(err)
	}
	trace.WithRegion(context.Background(), "work", runtime.Gosched)
	trace.Stop()
	for n := 0; n < b.Len(); n += 1 + b.Len()/200 {
		if list, err := exectrace.Read(bytes.NewReader(b.Bytes()[:n]), "work"); err == nil && len(list) > 1 {
			t.Errorf("the first %d bytes of the trace have %d regions", n, len(list))
		}
	}
}
