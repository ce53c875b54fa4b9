package decl

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	"github.com/pianola-engine/pianola/internal/dtype"
)

// Expr is a size in bytes as a function of parameters, secondary fields and
// specialisation constants:
//
//	expr   = term { ("+" | "-") term }
//	term   = factor { "*" factor }
//	factor = number | name | "(" expr ")" | "row(" type "," n ")" | "div(" a "," b ")" | "min(" a "," b ")"
//	       | "mat(" layout "," type "," rows "," columns ")"
//
// row is the size of n elements of a weight type, mat that of a matrix in a
// layout, div rounds up. Evaluation is
// in checked 64-bit arithmetic: an overflow, a negative value, a division by 0
// and a row that is not a whole number of blocks are errors. The zero Expr
// is 0.
type Expr struct {
	src  string
	code []op
}

type opKind uint8

const (
	opNum opKind = iota
	opName
	opAdd
	opSub
	opMul
	opRow
	opDiv
	opMin
	opMat
)

type op struct {
	kind opKind
	num  uint64
	name string
}

// maxDepth bounds the evaluation stack; the declarations need 5.
const maxDepth = 8

// ErrRange says that a size does not fit, is negative or divides by 0.
var ErrRange = errors.New("size is out of range")

// ParseExpr compiles an expression to postfix form.
func ParseExpr(src string) (Expr, error) {
	p := exprParser{src: src, rest: strings.ReplaceAll(src, " ", "")}
	if p.rest == "" {
		return Expr{}, nil
	}
	if err := p.expr(); err != nil {
		return Expr{}, fmt.Errorf("expression %q: %w", src, err)
	}
	if p.rest != "" {
		return Expr{}, fmt.Errorf("expression %q: unexpected %q", src, p.rest)
	}
	return Expr{src: src, code: p.code}, nil
}

// String returns the source.
func (e Expr) String() string { return e.src }

// Names returns the names that the expression reads.
func (e Expr) Names() []string {
	var names []string
	for _, o := range e.code {
		if o.kind == opName {
			names = append(names, o.name)
		}
	}
	return names
}

// Eval computes the expression. It does not allocate unless it fails.
func (e Expr) Eval(env Env) (uint64, error) {
	if len(e.code) == 0 {
		return 0, nil
	}
	var stack [maxDepth]uint64
	n := 0
	for _, o := range e.code {
		switch o.kind {
		case opNum, opName:
			if n == maxDepth {
				return 0, fmt.Errorf("expression %q is too deep", e.src)
			}
			v := o.num
			if o.kind == opName {
				var ok bool
				if v, ok = env.Value(o.name); !ok {
					return 0, fmt.Errorf("expression %q: no value for %s", e.src, o.name)
				}
			}
			stack[n] = v
			n++
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

func apply(k opKind, a, b uint64) (uint64, bool) {
	switch k {
	case opAdd:
		s, carry := bits.Add64(a, b, 0)
		return s, carry == 0
	case opSub:
		return a - b, a >= b
	case opMul:
		hi, lo := bits.Mul64(a, b)
		return lo, hi == 0
	case opRow:
		if a > 255 {
			return 0, false
		}
		return dtype.Type(a).Bytes(b)
	case opDiv:
		if b == 0 {
			return 0, false
		}
		q := a / b
		if a%b != 0 {
			q++
		}
		return q, true
	case opMin:
		return min(a, b), true
	}
	return 0, false
}

// matrixBytes returns the size of a matrix of a dtype.Layout and a dtype.Type.
func matrixBytes(layout, t, rows, cols uint64) (uint64, bool) {
	if layout > 255 || t > 255 {
		return 0, false
	}
	return dtype.Layout(layout).Bytes(dtype.Type(t), rows, cols)
}

type exprParser struct {
	src, rest string
	code      []op
}

func (p *exprParser) take(s string) bool {
	if strings.HasPrefix(p.rest, s) {
		p.rest = p.rest[len(s):]
		return true
	}
	return false
}

func (p *exprParser) expr() error {
	if err := p.term(); err != nil {
		return err
	}
	for {
		k := opAdd
		switch {
		case p.take("+"):
		case p.take("-"):
			k = opSub
		default:
			return nil
		}
		if err := p.term(); err != nil {
			return err
		}
		p.code = append(p.code, op{kind: k})
	}
}

func (p *exprParser) term() error {
	if err := p.factor(); err != nil {
		return err
	}
	for p.take("*") {
		if err := p.factor(); err != nil {
			return err
		}
		p.code = append(p.code, op{kind: opMul})
	}
	return nil
}

func (p *exprParser) factor() error {
	if p.take("(") {
		if err := p.expr(); err != nil {
			return err
		}
		return p.want(")")
	}
	i := 0
	for i < len(p.rest) && (p.rest[i] == '_' || p.rest[i] >= 'a' && p.rest[i] <= 'z' || p.rest[i] >= '0' && p.rest[i] <= '9') {
		i++
	}
	word := p.rest[:i]
	p.rest = p.rest[i:]
	if word == "" {
		return fmt.Errorf("a number or a name is missing before %q", p.rest)
	}
	if word[0] <= '9' {
		v, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			return err
		}
		p.code = append(p.code, op{kind: opNum, num: v})
		return nil
	}
	k, args := opName, 2
	switch word {
	case "row":
		k = opRow
	case "div":
		k = opDiv
	case "min":
		k = opMin
	case "mat":
		k, args = opMat, 4
	default:
		p.code = append(p.code, op{kind: opName, name: word})
		return nil
	}
	if err := p.want("("); err != nil {
		return err
	}
	if err := p.expr(); err != nil {
		return err
	}
	for range args - 1 {
		if err := p.want(","); err != nil {
			return err
		}
		if err := p.expr(); err != nil {
			return err
		}
	}
	p.code = append(p.code, op{kind: k})
	return p.want(")")
}

func (p *exprParser) want(s string) error {
	if !p.take(s) {
		return fmt.Errorf("%q is missing before %q", s, p.rest)
	}
	return nil
}
