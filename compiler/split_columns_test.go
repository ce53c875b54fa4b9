package compiler

import (
	"path/filepath"
	"testing"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/internal/kernels"
	"github.com/pianola-engine/pianola/internal/testmodels"
	"github.com/pianola-engine/pianola/table"
)

// TestApartShape checks which products in batches of more than 64 rows have several threadgroups that write the sums of
// segments: those of matrices with few rows, unless writing and reading the sums takes longer than what it saves.
func TestApartShape(t *testing.T) {
	c := chipOf(t, "h200")
	for _, test := range []struct {
		name                string
		typ                 dtype.Type
		out, in, rows       int
		splits, rowsOfGroup int // 0: not divided
	}{
		{"down of 8B", dtype.F16, 4096, 14336, 128, 4, 128},
		{"down of 8B", dtype.F16, 4096, 14336, 256, 4, 256},
		{"down of 8B", dtype.F16, 4096, 14336, 512, 0, 0},
		{"o of 8B", dtype.F16, 4096, 4096, 256, 0, 0},
		{"gate_up of 8B", dtype.F16, 28672, 4096, 128, 0, 0},
		{"down of 1B", dtype.F16, 2048, 8192, 256, 8, 256},
		{"o of 1B", dtype.F16, 2048, 2048, 128, 8, 128},
		{"down of 8B", dtype.Q8_0, 4096, 14336, 128, 4, 128},
		{"o of 8B", dtype.Q4_0, 4096, 4096, 256, 4, 256},
	} {
		a, l := batchProduct(c, test.typ, test.out, test.in, test.rows)
		var got halvesShape
		if a.apartPays(l) {
			got, _ = a.apartShape(l)
		}
		if got.splits != test.splits || got.rows != test.rowsOfGroup {
			t.Errorf("%s, %s, %d rows: %d threadgroups with %d rows of x, want %d with %d", test.name, test.typ, test.rows, got.splits, got.rows, test.splits, test.rowsOfGroup)
		}
	}
}

// TestSplitColumns checks in compiled tables that a product whose threadgroups write the sums of segments is followed by
// the norm that adds them, and that programs of up to 64 rows, exact tables and tables that are not for batching have no
// such products.
func TestSplitColumns(t *testing.T) {
	for _, path := range []string{"testdata/gopher-q8_0.gguf", "testdata/tiny/llama"} {
		for _, o := range []Options{{Sequences: 300}, {Sequences: 300, Exact: true}, {}} {
			tab := mustCompile(t, input(t, testmodels.Path(t, filepath.Join("..", path)), "h200", o))
			if faults := tab.Validate(); len(faults) > 0 {
				t.Fatalf("%s: %v", path, faults[0])
			}
			apart := 0
			for i := range tab.Programs {
				p := &tab.Programs[i]
				var before table.Cmd
				for _, c := range tab.ProgramCmds(p) {
					divided := before.Kernel == kernels.GEMMHalves && kernels.GEMMHalvesParamsOf(&before).Splits != 0
					adds := c.Kernel == kernels.AddRMSNormHalves && kernels.AddRMSNormHalvesParamsOf(&c).Segments == decl.Segments
					if divided != adds || adds && before.Bind[kernels.GEMMHalvesBindY] != c.Bind[kernels.AddRMSNormHalvesBindDelta] {
						t.Errorf("%s, %s: the sums of segments have no reader, or a reader has none", path, p.Name)
					}
					if adds {
						apart++
						if p.MaxRows <= 64 {
							t.Errorf("%s: %s divides the columns of products of %d rows", path, p.Name, p.MaxRows)
						}
					}
					before = c
				}
			}
			if want := o.Sequences > 0 && !o.Exact; (apart > 0) != want {
				t.Errorf("%s, %+v: %d products have threadgroups that divide the columns", path, o, apart)
			}
		}
	}
}
