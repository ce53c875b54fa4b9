package jinja

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Template is a parsed template. Several goroutines may use it at once.
type Template struct{ body []stmt }

// Parse parses a template. The error is an *Error.
func Parse(src string) (t *Template, err error) {
	defer catch(&err)
	if len(src) > MaxSource {
		return nil, &Error{1, fmt.Errorf("the template has %d bytes, more than the limit of %d", len(src), MaxSource)}
	}
	p := &parser{toks: lex(src)}
	defer func() { // adds the current line to an error
		if f := recover(); f != nil {
			func() { defer at(p.line()); panic(f) }()
		}
	}()
	t = &Template{p.block()}
	if p.peek().kind != tokEnd {
		fail("unexpected %s", p.peek())
	}
	return t, nil
}

type parser struct {
	toks  []token
	pos   int
	depth int
	loops int             // number of enclosing loops within the macro
	ifs   int             // number of enclosing ifs
	uses  map[string]bool // names that the enclosing macro uses; nil outside macros
}

func (p *parser) peek() token { return p.toks[p.pos] }
func (p *parser) line() int   { return p.peek().line }

// String returns the token in the form that error messages use.
func (t token) String() string {
	switch t.kind {
	case tokEnd:
		return "the end of the template"
	case tokBlockEnd, tokVarEnd:
		return "the end of the tag"
	}
	return strconv.Quote(t.text)
}

func (p *parser) next() token {
	t := p.peek()
	if t.kind != tokEnd {
		p.pos++
	}
	return t
}

// is reports whether the next token has the given kind and one of the texts.
func (p *parser) is(kind tokenKind, texts ...string) bool {
	t := p.peek()
	return t.kind == kind && slices.Contains(texts, t.text)
}

// skip consumes the next token if it matches, and reports whether it did.
func (p *parser) skip(kind tokenKind, text string) bool {
	if !p.is(kind, text) {
		return false
	}
	p.pos++
	return true
}

func (p *parser) expect(kind tokenKind, text string) token {
	t := p.next()
	if t.kind != kind || text != "" && t.text != text {
		fail("unexpected %s, not %q", t, text)
	}
	return t
}

func (p *parser) name() string {
	t := p.next()
	if t.kind != tokName {
		fail("unexpected %s, not a name", t)
	}
	return t.text
}

// enter counts a level of nesting and bounds it. The caller must call the returned function
// when it leaves the level.
func (p *parser) enter() func() {
	if p.depth++; p.depth > maxDepth {
		fail("nesting deeper than %d levels", maxDepth)
	}
	return func() { p.depth-- }
}

// block parses statements up to one of the given tags. It does not consume the name of that
// tag.
func (p *parser) block(ends ...string) []stmt {
	defer p.enter()()
	var list []stmt
	for {
		t := p.peek()
		switch t.kind {
		case tokEnd:
			if len(ends) > 0 {
				fail("the template ends without %s", strings.Join(ends, " or "))
			}
			return list
		case tokData:
			p.next()
			list = append(list, &textStmt{t.text})
		case tokVarBegin:
			p.next()
			list = append(list, &outStmt{p.tuple(), t.line})
			p.expect(tokVarEnd, "")
		case tokBlockBegin:
			p.next()
			if len(ends) > 0 && p.is(tokName, ends...) {
				return list
			}
			list = append(list, p.statement())
		default:
			fail("unexpected %s", t)
		}
	}
}

// end consumes a tag's name and the end of the tag.
func (p *parser) end(name string) {
	p.expect(tokName, name)
	p.expect(tokBlockEnd, "")
}

func (p *parser) statement() stmt {
	line := p.line()
	switch tag := p.name(); tag {
	case "if":
		return p.ifStmt(line)
	case "for":
		return p.forStmt(line)
	case "set":
		return p.setStmt(line)
	case "macro":
		return p.macro(&macroStmt{name: p.name()}, "endmacro")
	case "call":
		return p.callStmt(line)
	case "with":
		return p.withStmt(line)
	case "break", "continue":
		if p.loops == 0 {
			fail("%s is not in a loop", tag)
		}
		p.expect(tokBlockEnd, "")
		return &jumpStmt{tag}
	case "generation": // the tag that transformers defines around the assistant's text
		p.expect(tokBlockEnd, "")
		body := p.block("endgeneration")
		p.end("endgeneration")
		return &groupStmt{body}
	case "filter":
		s := &filterStmt{line: line, e: &captured{}}
		s.filter = p.filters(s.e, p.name())
		p.expect(tokBlockEnd, "")
		s.body = p.block("endfilter")
		p.end("endfilter")
		return s
	default:
		fail("the tag %q is not supported", tag)
		return nil
	}
}

func (p *parser) ifStmt(line int) stmt {
	s := &ifStmt{line: line, cond: p.tuple()}
	p.expect(tokBlockEnd, "")
	p.ifs++
	defer func() { p.ifs-- }()
	s.then = p.block("elif", "else", "endif")
	switch l := p.line(); p.name() {
	case "elif":
		defer p.enter()()
		s.els = []stmt{p.ifStmt(l)}
		return s
	case "else":
		p.expect(tokBlockEnd, "")
		s.els = p.block("endif")
		p.name()
	}
	p.expect(tokBlockEnd, "")
	return s
}

func (p *parser) forStmt(line int) stmt {
	s := &forStmt{line: line, target: p.targets()}
	p.expect(tokName, "in")
	s.over = p.tupleOf(p.or) // a following if is the filter of the loop
	if p.skip(tokName, "if") {
		s.cond = p.expr()
	}
	s.recursive = p.skip(tokName, "recursive")
	p.expect(tokBlockEnd, "")
	p.loops++
	s.body = p.block("else", "endfor")
	p.loops--
	if p.skip(tokName, "else") {
		p.expect(tokBlockEnd, "")
		s.els = p.block("endfor")
	}
	p.end("endfor")
	return s
}

// targets parses the targets of an assignment: a name, or names as in (a, b) or a, (b, c).
func (p *parser) targets() target {
	t := p.target()
	if !p.is(tokOp, ",") {
		return t
	}
	t = target{parts: []target{t}}
	for p.skip(tokOp, ",") && !p.is(tokOp, ")", "=") && !p.is(tokName, "in") {
		t.parts = append(t.parts, p.target())
	}
	return t
}

func (p *parser) target() target {
	if !p.skip(tokOp, "(") {
		return target{name: p.name()}
	}
	defer p.enter()()
	t := p.targets()
	p.expect(tokOp, ")")
	return t
}

func (p *parser) setStmt(line int) stmt {
	s := &setStmt{line: line, target: p.targets()}
	if s.target.parts == nil && p.skip(tokOp, ".") {
		s.attr = p.name()
	}
	if p.skip(tokOp, "=") {
		s.value = p.tuple()
		p.expect(tokBlockEnd, "")
		return s
	}
	inner := &captured{}
	s.captured, s.value = inner, inner
	if p.skip(tokOp, "|") {
		s.value = p.filters(inner, p.name())
	}
	p.expect(tokBlockEnd, "")
	s.body = p.block("endset")
	p.end("endset")
	return s
}

// macro parses the arguments and the body of a macro or of a call block.
func (p *parser) macro(s *macroStmt, end string) *macroStmt {
	if end == "endmacro" || p.is(tokOp, "(") {
		s.params = p.params()
	}
	if end == "endmacro" {
		p.expect(tokBlockEnd, "")
		s.body, s.uses = p.macroBody(end)
	}
	return s
}

func (p *parser) params() (list []param) {
	p.expect(tokOp, "(")
	for !p.skip(tokOp, ")") {
		if len(list) > 0 {
			p.expect(tokOp, ",")
			if p.skip(tokOp, ")") {
				break
			}
		}
		a := param{name: p.name()}
		if p.skip(tokOp, "=") {
			a.def = p.expr()
		}
		list = append(list, a)
	}
	return list
}

func (p *parser) macroBody(end string) ([]stmt, map[string]bool) {
	loops, uses := p.loops, p.uses
	p.loops, p.uses = 0, map[string]bool{}
	body, used := p.block(end), p.uses
	p.loops, p.uses = loops, uses
	p.end(end)
	return body, used
}

func (p *parser) callStmt(line int) stmt {
	body := p.macro(&macroStmt{name: "caller"}, "endcall")
	e, ok := p.expr().(*callExpr)
	if !ok {
		fail("the call block needs a call")
	}
	p.expect(tokBlockEnd, "")
	body.body, body.uses = p.macroBody("endcall")
	return &callStmt{line, e, body}
}

func (p *parser) withStmt(line int) stmt {
	s := &withStmt{line: line}
	for n := 0; p.peek().kind != tokBlockEnd; n++ {
		if n > 0 {
			p.expect(tokOp, ",")
		}
		s.targets = append(s.targets, p.target())
		p.expect(tokOp, "=")
		s.values = append(s.values, p.expr())
	}
	p.expect(tokBlockEnd, "")
	s.body = p.block("endwith")
	p.end("endwith")
	return s
}

// tuple parses one expression, or several separated by commas.
func (p *parser) tuple() expr { return p.tupleOf(p.expr) }

func (p *parser) tupleOf(one func() expr) expr {
	first := one()
	if !p.is(tokOp, ",") {
		return first
	}
	list := &listExpr{items: []expr{first}, tuple: true}
	for p.skip(tokOp, ",") {
		if t := p.peek(); t.kind == tokVarEnd || t.kind == tokBlockEnd || p.is(tokOp, ")") {
			break
		}
		list.items = append(list.items, one())
	}
	return list
}

// expr parses a conditional expression.
func (p *parser) expr() expr {
	defer p.enter()()
	e := p.or()
	for line := p.line(); p.skip(tokName, "if"); line = p.line() {
		c := &condExpr{line: line, then: e, cond: p.or()}
		if p.skip(tokName, "else") {
			c.els = p.expr()
		}
		e = c
	}
	return e
}

// chain parses left-associative operators. next parses their operands.
func (p *parser) chain(next func() expr, kind tokenKind, ops ...string) expr {
	e := next()
	n := 0
	for p.is(kind, ops...) {
		if n++; n > 10*maxDepth {
			fail("more than %d operators in a row", 10*maxDepth)
		}
		t := p.next()
		e = &binExpr{t.text, e, next(), t.line}
	}
	return e
}

func (p *parser) or() expr  { return p.chain(p.and, tokName, "or") }
func (p *parser) and() expr { return p.chain(p.not, tokName, "and") }

func (p *parser) not() expr {
	if p.skip(tokName, "not") {
		defer p.enter()()
		return &notExpr{p.not()}
	}
	return p.compare()
}

func (p *parser) compare() expr {
	line := p.line()
	first := p.sum()
	c := &compareExpr{line: line, first: first}
	for {
		op := p.peek().text
		switch {
		case p.is(tokOp, "==", "!=", "<", "<=", ">", ">="), p.is(tokName, "in"):
			p.next()
		case p.is(tokName, "not") && p.toks[p.pos+1].kind == tokName && p.toks[p.pos+1].text == "in":
			p.next()
			p.next()
			op = "not in"
		default:
			if len(c.rest) == 0 {
				return first
			}
			return c
		}
		c.rest = append(c.rest, compared{op, p.sum()})
	}
}

func (p *parser) sum() expr    { return p.chain(p.concat, tokOp, "+", "-") }
func (p *parser) concat() expr { return p.chain(p.product, tokOp, "~") }
func (p *parser) product() expr {
	return p.chain(p.power, tokOp, "*", "/", "//", "%")
}

func (p *parser) power() expr { return p.chain(func() expr { return p.unary(true) }, tokOp, "**") }

func (p *parser) unary(filters bool) expr {
	var e expr
	if line := p.line(); p.is(tokOp, "-", "+") {
		defer p.enter()()
		e = &signExpr{p.next().text == "-", p.unary(false), line}
	} else {
		e = p.primary()
	}
	e = p.postfix(e)
	if filters {
		e = p.filterOrTest(e)
	}
	return e
}

func (p *parser) primary() expr {
	t := p.next()
	switch t.kind {
	case tokName:
		switch t.text {
		case "true", "True":
			return &constExpr{true}
		case "false", "False":
			return &constExpr{false}
		case "none", "None":
			return &constExpr{nil}
		}
		if p.uses != nil {
			p.uses[t.text] = true
		}
		return &nameExpr{t.text, t.line}
	case tokString:
		text := t.text
		for p.peek().kind == tokString { // adjacent strings are joined
			text += p.next().text
		}
		return &constExpr{text}
	case tokInt:
		n, err := wholeOrFloat(t.text)
		if err != nil || len(t.text) > maxDigits {
			fail("a number of %d digits is too long", len(t.text))
		}
		return &constExpr{n}
	case tokFloat:
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil {
			fail("the number %s is too large", t.text)
		}
		return &constExpr{f}
	case tokOp:
		switch t.text {
		case "(":
			if p.skip(tokOp, ")") {
				return &listExpr{tuple: true}
			}
			e := p.tuple()
			p.expect(tokOp, ")")
			return e
		case "[":
			return &listExpr{items: p.list("]")}
		case "{":
			return p.dict()
		}
	}
	p.pos = max(0, p.pos-1)
	fail("unexpected %s", t)
	return nil
}

// list parses expressions up to a closing bracket.
func (p *parser) list(end string) (items []expr) {
	for !p.skip(tokOp, end) {
		if len(items) > 0 {
			p.expect(tokOp, ",")
			if p.skip(tokOp, end) {
				break
			}
		}
		items = append(items, p.expr())
	}
	return items
}

func (p *parser) dict() expr {
	d := &dictExpr{line: p.line()}
	for !p.skip(tokOp, "}") {
		if len(d.keys) > 0 {
			p.expect(tokOp, ",")
			if p.skip(tokOp, "}") {
				break
			}
		}
		d.keys = append(d.keys, p.expr())
		p.expect(tokOp, ":")
		d.values = append(d.values, p.expr())
	}
	return d
}

func (p *parser) postfix(e expr) expr {
	for n := 0; ; n++ {
		if n > maxDepth {
			fail("more than %d attributes and subscripts in a row", maxDepth)
		}
		t := p.peek()
		switch {
		case p.skip(tokOp, "."):
			switch t := p.next(); t.kind {
			case tokName:
				e = &attrExpr{e, t.text, t.line}
			case tokInt:
				i, _ := strconv.Atoi(t.text)
				e = &itemExpr{e, &constExpr{i}, t.line}
			default:
				fail("unexpected %s, not a name", t)
			}
		case p.skip(tokOp, "["):
			e = p.subscript(e, t.line)
		case p.skip(tokOp, "("):
			e = &callExpr{fn: e, args: p.args(), line: t.line}
		default:
			return e
		}
	}
}

func (p *parser) subscript(e expr, line int) expr {
	var bounds [3]expr
	n, slice := 0, false
	for !p.skip(tokOp, "]") {
		if p.skip(tokOp, ":") {
			slice = true
			if n++; n > 2 {
				fail("a slice has at most three parts")
			}
			continue
		}
		if bounds[n] != nil {
			fail("unexpected %s", p.peek())
		}
		bounds[n] = p.expr()
	}
	if slice {
		return &sliceExpr{e, bounds, line}
	}
	if bounds[0] == nil {
		fail("the subscript is empty")
	}
	return &itemExpr{e, bounds[0], line}
}

// args parses arguments after the opening parenthesis.
func (p *parser) args() (a arguments) {
	for n := 0; !p.skip(tokOp, ")"); n++ {
		if n > 0 {
			p.expect(tokOp, ",")
			if p.skip(tokOp, ")") {
				break
			}
		}
		switch {
		case a.pairs == nil && p.skip(tokOp, "**"):
			a.pairs = p.expr()
			continue
		case a.pairs == nil && a.more == nil && p.skip(tokOp, "*"):
			a.more = p.expr()
			continue
		}
		if p.peek().kind == tokName && p.toks[p.pos+1].kind == tokOp && p.toks[p.pos+1].text == "=" {
			name := p.name()
			p.next()
			a.names = append(a.names, name)
			a.named = append(a.named, p.expr())
			continue
		}
		if len(a.names) > 0 || a.more != nil || a.pairs != nil {
			fail("an argument without a name follows one with a name")
		}
		a.list = append(a.list, p.expr())
	}
	return a
}

// filterOrTest parses filters and tests of e and calls of their results.
func (p *parser) filterOrTest(e expr) expr {
	for n := 0; ; n++ {
		if n > maxDepth {
			fail("more than %d filters in a row", maxDepth)
		}
		line := p.line()
		switch {
		case p.skip(tokOp, "|"):
			e = p.filter(e, p.name())
		case p.skip(tokName, "is"):
			t := &testExpr{e: e, not: p.skip(tokName, "not"), line: line}
			t.name = p.name()
			if t.fn = tests[t.name]; t.fn == nil && p.ifs == 0 {
				fail("unknown test %q", t.name)
			}
			next := p.peek()
			switch {
			case p.skip(tokOp, "("):
				t.args = p.args()
			case next.kind == tokString, next.kind == tokInt, next.kind == tokFloat, p.is(tokOp, "[", "{"),
				next.kind == tokName && !slices.Contains([]string{"else", "or", "and", "is", "if", "in", "not"}, next.text):
				t.args.list = []expr{p.postfix(p.primary())}
			}
			e = t
		case p.skip(tokOp, "("):
			e = &callExpr{fn: e, args: p.args(), line: line}
		default:
			return e
		}
	}
}

// filters parses a filter whose name has been consumed, and the filters that follow.
func (p *parser) filters(e expr, name string) expr {
	e = p.filter(e, name)
	for p.skip(tokOp, "|") {
		e = p.filter(e, p.name())
	}
	return e
}

func (p *parser) filter(e expr, name string) expr {
	f := &filterExpr{e: e, name: name, line: p.line()}
	if f.fn = filterOf(name); f.fn == nil && p.ifs == 0 {
		fail("unknown filter %q", name)
	}
	if p.skip(tokOp, "(") {
		f.args = p.args()
	}
	return f
}
