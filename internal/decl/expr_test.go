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

// errNoValue stands for the error of a name without a value.
var errNoValue = errors.New("no value")

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
		{"ceildiv(7,2)", 4, nil},
		{"ceildiv(8,2)", 4, nil},
		{"ceildiv(0,2)", 0, nil},
		{"ceildiv(huge,1)", math.MaxUint64, nil},
		{"ceildiv(huge,2)", 1 << 63, nil},
		{"7/2", 3, nil},
		{"7%4*2", 6, nil},
		{"2*7/4", 3, nil},
		{"max(3,5) - max(2,1)", 3, nil},

		{"rows == 7", 1, nil},
		{"rows != 7", 0, nil},
		{"rows < 7", 0, nil},
		{"rows <= 7", 1, nil},
		{"rows > 6+1", 0, nil},
		{"rows >= 2*3", 1, nil},
		{"!(rows == 7) || rows == 8 && one == 1", 0, nil},
		{"rows == 8 || rows == 7 && one == 1", 1, nil},
		{"rows == 7 ? 10 : 20", 10, nil},
		{"rows == 8 ? 10 : one == 1 ? 30 : 40", 30, nil},
		{"1 + (rows == 8 ? 10 : 20) * 2", 41, nil},
		{"(rows == 7 ? one == 0 : one == 1) ? 1 : 2", 2, nil},
		// What is not taken is not evaluated.
		{"zero == 0 ? 5 : huge*huge", 5, nil},
		{"zero == 1 ? zero-1 : 6", 6, nil},
		{"zero == 0 || 1/zero == 1", 1, nil},
		{"zero == 1 && zero-1 == 0", 0, nil},
		{"zero == 0 ? nowhere : 1", 0, errNoValue},
		{"zero == 1 ? nowhere : 1", 1, nil},
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
		{"ceildiv(1,zero)", 0, ErrRange},
		{"1/zero", 0, ErrRange},
		{"1%zero", 0, ErrRange},
		{"zero == 0 ? huge*huge : 5", 0, ErrRange},
		{"zero == 0 && 1/zero == 1", 0, ErrRange},
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
		if tt.err == errNoValue && err != nil && strings.Contains(err.Error(), "no value for nowhere") {
			continue
		}
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
		{"ceildiv(1)", `"," is missing`},
		{"ceildiv(1,2", `")" is missing`},
		{"row 1", `"(" is missing`},
		{"rows 1", `unexpected "1"`},
		{"rows = 1", `unexpected "= 1"`},
		{"1 < 2 < 3", `unexpected "< 3"`},
		{"1 ? 2 : 3", "a condition is expected"},
		{"1 < 2 ? 3", `":" is missing`},
		{"1 < 2 ? 3 : 4 < 5", "both branches"},
		{"1 < 2 ? 3 : 4 : 5", `unexpected ": 5"`},
		{"1 || 2 < 3", "a condition is expected"},
		{"1 < 2 && 3", "a condition is expected"},
		{"(1 < 2) + 3", "a number is expected"},
		{"min(1 < 2, 3)", "a number is expected"},
		{"(1 < 2) == (3 < 4)", "a number is expected"},
		{"!1", "a condition is expected"},
		{"!", "missing before"},
		{strings.Repeat("(", 100) + "1" + strings.Repeat(")", 100), "nested too deeply"},
		{strings.Repeat("!", 100) + "(1 < 2)", "nested too deeply"},
		{"row", `"(" is missing`},
		{"min(1,,2)", "missing before"},
		{"a$b", `unexpected "$b"`},
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
	op    string // "" for a leaf
	text  string
	value uint64
	kids  []*node
}

var conditions = []string{"==", "!=", "<", "<=", ">", ">=", "&&", "||", "!"}

func leaf(v uint64) *node { return &node{text: strconv.FormatUint(v, 10), value: v} }

// randomNode returns a number, or a condition.
func randomNode(r *rand.Rand, depth int, condition bool) *node {
	if depth == 0 && !condition || !condition && r.IntN(5) == 0 {
		if r.IntN(2) == 0 {
			names := []string{"zero", "one", "rows", "in", "huge", "half_max", "u32", "wtype", "plain"}
			name := names[r.IntN(len(names))]
			return &node{text: name, value: testEnv[name]}
		}
		return leaf(r.Uint64() >> r.IntN(64))
	}
	depth = max(depth-1, 0)
	if r.IntN(5) == 0 {
		return &node{op: "?", kids: []*node{randomNode(r, min(depth, 2), true), randomNode(r, depth, condition), randomNode(r, depth, condition)}}
	}
	n := &node{}
	if condition {
		n.op = conditions[r.IntN(len(conditions))]
		if depth == 0 {
			n.op = conditions[r.IntN(6)]
		}
		below := n.op == "&&" || n.op == "||" || n.op == "!"
		n.kids = []*node{randomNode(r, depth, below)}
		if n.op != "!" {
			n.kids = append(n.kids, randomNode(r, depth, below))
		}
		return n
	}
	ops := []string{"+", "-", "*", "+", "-", "*", "/", "%", "ceildiv", "min", "max", "row"}
	n.op = ops[r.IntN(len(ops))]
	n.kids = []*node{randomNode(r, depth, false), randomNode(r, depth, false)}
	if n.op == "row" && r.IntN(4) > 0 {
		// A type that exists, and mostly a whole number of blocks.
		types := dtype.All()
		n.kids[0] = leaf(uint64(types[r.IntN(len(types))]))
		n.kids[1] = &node{op: "*", kids: []*node{n.kids[1], leaf(256)}}
	}
	return n
}

// level is how tightly an operator binds; functions and leaves bind tightest.
func (n *node) level() int {
	switch n.op {
	case "?":
		return 0
	case "||":
		return 1
	case "&&":
		return 2
	case "==", "!=", "<", "<=", ">", ">=":
		return 3
	case "+", "-":
		return 4
	case "*", "/", "%":
		return 5
	case "!":
		return 6
	}
	return 7
}

// in writes n as an operand that must bind at least as tightly as level.
func (n *node) in(level int) string {
	if n.level() < level {
		return "(" + n.String() + ")"
	}
	return n.String()
}

// String writes parentheses only where precedence requires them.
func (n *node) String() string {
	switch l := n.level(); {
	case n.op == "":
		return n.text
	case n.op == "?":
		return n.kids[0].in(1) + " ? " + n.kids[1].in(0) + ":" + n.kids[2].in(0)
	case n.op == "!":
		return "!" + n.kids[0].in(6)
	case l == 7:
		return n.op + "(" + n.kids[0].String() + ", " + n.kids[1].String() + ")"
	case l == 3: // comparisons do not follow one another
		return n.kids[0].in(4) + n.op + n.kids[1].in(4)
	default:
		return n.kids[0].in(l) + " " + n.op + " " + n.kids[1].in(l+1)
	}
}

// depth is the number of values that evaluation holds at once, left operand first.
func (n *node) depth() int {
	switch {
	case n.op == "":
		return 1
	case n.op == "?" || n.op == "!" || n.op == "&&" || n.op == "||":
		d := 0
		for _, k := range n.kids {
			d = max(d, k.depth())
		}
		return d
	}
	return max(n.kids[0].depth(), 1+n.kids[1].depth())
}

// eval computes the tree in big integers; nil is out of range.
func (n *node) eval() *big.Int {
	if n.op == "" {
		return new(big.Int).SetUint64(n.value)
	}
	a := n.kids[0].eval()
	if a == nil {
		return nil
	}
	switch n.op {
	case "?":
		if a.Sign() != 0 {
			return n.kids[1].eval()
		}
		return n.kids[2].eval()
	case "!":
		return boolInt(a.Sign() == 0)
	case "&&", "||":
		if (a.Sign() != 0) == (n.op == "||") {
			return a
		}
		return n.kids[1].eval()
	}
	b := n.kids[1].eval()
	if b == nil {
		return nil
	}
	z := n.combine(a, b)
	if z == nil || z.Sign() < 0 || z.BitLen() > 64 {
		return nil
	}
	return z
}

func boolInt(b bool) *big.Int {
	if b {
		return big.NewInt(1)
	}
	return big.NewInt(0)
}

func (n *node) combine(a, b *big.Int) *big.Int {
	z := new(big.Int)
	switch n.op {
	case "+":
		return z.Add(a, b)
	case "-":
		return z.Sub(a, b)
	case "*":
		return z.Mul(a, b)
	case "==":
		return boolInt(a.Cmp(b) == 0)
	case "!=":
		return boolInt(a.Cmp(b) != 0)
	case "<":
		return boolInt(a.Cmp(b) < 0)
	case "<=":
		return boolInt(a.Cmp(b) <= 0)
	case ">":
		return boolInt(a.Cmp(b) > 0)
	case ">=":
		return boolInt(a.Cmp(b) >= 0)
	case "min", "max":
		if (a.Cmp(b) < 0) == (n.op == "min") {
			return a
		}
		return b
	case "/", "%", "ceildiv":
		if b.Sign() == 0 {
			return nil
		}
		switch n.op {
		case "%":
			return z.Mod(a, b)
		case "ceildiv":
			z.Add(a, b)
			return z.Div(z.Sub(z, big.NewInt(1)), b)
		}
		return z.Div(a, b)
	case "row":
		if !a.IsUint64() || a.Uint64() > math.MaxUint8 || !dtype.Type(a.Uint64()).Valid() {
			return nil
		}
		elems, size := dtype.Type(a.Uint64()).Block()
		blocks, rest := z.DivMod(b, big.NewInt(int64(elems)), new(big.Int))
		if rest.Sign() != 0 {
			return nil
		}
		if z = blocks.Mul(blocks, big.NewInt(int64(size))); z.BitLen() > 63 {
			return nil
		}
		return z
	}
	return nil
}

func TestExprAgainstBigInt(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	good, bad, deep := 0, 0, 0
	for range 40000 {
		n := randomNode(r, 1+r.IntN(8), r.IntN(3) == 0)
		src := n.String()
		e, err := ParseExpr(src)
		if depth := n.depth(); depth > maxDepth {
			deep++
			if err == nil || !strings.Contains(err.Error(), "too deep") {
				t.Fatalf("%s: %v, but it needs %d values at once", src, err, depth)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", src, err)
		}
		want := n.eval()
		got, err := e.Eval(testEnv)
		if want == nil {
			bad++
			if !errors.Is(err, ErrRange) {
				t.Fatalf("%s = %d, %v, want %v", src, got, err, ErrRange)
			}
			continue
		}
		good++
		if err != nil || got != want.Uint64() {
			t.Fatalf("%s = %d, %v, want %s", src, got, err, want)
		}
	}
	if good < 2000 || bad < 2000 || deep < 10 {
		t.Errorf("%d values, %d out of range, %d too deep: the generator is lopsided", good, bad, deep)
	}
}

func TestEvalDoesNotAllocate(t *testing.T) {
	e, err := ParseExpr("((rows-1)*in+min(3,rows))*4 + (one == 1 && in % 2 == 0 ? row(wtype,in) : zero-1)")
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
	for _, k := range Kernels {
		for _, r := range k.Require {
			f.Add(r)
		}
	}
	f.Add("min(1,row(2,3))-ceildiv(4,5)*(6+huge)")
	f.Add("rows == 7 && !(one != 1 || zero-1 == 0) ? in/2 : max(in%3, 1)")
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

// TestFewRows compares FewRows with the expression that declares the order of gemm_few.
func TestFewRows(t *testing.T) {
	e, err := ParseExpr(fewRows)
	if err != nil {
		t.Fatal(err)
	}
	for rows := 1; rows <= 32; rows++ {
		want, err := e.Eval(mapEnv{"rows": uint64(rows)})
		if got := FewRows(rows); err != nil || uint64(got) != want {
			t.Errorf("FewRows(%d) = %d, and the declaration says %d, %v", rows, got, want, err)
		}
	}
}
