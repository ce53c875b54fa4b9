package decl

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/dtype"
)

type mapEnv map[string]uint64

func (m mapEnv) Value(name string) (uint64, bool) {
	v, ok := m[name]
	return v, ok
}

var testEnv = mapEnv{
	"zero": 0, "one": 1, "rows": 7, "in": 4096, "huge": math.MaxUint64, "half_max": 1 << 63, "u32": math.MaxUint32,
	"wtype": uint64(dtype.Q4_K), "plain": uint64(dtype.F32), "x2": 64,
}

func TestExpr(t *testing.T) {
	for _, tt := range []struct {
		src  string
		want uint64
		err  error
	}{
		{"", 0, nil},
		{"  ", 0, nil},
		{"12", 12, nil},
		{"rows", 7, nil},
		{"x2", 64, nil},
		{"1+2*3", 7, nil},
		{"(1+2)*3", 9, nil},
		{"10-3-2", 5, nil},
		{"10 - (3 - 2)", 9, nil},
		{"((rows-1)*in+3)*4", (6*4096 + 3) * 4, nil},
		{"div(7,2)", 4, nil},
		{"div(8,2)", 4, nil},
		{"div(0,2)", 0, nil},
		{"div(huge,1)", math.MaxUint64, nil},
		{"div(huge,2)", 1 << 63, nil},
		{"min(3,5)*min(rows,huge)", 21, nil},
		{"row(wtype,in)", 4096 / 256 * 144, nil},
		{"row(plain,in-1)", 4095 * 4, nil},
		{"u32*u32*1", math.MaxUint32 * math.MaxUint32, nil},
		{"huge-huge", 0, nil},

		{"huge+1", 0, ErrRange},
		{"half_max+half_max", 0, ErrRange},
		{"half_max*2", 0, ErrRange},
		{"u32*u32*u32", 0, ErrRange},
		{"zero-1", 0, ErrRange},
		{"1-2+5", 0, ErrRange}, // negative on the way
		{"div(1,zero)", 0, ErrRange},
		{"row(wtype,255)", 0, ErrRange}, // not a whole block
		{"row(zero,256)", 0, ErrRange},  // Invalid
		{"row(256+wtype,256)", 0, ErrRange},
		{"row(plain,half_max)", 0, ErrRange},
	} {
		e, err := ParseExpr(tt.src)
		if err != nil {
			t.Errorf("%q: %v", tt.src, err)
			continue
		}
		got, err := e.Eval(testEnv)
		if got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("%q = %d, %v, want %d, %v", tt.src, got, err, tt.want, tt.err)
		}
	}
}

func TestExprErrors(t *testing.T) {
	for _, tt := range []struct{ src, want string }{
		{"1+", "missing before"},
		{"+1", "missing before"},
		{"(1", `")" is missing`},
		{"1)", `unexpected ")"`},
		{"div(1)", `"," is missing`},
		{"div(1,2", `")" is missing`},
		{"row 1", `no value for row1`}, // spaces do not separate
		{"row", `"(" is missing`},
		{"min(1,,2)", "missing before"},
		{"a/b", `unexpected "/b"`},
		{"A", "missing before"},
		{"18446744073709551616", "out of range"},
		{"2x", "invalid syntax"},
		{"nowhere", "no value for nowhere"},
		{"1+(1+(1+(1+(1+(1+(1+(1+1)))))))", "too deep"},
	} {
		e, err := ParseExpr(tt.src)
		if err == nil {
			_, err = e.Eval(testEnv)
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: got %v, want %q", tt.src, err, tt.want)
		}
	}
}

func TestExprNames(t *testing.T) {
	e, err := ParseExpr("(rows - 1)*in + row(wtype, in)")
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(e.Names(), e); got != "[rows in wtype in] (rows - 1)*in + row(wtype, in)" {
		t.Error(got)
	}
}

// node is an expression as a tree, the reference for Expr.
type node struct {
	op          string // "" for a leaf
	text        string
	value       uint64
	left, right *node
}

func randomNode(r *rand.Rand, depth int) *node {
	if depth == 0 || r.IntN(5) == 0 {
		if r.IntN(2) == 0 {
			names := []string{"zero", "one", "rows", "in", "huge", "half_max", "u32", "wtype", "plain"}
			name := names[r.IntN(len(names))]
			return &node{text: name, value: testEnv[name]}
		}
		v := r.Uint64() >> r.IntN(64)
		return &node{text: strconv.FormatUint(v, 10), value: v}
	}
	ops := []string{"+", "-", "*", "+", "-", "*", "div", "min", "row"}
	n := &node{op: ops[r.IntN(len(ops))], left: randomNode(r, depth-1), right: randomNode(r, depth-1)}
	if n.op == "row" && r.IntN(4) > 0 {
		// A type that there is, and mostly a whole number of blocks.
		types := dtype.All()
		v := uint64(types[r.IntN(len(types))])
		n.left = &node{text: strconv.FormatUint(v, 10), value: v}
		n.right = &node{op: "*", left: n.right, right: &node{text: "256", value: 256}}
	}
	return n
}

// String writes all operands of an operator in parentheses if they have
// operators themselves, but for those that precedence makes superfluous.
func (n *node) String() string {
	if n.op == "" {
		return n.text
	}
	left, right := n.left.String(), n.right.String()
	switch n.op {
	case "div", "min", "row":
		return n.op + "(" + left + ", " + right + ")"
	case "*":
		if n.left.op == "+" || n.left.op == "-" {
			left = "(" + left + ")"
		}
		if n.right.op == "+" || n.right.op == "-" || n.right.op == "*" {
			right = "(" + right + ")"
		}
	default:
		if n.right.op == "+" || n.right.op == "-" {
			right = "(" + right + ")"
		}
	}
	return left + " " + n.op + " " + right
}

// eval computes the tree in big integers; nil is out of range. depth is how
// many values are held at once, left operand first.
func (n *node) eval() (v *big.Int, depth int) {
	if n.op == "" {
		return new(big.Int).SetUint64(n.value), 1
	}
	a, da := n.left.eval()
	b, db := n.right.eval()
	depth = max(da, 1+db)
	if a == nil || b == nil {
		return nil, depth
	}
	z := new(big.Int)
	switch n.op {
	case "+":
		z.Add(a, b)
	case "-":
		z.Sub(a, b)
	case "*":
		z.Mul(a, b)
	case "min":
		z.Set(a)
		if b.Cmp(a) < 0 {
			z.Set(b)
		}
	case "div":
		if b.Sign() == 0 {
			return nil, depth
		}
		z.Add(a, b)
		z.Sub(z, big.NewInt(1))
		z.Div(z, b)
	case "row":
		if !a.IsUint64() || a.Uint64() > math.MaxUint8 || !dtype.Type(a.Uint64()).Valid() {
			return nil, depth
		}
		elems, size := dtype.Type(a.Uint64()).Block()
		blocks, rest := z.DivMod(b, big.NewInt(int64(elems)), new(big.Int))
		if rest.Sign() != 0 {
			return nil, depth
		}
		z = blocks.Mul(blocks, big.NewInt(int64(size)))
		if z.BitLen() > 63 {
			return nil, depth
		}
	}
	if z.Sign() < 0 || z.BitLen() > 64 {
		return nil, depth
	}
	return z, depth
}

func TestExprAgainstBigInt(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	good, bad, deep := 0, 0, 0
	for range 20000 {
		n := randomNode(r, 1+r.IntN(8))
		src := n.String()
		e, err := ParseExpr(src)
		if err != nil {
			t.Fatalf("%s: %v", src, err)
		}
		want, depth := n.eval()
		got, err := e.Eval(testEnv)
		switch {
		case depth > maxDepth:
			deep++
			// A part that is out of range may come before the part that is too deep.
			if err == nil {
				t.Fatalf("%s = %d, but it needs %d values at once", src, got, depth)
			}
		case want == nil:
			bad++
			if !errors.Is(err, ErrRange) {
				t.Fatalf("%s = %d, %v, want %v", src, got, err, ErrRange)
			}
		default:
			good++
			if err != nil || got != want.Uint64() {
				t.Fatalf("%s = %d, %v, want %s", src, got, err, want)
			}
		}
	}
	if good < 2000 || bad < 2000 || deep < 10 {
		t.Errorf("%d values, %d out of range, %d too deep: the generator is lopsided", good, bad, deep)
	}
}

func TestEvalDoesNotAllocate(t *testing.T) {
	e, err := ParseExpr("((rows-1)*in+min(3,rows))*4+row(wtype,in)")
	if err != nil {
		t.Fatal(err)
	}
	var env Env = testEnv
	if n := testing.AllocsPerRun(100, func() {
		if _, err := e.Eval(env); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzParseExpr(f *testing.F) {
	for _, k := range Kernels {
		f.Add(k.Worker)
		for _, b := range k.Bindings {
			f.Add(b.Extent)
		}
	}
	f.Add("min(1,row(2,3))-div(4,5)*(6+huge)")
	f.Fuzz(func(t *testing.T, src string) {
		e, err := ParseExpr(src)
		if err != nil {
			return
		}
		v, err := e.Eval(testEnv)
		again, err2 := ParseExpr(e.String())
		if err2 != nil {
			t.Fatalf("%q does not parse again: %v", e, err2)
		}
		if w, err3 := again.Eval(testEnv); w != v || fmt.Sprint(err3) != fmt.Sprint(err) {
			t.Fatalf("%q = %d, %v, then %d, %v", src, v, err, w, err3)
		}
	})
}
