package metal

import (
	"slices"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/chip"
	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/internal/cost"
	"github.com/pianola-engine/pianola/internal/exhaustive"
	"github.com/pianola-engine/pianola/internal/synth"
	"github.com/pianola-engine/pianola/table"
)

// TestCommandsAreShort compiles published shapes for Apple's chips and checks that no command is
// predicted to take more than 60 ms, which is what a command buffer may take: longer programs are cut
// between commands, and MostRows shortens chunks.
func TestCommandsAreShort(t *testing.T) {
	var longest float64
	var where string
	for _, s := range synth.Shapes() {
		for _, quant := range []string{"Q4_0", "F16"} {
			dir, err := synth.NewDirectory(s, quant)
			if err != nil {
				t.Fatal(err)
			}
			cfg, err := arch.Builtin().Read(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range chip.Names() {
				c, err := chip.Lookup(name)
				if err != nil {
					t.Fatal(err)
				}
				if c.Device != chip.Metal || exhaustive.Pick(false, !slices.Contains([]string{"m1", "m4-pro"}, name)) {
					continue
				}
				tab, err := compiler.Compile(compiler.Input{Config: cfg, Tensors: dir, Chip: c, Options: compiler.Options{Context: int(s.Context)}})
				if err != nil {
					t.Fatalf("%s %s on %s: %v", s.Name, quant, name, err)
				}
				seconds, label := longestCommand(t, tab, c)
				if seconds > longest {
					longest, where = seconds, s.Name+" "+quant+" on "+name+": "+label
				}
				if seconds > 0.060 {
					t.Errorf("%s %s on %s: %s takes %.0f ms", s.Name, quant, name, label, 1e3*seconds)
				}
			}
		}
	}
	t.Logf("the longest command takes %.1f ms: %s", 1e3*longest, where)
}

// longestCommand returns the predicted duration and the label of a table's longest command, at the
// beginning, in the middle and at the end of the context, with the rows that MostRows permits there.
func longestCommand(t *testing.T, tab *table.Table, c *chip.Chip) (seconds float64, label string) {
	t.Helper()
	p, err := newPrices(tab, c)
	if err != nil {
		t.Fatal(err)
	}
	for i := range tab.Programs {
		of := &tab.Programs[i]
		context := int(tab.Header.Context)
		last := context - min(int(of.MaxRows), context)
		for _, at := range []int{0, last / 2, last} {
			rows := min(p.rows(of, at, defaultChainTime/flights), context-at)
			all, err := cost.Program(tab, of, c, cost.Point{Position: at, Rows: rows})
			if err != nil {
				t.Fatal(err)
			}
			for j := range all {
				if all[j].Seconds > seconds {
					seconds, label = all[j].Seconds, of.Name+" "+tab.Label(int(of.First)+j)
				}
			}
		}
	}
	return seconds, label
}

// TestPrices checks prices of invented commands: sums, cuts and rows.
func TestPrices(t *testing.T) {
	p := &prices{base: []float64{0, 1, 3, 4}, slope: []float64{0, 0, 0.5, 0.5}}
	if got := p.of(0, 3, 10); got != 9 {
		t.Errorf("all commands take %v s at 10 positions, want 9", got)
	}
	for _, c := range []struct {
		first, end int
		seconds    float64
		want       int
	}{{0, 3, 0.5, 0}, {0, 3, 1, 1}, {0, 3, 7.5, 1}, {0, 3, 8, 2}, {0, 3, 9, 3}, {0, 3, 100, 3}, {0, 2, 100, 2}, {1, 3, 7, 2}, {2, 3, 0, 2}} {
		if got := p.fit(c.first, c.end, 10, c.seconds); got != c.want {
			t.Errorf("commands from %d to %d in %v s: up to %d, want %d", c.first, c.end, c.seconds, got, c.want)
		}
	}
	of := &table.Program{First: 0, Count: 3, MaxRows: 512}
	for _, c := range []struct {
		position int
		bound    time.Duration
		want     int
	}{{0, 300 * time.Second, 512}, {0, 128 * time.Second, 224}, {0, 10 * time.Second, 16}, {0, time.Millisecond, 8}, {512, 258 * time.Second, 256}} {
		if got := p.rows(of, c.position, c.bound); got != c.want {
			t.Errorf("%d rows at %d in %v, want %d", got, c.position, c.bound, c.want)
		}
	}
	if got := p.rows(&table.Program{Count: 3, MaxRows: 1}, 0, 1); got != 1 {
		t.Errorf("%d rows of a program for one row", got)
	}
}
