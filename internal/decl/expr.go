package decl

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// Expr is a number or a condition computed from a command's parameters, secondary fields and
// specialisation constants. This is its grammar, operators with the lowest precedence first:
//
//	expr    = or [ "?" expr ":" expr ]
//	or      = and { "||" and }
//	and     = compare { "&&" compare }
//	compare = sum [ ("==" | "!=" | "<" | "<=" | ">" | ">=") sum ]
//	sum     = term { ("+" | "-") term }
//	term    = unary { ("*" | "/" | "%") unary }
//	unary   = "!" unary | number | name | function "(" expr { "," expr } ")" | "(" expr ")"
//
// The operators have the same meaning as in Go; / and % round down. The functions are
//
//	min(a, b), max(a, b)
//	ceildiv(a, b)                  a / b rounded up
//	row(type, n)                   bytes of n elements of a weight type
//	mat(layout, type, rows, cols)  bytes of a matrix in a layout
//
// A specialisation constant with named values is compared with a name, as in input == merge. A flag
// is a condition. A condition cannot be used as a number: 2*flag is an error, flag ? 2 : 0 is not.
//
// Evaluation uses checked 64-bit arithmetic: an overflow, a negative value, a division by 0 and a row
// that is not a whole number of blocks are errors. A selection evaluates only the branch that it
// takes. && and || evaluate the second operand only if the first one does not decide the result. The
// zero Expr is 0.
type Expr struct {
	src  string
	cond bool // a condition, not a number
	code []op
}

type opKind uint8

const (
	opNum opKind = iota
	opName
	opAdd
	opSub
	opMul
	opDiv
	opMod
	opMin
	opMax
	opCeilDiv
	opRow
	opEqual
	opNotEqual
	opLess
	opLessEqual
	opGreater
	opGreaterEqual
	opMat
	opNot
	opAnd    // jumps to num if the top of the stack is 0, otherwise drops the top
	opOr     // jumps to num if the top of the stack is not 0, otherwise drops the top
	opUnless // drops the top of the stack and jumps to num if it was 0
	opJump   // jumps to num
)

// op is one instruction of the postfix code.
type op struct {
	kind opKind
	num  uint64 // the number, or the index to jump to
	name string
}

// maxDepth is the size of the evaluation stack. The parser rejects expressions that need more. The
// declarations need 6.
const maxDepth = 8

// ErrRange reports a value that does not fit 64 bits, is negative or divides by 0.
var ErrRange = errors.New("size is out of range")

// String returns the source.
func (e Expr) String() string { return e.src }

// Names returns the names in the expression that have values in an Env.
func (e Expr) Names() []string {
	var names []string
	for _, o := range e.code {
		if o.kind == opName {
			names = append(names, o.name)
		}
	}
	return names
}

// values describes the values of the names in the expression, each once:
// "group = 12, rows = 4".
func (e Expr) values(env Env) string {
	var list []string
	seen := map[string]bool{}
	for _, name := range e.Names() {
		v, ok := env.Value(name)
		if seen[name] || !ok {
			continue
		}
		seen[name] = true
		list = append(list, fmt.Sprintf("%s = %d", name, v))
	}
	return strings.Join(list, ", ")
}

// Eval computes the expression; a condition is 0 if it is false. Eval does not
// allocate unless it fails.
func (e Expr) Eval(env Env) (uint64, error) {
	if len(e.code) == 0 {
		return 0, nil
	}
	var stack [maxDepth]uint64
	n := 0
	for pc := 0; pc < len(e.code); pc++ {
		o := &e.code[pc]
		switch o.kind {
		case opNum:
			stack[n] = o.num
			n++
		case opName:
			v, ok := env.Value(o.name)
			if !ok {
				return 0, fmt.Errorf("expression %q: no value for %s", e.src, o.name)
			}
			stack[n] = v
			n++
		case opNot:
			stack[n-1] = truth(stack[n-1] == 0)
		case opAnd, opOr:
			if (stack[n-1] != 0) == (o.kind == opOr) {
				pc = int(o.num) - 1
				continue
			}
			n--
		case opUnless:
			n--
			if stack[n] == 0 {
				pc = int(o.num) - 1
			}
		case opJump:
			pc = int(o.num) - 1
		case opMat:
			v, ok := matrixBytes(stack[n-4], stack[n-3], stack[n-2], stack[n-1])
			if !ok {
				return 0, fmt.Errorf("%q: %w", e.src, ErrRange)
			}
			n -= 3
			stack[n-1] = v
		default:
			v, ok := apply(o.kind, stack[n-2], stack[n-1])
			if !ok {
				return 0, fmt.Errorf("%q: %w", e.src, ErrRange)
			}
			n--
			stack[n-1] = v
		}
	}
	return stack[0], nil
}

// truth returns 1 for true and 0 for false.
func truth(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// apply computes an operator with two operands. ok is false if the result is out of range.
func apply(k opKind, a, b uint64) (v uint64, ok bool) {
	switch k {
	case opAdd:
		s, carry := bits.Add64(a, b, 0)
		return s, carry == 0
	case opSub:
		return a - b, a >= b
	case opMul:
		hi, lo := bits.Mul64(a, b)
		return lo, hi == 0
	case opMin:
		return min(a, b), true
	case opMax:
		return max(a, b), true
	case opRow:
		if a > 255 {
			return 0, false
		}
		return dtype.Type(a).Bytes(b)
	case opDiv, opMod, opCeilDiv:
		return divide(k, a, b)
	case opEqual:
		return truth(a == b), true
	case opNotEqual:
		return truth(a != b), true
	case opLess:
		return truth(a < b), true
	case opLessEqual:
		return truth(a <= b), true
	case opGreater:
		return truth(a > b), true
	case opGreaterEqual:
		return truth(a >= b), true
	}
	return 0, false
}

func divide(k opKind, a, b uint64) (uint64, bool) {
	if b == 0 {
		return 0, false
	}
	switch q := a / b; {
	case k == opMod:
		return a % b, true
	case k == opCeilDiv && a%b != 0:
		return q + 1, true
	default:
		return q, true
	}
}

// matrixBytes returns the size in bytes of a matrix with a dtype.Layout and a dtype.Type.
func matrixBytes(layout, t, rows, cols uint64) (uint64, bool) {
	if layout > 255 || t > 255 {
		return 0, false
	}
	return dtype.Layout(layout).Bytes(dtype.Type(t), rows, cols)
}
