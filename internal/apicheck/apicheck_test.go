package apicheck

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// mostNames and mostPackages bound the size of the public API, because every exported name is
// a promise to users. The names above 800 are for a model for many sequences: for its callers lists of
// prompts to generate, score and embed, the load, the settings of a request with the pages that it
// shares and its deadline, its profile, and the errors of calls that it cannot serve; for its devices the copies that a
// submission carries, and a setting of chips. Ten are the hub: Pull, Resolve, their options, five errors to
// act on, and the state and stage of a download. Seventeen are the memory controls: the error of a limit,
// the release of idle memory and the reset of peaks, the handler of memory pressure and its events, and for
// devices the shrinking of caches and the release of pages. Six are latent attention: its sizes, and the roles
// of its tensors. Twenty are recurrent state: the blocks that have it, their sizes and the roles of their
// tensors, and its slots.
// Six are routers: the roles of biases and shared experts, and factors of Q. Eleven are what differs between
// layers: sizes, the inputs of layers, and the roles of their tensors. Twelve are Mamba-2, the roles of
// its tensors, layers that have it beside attention, and the factors of their parts,
// layers with one block, and squared ReLU.
// Eleven are alternating updates, and the roles of their tensors and of augmented residuals.
// Two are the options of copies of KV pages.
// Three are uploads of half of a transposed matrix. Five are the roles of experts beside a dense block.
const (
	mostNames    = 935
	mostPackages = 13
)

// TestPublicAPI limits the number of exported names of the public packages, methods included.
// It also checks that they use public types only and that the files below api are up to date.
func TestPublicAPI(t *testing.T) {
	all, err := Load("../..")
	if err != nil {
		t.Fatal(err)
	}
	names := 0
	for _, p := range all {
		n := len(p.Names())
		t.Logf("%4d %s", n, p.Path)
		names += n
		text, err := os.ReadFile(filepath.Join("../../api", p.File()))
		if err != nil || string(text) != p.Text() {
			t.Errorf("api/%s is not the API of %s (%v): run make api to accept the change", p.File(), p.Path, err)
		}
	}
	t.Logf("%4d exported names in %d packages", names, len(all))
	if names > mostNames || len(all) > mostPackages {
		t.Errorf("%d exported names in %d packages, at most %d in %d", names, len(all), mostNames, mostPackages)
	}
	for _, l := range Leaks(all) {
		t.Error(l)
	}
	if files, err := filepath.Glob("../../api/*"); err != nil || len(files) != len(all) {
		t.Errorf("%d files below api for %d packages, %v", len(files), len(all), err)
	}
}

// parsed type-checks source as a package with the given import path.
func parsed(t *testing.T, path, source string) *Package {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "p.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	pkg, err := (&types.Config{Importer: importer.Default()}).Check(path, fset, []*ast.File{f}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &Package{Path: path, Types: pkg}
}

// TestLeaks checks that Leaks finds an unexported type wherever an exported name can use it,
// and nothing else.
func TestLeaks(t *testing.T) {
	p := parsed(t, module+"/p", `package p
type hidden struct{ Field int }
type also int
type Public = also
type S struct { F []hidden; g hidden; Fine Public; fine also }
type I interface { M(map[string]*hidden) }
type E struct{ embedded }
type embedded struct{}
func (embedded) Promoted() chan hidden { return nil }
func (S) Method() (func(hidden), also) { return nil, 0 }
func Func(...hidden) {}
func Fine(struct{ f hidden }) {}
var Var hidden
var v hidden
type G[T any] struct{ X T }
var Generic G[hidden]
`)
	var got []string
	for _, l := range Leaks([]*Package{p}) {
		if !strings.HasSuffix(l.Type, ".hidden") {
			t.Error(l)
		}
		got = append(got, l.Where)
	}
	slices.Sort(got)
	if want := []string{"p.E.Promoted", "p.Func", "p.Generic", "p.I.M", "p.S.F", "p.S.Method", "p.Var"}; !slices.Equal(slices.Compact(got), want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestNames checks that Names counts all methods: declared and promoted methods, and methods of
// interfaces and aliases.
func TestNames(t *testing.T) {
	p := parsed(t, module+"/p", `package p
type inner struct{}
func (*inner) M() {}
func (inner) m() {}
type A = inner
type B struct{ inner }
type C interface { N(); o() }
const D, e = 1, 2
`)
	if got, want := p.Names(), []string{"A", "A.M", "B", "B.M", "C", "C.N", "D"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	want := `package p // ` + module + `/p

type A = inner struct
	method M()

type B struct
	method M()

type C interface
	method N()

const D untyped int = 1
`
	if got := p.Text(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
