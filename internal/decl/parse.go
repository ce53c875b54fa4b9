package decl

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// maxNesting bounds the parser's recursion.
const maxNesting = 64

// ParseExpr compiles an expression whose names are all numbers.
func ParseExpr(src string) (Expr, error) { return parseExpr(src, nil) }

// parseExpr compiles an expression. In it, names of constants are flags or have named values, and
// all other names are numbers.
func parseExpr(src string, constants []Constant) (Expr, error) {
	p := parser{rest: src, constants: constants}
	p.space()
	if p.rest == "" {
		return Expr{src: src}, nil
	}
	k, err := p.expr()
	if err == nil && p.rest != "" {
		err = fmt.Errorf("unexpected %q", p.rest)
	}
	if err == nil && k.named != nil {
		err = fmt.Errorf("%s has named values and must be compared with one of them", k.named.Name)
	}
	if err == nil && p.deepest > maxDepth {
		err = fmt.Errorf("the expression is too deep: it needs %d values on the stack, and the limit is %d", p.deepest, maxDepth)
	}
	if err != nil {
		return Expr{}, fmt.Errorf("expression %q: %w", src, err)
	}
	return Expr{src: src, cond: k.cond, code: p.code}, nil
}

// kind is the kind of an operand: a condition, a constant with named values, or a number.
type kind struct {
	cond  bool
	named *Constant
}

func (k kind) number() bool { return !k.cond && k.named == nil }

var errNumber = errors.New("a number is expected")
var errCondition = errors.New("a condition is expected")

// numbers returns an error unless both operands are numbers.
func numbers(a, b kind) error {
	if !a.number() || !b.number() {
		return errNumber
	}
	return nil
}

// parser compiles to postfix code by recursive descent.
type parser struct {
	rest      string
	constants []Constant
	code      []op
	depth     int // values on the evaluation stack
	deepest   int
	nesting   int
}

// emit appends an operation that changes the number of values on the stack by grow.
func (p *parser) emit(o op, grow int) {
	p.code = append(p.code, o)
	p.depth += grow
	p.deepest = max(p.deepest, p.depth)
}

// land sets the target of the jump at index at to the next operation.
func (p *parser) land(at int) { p.code[at].num = uint64(len(p.code)) }

func (p *parser) space() { p.rest = strings.TrimLeft(p.rest, " \t\n") }

func (p *parser) take(s string) bool {
	rest, ok := strings.CutPrefix(p.rest, s)
	if ok {
		p.rest = rest
		p.space()
	}
	return ok
}

func (p *parser) want(s string) error {
	if !p.take(s) {
		return fmt.Errorf("%q is missing before %q", s, p.rest)
	}
	return nil
}

func (p *parser) expr() (kind, error) {
	p.nesting++
	defer func() { p.nesting-- }()
	if p.nesting > maxNesting {
		return kind{}, errors.New("it is nested too deeply")
	}
	k, err := p.logic(opOr)
	if err != nil || !p.take("?") {
		return k, err
	}
	if !k.cond {
		return k, errCondition
	}
	unless := len(p.code)
	p.emit(op{kind: opUnless}, -1)
	a, err := p.expr()
	if err != nil {
		return a, err
	}
	if err := p.want(":"); err != nil {
		return a, err
	}
	jump := len(p.code)
	p.emit(op{kind: opJump}, -1) // the other branch starts with one value less on the stack
	p.land(unless)
	b, err := p.expr()
	if err != nil {
		return b, err
	}
	p.land(jump)
	if a.cond != b.cond || a.named != nil || b.named != nil {
		return a, errors.New("both branches of a selection must be numbers, or both conditions")
	}
	return a, nil
}

// logic parses conditions between || (opOr) or && (opAnd).
func (p *parser) logic(by opKind) (kind, error) {
	sign, operand := "&&", p.compare
	if by == opOr {
		sign, operand = "||", func() (kind, error) { return p.logic(opAnd) }
	}
	k, err := operand()
	if err != nil {
		return k, err
	}
	for p.take(sign) {
		at := len(p.code)
		p.emit(op{kind: by}, -1)
		right, err := operand()
		if err != nil {
			return k, err
		}
		if !k.cond || !right.cond {
			return k, errCondition
		}
		p.land(at)
	}
	return k, nil
}

// comparisons lists the operators. An operator with another as its prefix, such as <=, is first.
var comparisons = []struct {
	sign string
	kind opKind
}{{"==", opEqual}, {"!=", opNotEqual}, {"<=", opLessEqual}, {">=", opGreaterEqual}, {"<", opLess}, {">", opGreater}}

func (p *parser) compare() (kind, error) {
	k, err := p.sum()
	if err != nil {
		return k, err
	}
	for _, c := range comparisons {
		if !p.take(c.sign) {
			continue
		}
		if k.named != nil {
			return p.compareNamed(k.named, c.kind)
		}
		right, err := p.sum()
		if err == nil {
			err = numbers(k, right)
		}
		if err != nil {
			return k, err
		}
		p.emit(op{kind: c.kind}, -1)
		return kind{cond: true}, nil
	}
	return k, nil
}

// compareNamed parses the name of the value with which a constant is compared.
func (p *parser) compareNamed(c *Constant, by opKind) (kind, error) {
	if by != opEqual && by != opNotEqual {
		return kind{}, fmt.Errorf("%s has named values, which have no order", c.Name)
	}
	word := p.word()
	v, ok := c.value(word)
	if !ok {
		return kind{}, fmt.Errorf("%s has no value %q", c.Name, word)
	}
	p.emit(op{kind: opNum, num: v}, 1)
	p.emit(op{kind: by}, -1)
	return kind{cond: true}, nil
}

func (p *parser) sum() (kind, error) { return p.arithmetic("+-", p.term) }

func (p *parser) term() (kind, error) { return p.arithmetic("*/%", p.unary) }

var arithmetic = map[byte]opKind{'+': opAdd, '-': opSub, '*': opMul, '/': opDiv, '%': opMod}

// arithmetic parses operands joined by any of the signs, from left to right.
func (p *parser) arithmetic(signs string, operand func() (kind, error)) (kind, error) {
	k, err := operand()
	if err != nil {
		return k, err
	}
	for p.rest != "" && strings.IndexByte(signs, p.rest[0]) >= 0 {
		by := arithmetic[p.rest[0]]
		p.take(p.rest[:1])
		right, err := operand()
		if err == nil {
			err = numbers(k, right)
		}
		if err != nil {
			return k, err
		}
		p.emit(op{kind: by}, -1)
	}
	return k, nil
}

// word consumes letters, digits and underscores and returns them.
func (p *parser) word() string {
	i := strings.IndexFunc(p.rest, func(r rune) bool {
		return r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9')
	})
	if i < 0 {
		i = len(p.rest)
	}
	word := p.rest[:i]
	p.take(word)
	return word
}

// functions lists the functions with their number of arguments and the number of leading arguments
// that may be constants with named values.
var functions = map[string]struct {
	kind        opKind
	args, named int
}{
	"min": {opMin, 2, 0}, "max": {opMax, 2, 0}, "ceildiv": {opCeilDiv, 2, 0}, "row": {opRow, 2, 1}, "mat": {opMat, 4, 2},
}

func (p *parser) unary() (kind, error) {
	if strings.HasPrefix(p.rest, "!") && !strings.HasPrefix(p.rest, "!=") {
		return p.not()
	}
	if p.take("(") {
		k, err := p.expr()
		if err != nil {
			return k, err
		}
		return k, p.want(")")
	}
	word := p.word()
	if word == "" {
		return kind{}, fmt.Errorf("a number or a name is missing before %q", p.rest)
	}
	if word[0] <= '9' {
		v, err := strconv.ParseUint(word, 10, 64)
		p.emit(op{kind: opNum, num: v}, 1)
		return kind{}, err
	}
	if f, ok := functions[word]; ok {
		return kind{}, p.call(f.kind, f.args, f.named)
	}
	p.emit(op{kind: opName, name: word}, 1)
	for i := range p.constants {
		switch c := &p.constants[i]; {
		case c.Name != word:
		case c.Flag:
			return kind{cond: true}, nil
		case c.hasNames():
			return kind{named: c}, nil
		}
	}
	return kind{}, nil
}

func (p *parser) not() (kind, error) {
	p.nesting++
	defer func() { p.nesting-- }()
	if p.nesting > maxNesting {
		return kind{}, errors.New("it is nested too deeply")
	}
	p.take("!")
	k, err := p.unary()
	if err == nil && !k.cond {
		err = errCondition
	}
	p.emit(op{kind: opNot}, 0)
	return k, err
}

// call parses the arguments of a function.
func (p *parser) call(by opKind, args, named int) error {
	if err := p.want("("); err != nil {
		return err
	}
	for i := range args {
		if i > 0 {
			if err := p.want(","); err != nil {
				return err
			}
		}
		k, err := p.expr()
		if err != nil {
			return err
		}
		if k.cond || k.named != nil && i >= named {
			return errNumber
		}
	}
	p.emit(op{kind: by}, 1-args)
	return p.want(")")
}
