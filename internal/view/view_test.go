package view

import (
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/table"
)

func labelled(labels ...string) *table.Table {
	return &table.Table{
		Labels: labels, Cmds: make([]table.Cmd, len(labels)),
		Programs: []table.Program{{Name: "decode", Count: uint32(len(labels)), MaxRows: 1}},
	}
}

func TestPair(t *testing.T) {
	for _, tt := range []struct {
		name, a, b string
		want       [][2]int
	}{
		{"equal", "x y", "x y", [][2]int{{0, 0}, {1, 1}}},
		{"inserted", "x y", "x z y", [][2]int{{0, 0}, {-1, 1}, {1, 2}}},
		{"replaced", "x y z", "x w z", [][2]int{{0, 0}, {1, -1}, {-1, 1}, {2, 2}}},
		{"moved", "x y z", "y z x", [][2]int{{0, -1}, {1, 0}, {2, 1}, {-1, 2}}},
		{"repeated", "x x y", "x y x", [][2]int{{0, 0}, {1, -1}, {2, 1}, {-1, 2}}},
		{"none in A", "", "x", [][2]int{{-1, 0}}},
	} {
		got := pair(labelled(strings.Fields(tt.a)...), labelled(strings.Fields(tt.b)...))["decode"]
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestHostileRange pairs programs whose ranges are past the end of the table.
func TestHostileRange(t *testing.T) {
	a, b := labelled("x"), labelled("x")
	a.Programs[0].First, a.Programs[0].Count = 1<<32-1, 1<<32-1
	b.Programs[0].Count = 1<<32 - 1
	if got := pair(a, b)["decode"]; !slices.Equal(got, [][2]int{{-1, 0}}) {
		t.Errorf("rows %v", got)
	}
}

func TestReadTimes(t *testing.T) {
	for text, want := range map[string]string{
		`{"total_us":3,"commands":[{"command":0,"label":"x","us":1},{"command":1,"label":"y","us":2}]}`: "",
		`{"total_us":3,"commands":[{"command":0,"label":"z","us":1}]}`:                                  "of another table",
		`{"total_us":3,"commands":[{"command":2,"label":"x","us":1}]}`:                                  "has command 2",
		`{"total_us":3,"commands":[{"command":-1,"label":"x","us":1}]}`:                                 "has command -1",
		`{"total_us":3,"commands":[{"command":0,"label":"x","us":-1}]}`:                                 "us of command 0",
		`{"total_us":-3,"commands":[{"command":0,"label":"x","us":1}]}`:                                 "total_us",
		`{"total_us":3,"commands":[{"command":0,"label":"x","us":1},{"command":0,"label":"x","us":1}]}`: "twice",
		`{"same":true}`: "no commands",
		`command label`: "not the output",
	} {
		_, err := ReadTimes(strings.NewReader(text), labelled("x", "y"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
}

func TestPageOfNoTable(t *testing.T) {
	if _, err := Page(); err == nil {
		t.Error("a page of no table")
	}
}
