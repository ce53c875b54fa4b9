package exhaustive_test

import (
	"testing"

	"github.com/pianola-engine/pianola/internal/exhaustive"
)

func TestPick(t *testing.T) {
	want := "sample"
	if exhaustive.On {
		want = "all"
	}
	if got := exhaustive.Pick("all", "sample"); got != want {
		t.Errorf("Pick returns %q, want %q", got, want)
	}
}

func TestOnly(t *testing.T) {
	ran := false
	t.Run("only", func(t *testing.T) {
		exhaustive.Only(t, "this is a test of Only")
		ran = true
	})
	if ran != exhaustive.On {
		t.Errorf("the test ran: %t, in an exhaustive run: %t", ran, exhaustive.On)
	}
}
