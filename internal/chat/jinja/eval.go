package jinja

import (
	"context"
	"math"
	"math/bits"
	"strings"
	"time"
	"unicode/utf8"
)

// Options are the limits and the clock of a render.
type Options struct {
	Budget int              // number of steps; 0 means DefaultBudget
	Now    func() time.Time // clock for strftime_now; nil means time.Now
}

// Render executes the template. The values of vars are nil, a bool, int, float64, string,
// *List or *Dict. The error is an *Error, which may wrap a *RaisedError, ErrBudget or the
// error of ctx.
func (t *Template) Render(ctx context.Context, vars map[string]any, o Options) (out string, err error) {
	defer catch(&err)
	if o.Budget <= 0 {
		o.Budget = DefaultBudget
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	r := &render{ctx: ctx, budget: o.Budget, now: o.Now}
	r.out = &builder{r: r}
	r.scope = &scope{vars: map[string]any{}, root: true}
	for name, f := range globals {
		r.scope.vars[name] = f
	}
	r.scope = &scope{vars: map[string]any{}, up: r.scope, root: true}
	for name, v := range vars {
		r.scope.vars[name] = v
	}
	r.block(t.body)
	return r.out.String(), nil
}

// render is the state of one execution.
type render struct {
	ctx    context.Context
	now    func() time.Time
	budget int
	check  int
	depth  int // nesting of expressions and statements
	calls  int // nesting of macro calls
	out    *builder
	scope  *scope
	jump   string // pending "break" or "continue", or ""
}

// scope holds the variables of a block. The scope of a loop or a macro ends with it.
type scope struct {
	vars map[string]any
	up   *scope
	root bool
}

// spend subtracts steps from the budget.
func (r *render) spend(n int) {
	if n < 0 || n > r.budget {
		r.budget = 0
		panic(failure{ErrBudget})
	}
	r.budget -= n
	if r.check += n; r.check >= 1<<12 {
		r.check = 0
		if err := context.Cause(r.ctx); err != nil {
			panic(failure{err})
		}
	}
}

// maxStack bounds the total nesting of expressions, blocks and macros.
const maxStack = 10_000

func (r *render) deeper() {
	r.spend(1)
	if r.depth++; r.depth > maxStack {
		fail("nesting deeper than %d steps", maxStack)
	}
}

func (r *render) lookup(name string) any {
	for s := r.scope; s != nil; s = s.up {
		if v, ok := s.vars[name]; ok {
			return v
		}
	}
	return undefined{name}
}

// within runs f in a new scope.
func (r *render) within(f func()) {
	outer := r.scope
	r.scope = &scope{vars: map[string]any{}, up: outer}
	f()
	r.scope = outer
}

// capture runs f and returns the text that it writes.
func (r *render) capture(f func()) string {
	outer := r.out
	r.out = &builder{r: r}
	f()
	s := r.out.String()
	r.out = outer
	return s
}

type constExpr struct{ v any }

func (e *constExpr) eval(*render) any { return e.v }

type nameExpr struct {
	name string
	line int
}

func (e *nameExpr) eval(r *render) any { return r.lookup(e.name) }

type listExpr struct {
	items []expr
	tuple bool
}

func (e *listExpr) eval(r *render) any {
	l := &List{Items: make([]any, len(e.items)), tuple: e.tuple}
	for i, item := range e.items {
		l.Items[i] = r.eval(item)
	}
	return l
}

type dictExpr struct {
	keys, values []expr
	line         int
}

func (e *dictExpr) eval(r *render) any {
	defer at(e.line)
	d := NewDict()
	for i := range e.keys {
		d.Set(key(r.eval(e.keys[i])), r.eval(e.values[i]))
	}
	return d
}

// key returns v if it can be the key of a dictionary.
func key(v any) any {
	switch v := v.(type) {
	case nil, bool, int, digits, string:
		return v
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return int(v)
		}
		return v
	}
	fail("%s cannot be a dictionary key", typeName(v))
	return nil
}

type condExpr struct {
	cond, then, els expr
	line            int
}

func (e *condExpr) eval(r *render) any {
	if truth(r.eval(e.cond)) {
		return r.eval(e.then)
	}
	if e.els == nil {
		return undefined{"the value of an if without else"}
	}
	return r.eval(e.els)
}

type notExpr struct{ e expr }

func (e *notExpr) eval(r *render) any { return !truth(r.eval(e.e)) }

type signExpr struct {
	minus bool
	e     expr
	line  int
}

func (e *signExpr) eval(r *render) any {
	defer at(e.line)
	v := r.eval(e.e)
	f, whole, ok := number(v)
	if !ok {
		fail("cannot apply a sign to %s", typeName(v))
	}
	if e.minus {
		f = -f
	}
	if whole {
		return wholeNumber(f)
	}
	return f
}

// wholeNumber converts f to an integer if float64 represents it exactly.
func wholeNumber(f float64) int {
	if math.Abs(f) > 1<<53 {
		fail("the number is too large")
	}
	return int(f)
}

type compared struct {
	op string
	e  expr
}

type compareExpr struct {
	line  int
	first expr
	rest  []compared
}

func (e *compareExpr) eval(r *render) any {
	defer at(e.line)
	a := r.eval(e.first)
	for _, c := range e.rest {
		b := r.eval(c.e)
		if !r.compare(c.op, a, b) {
			return false
		}
		a = b
	}
	return true
}

func (r *render) compare(op string, a, b any) bool {
	switch op {
	case "==":
		return r.equal(a, b, 0)
	case "!=":
		return !r.equal(a, b, 0)
	case "<":
		return r.less(a, b)
	case ">":
		return r.less(b, a)
	case "<=":
		return !r.less(b, a)
	case ">=":
		return !r.less(a, b)
	case "not in":
		return !r.contains(b, a)
	}
	return r.contains(b, a)
}

// contains implements the operator in.
func (r *render) contains(in, v any) bool {
	switch in := in.(type) {
	case string:
		r.spend(len(in) / 8)
		return strings.Contains(in, text(v, "the left operand of in"))
	case *List:
		for _, item := range in.Items {
			if r.equal(item, v, 0) {
				return true
			}
		}
		return false
	case *Dict:
		if _, missing := v.(undefined); missing {
			return false
		}
		_, ok := in.values[key(v)]
		return ok
	case undefined:
		return false
	}
	fail("%s cannot be the right operand of in", typeName(in))
	return false
}

type binExpr struct {
	op   string
	a, b expr
	line int
}

func (e *binExpr) eval(r *render) any {
	defer at(e.line)
	a := r.eval(e.a)
	switch e.op {
	case "and":
		if !truth(a) {
			return a
		}
		return r.eval(e.b)
	case "or":
		if truth(a) {
			return a
		}
		return r.eval(e.b)
	}
	b := r.eval(e.b)
	if e.op == "~" {
		return r.join("", r.str(a), r.str(b))
	}
	return r.arithmetic(e.op, a, b)
}

// join joins texts within the budget.
func (r *render) join(sep string, parts ...string) string {
	n := 0
	for _, p := range parts {
		n += len(p) + len(sep)
	}
	r.spend(len(parts) + n/32)
	return strings.Join(parts, sep)
}

// repeat repeats a text within the budget.
func (r *render) repeat(s string, n int) string {
	if n <= 0 || s == "" {
		return ""
	}
	if n > 32*r.budget/len(s) {
		r.spend(-1)
	}
	r.spend(len(s) * n / 32)
	return strings.Repeat(s, n)
}

func (r *render) arithmetic(op string, a, b any) any {
	if op == "*" { // 3 * 'x'
		switch b.(type) {
		case string, *List:
			a, b = b, a
		}
		if yes, ok := b.(bool); ok {
			if b = 0; yes {
				b = 1
			}
		}
	}
	switch x := a.(type) {
	case string:
		if op == "%" {
			return r.printf(x, b)
		}
		switch y := b.(type) {
		case string:
			if op == "+" {
				return r.join("", x, y)
			}
		case int:
			if op == "*" {
				return r.repeat(x, y)
			}
		}
	case *List:
		switch y := b.(type) {
		case *List:
			if op == "+" && x.tuple == y.tuple {
				r.spend(len(x.Items) + len(y.Items))
				return &List{Items: append(append([]any(nil), x.Items...), y.Items...), tuple: x.tuple}
			}
		case int:
			if op == "*" {
				n := max(0, y)
				if len(x.Items) > 0 && n > r.budget/len(x.Items) {
					r.spend(-1)
				}
				r.spend(n * len(x.Items))
				l := &List{tuple: x.tuple}
				for range n {
					l.Items = append(l.Items, x.Items...)
				}
				return l
			}
		}
	}
	if x, ok := a.(int); ok {
		if y, ok := b.(int); ok {
			if n, exact := exactly(op, x, y); exact {
				return n
			}
		}
	}
	x, wholeX, okX := number(a)
	y, wholeY, okY := number(b)
	if !okX || !okY {
		fail("%s %s %s is not defined", typeName(a), op, typeName(b))
	}
	whole := wholeX && wholeY
	if y == 0 && (op == "/" || op == "//" || op == "%") {
		fail("division by zero")
	}
	var f float64
	switch op {
	case "+":
		f = x + y
	case "-":
		f = x - y
	case "*":
		f = x * y
	case "/":
		return x / y
	case "//":
		f = math.Floor(x / y)
	case "%":
		if f = math.Mod(x, y); f != 0 && (f < 0) != (y < 0) {
			f += y
		}
	case "**":
		f, whole = math.Pow(x, y), whole && y >= 0
	}
	if whole {
		return wholeNumber(f)
	}
	return f
}

// exactly adds and multiplies integers whose result float64 cannot represent exactly.
func exactly(op string, x, y int) (n int, ok bool) {
	switch op {
	case "+":
		n = x + y
		return n, (n > x) == (y > 0)
	case "-":
		n = x - y
		return n, (n < x) == (y > 0)
	case "*":
		if high, low := bits.Mul64(uint64(max(x, -x)), uint64(max(y, -y))); high != 0 || low > math.MaxInt64 {
			return 0, false
		}
		return x * y, true
	case "//", "%":
		if y == 0 || y == -1 {
			return 0, false
		}
		q, rest := x/y, x%y
		if rest != 0 && (rest < 0) != (y < 0) {
			q, rest = q-1, rest+y
		}
		if op == "%" {
			return rest, true
		}
		return q, true
	}
	return 0, false
}

type attrExpr struct {
	e    expr
	name string
	line int
}

func (e *attrExpr) eval(r *render) any {
	defer at(e.line)
	return r.attr(r.eval(e.e), e.name)
}

// attr implements v.name: a method, or else the element with that key.
func (r *render) attr(v any, name string) any {
	switch v := v.(type) {
	case undefined:
		fail("%q is undefined", v.name)
	case *namespace:
		if f, ok := v.fields.Get(name); ok {
			return f
		}
		return undefined{name}
	case *loop:
		return v.attr(name)
	case *Dict:
		if m, ok := dictMethods[name]; ok {
			return function(func(r *render, a args) any { return m(r, v, a) })
		}
		if item, ok := v.values[name]; ok {
			return item
		}
	case string:
		if m, ok := stringMethods[name]; ok {
			return function(func(r *render, a args) any { return m(r, v, a) })
		}
	case *List:
		if m, ok := listMethods[name]; ok {
			return function(func(r *render, a args) any { return m(r, v, a) })
		}
		switch {
		case v.group && name == "grouper":
			return v.Items[0]
		case v.group && name == "list":
			return v.Items[1]
		}
	case *macro:
		if name == "name" {
			return v.s.name
		}
	}
	return undefined{name}
}

type itemExpr struct {
	e, i expr
	line int
}

func (e *itemExpr) eval(r *render) any {
	defer at(e.line)
	return r.item(r.eval(e.e), r.eval(e.i))
}

// item implements v[i].
func (r *render) item(v, i any) any {
	switch v := v.(type) {
	case *Dict:
		switch i.(type) {
		case nil, bool, int, float64, string:
			if item, ok := v.values[key(i)]; ok {
				return item
			}
		}
	case *List:
		if n, ok := i.(int); ok {
			if n < 0 {
				n += len(v.Items)
			}
			if n >= 0 && n < len(v.Items) {
				return v.Items[n]
			}
		}
	case string:
		if n, ok := i.(int); ok {
			r.spend(len(v) / 32)
			if n < 0 {
				n += utf8.RuneCountInString(v)
			}
			for _, c := range v {
				if n == 0 {
					return string(c)
				}
				n--
			}
			return undefined{"the character at the index"}
		}
	}
	if name, ok := i.(string); ok {
		return r.attr(v, name)
	}
	if u, ok := v.(undefined); ok {
		fail("%q is undefined", u.name)
	}
	return undefined{r.str(i)}
}

type sliceExpr struct {
	e      expr
	bounds [3]expr
	line   int
}

func (e *sliceExpr) eval(r *render) any {
	defer at(e.line)
	v := r.eval(e.e)
	defined(v)
	n, _ := length(v)
	var b [3]*int
	for i, bound := range e.bounds {
		if bound == nil {
			continue
		}
		if x := r.eval(bound); x != nil {
			at := integer(x, "a slice's bound")
			b[i] = &at
		}
	}
	switch v.(type) {
	case string, *List:
	default:
		fail("%s cannot be sliced", typeName(v))
	}
	var out []any
	items := r.items(v)
	from, to, step := sliceBounds(b, n)
	for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
		r.spend(1)
		out = append(out, items[i])
	}
	switch v := v.(type) {
	case *List:
		return &List{Items: out, tuple: v.tuple}
	case string:
		var s strings.Builder
		for _, c := range out {
			s.WriteString(c.(string))
		}
		return s.String()
	}
	return nil
}

// sliceBounds implements Python's rules for v[a:b:c] of n elements.
func sliceBounds(b [3]*int, n int) (from, to, step int) {
	step = 1
	if b[2] != nil {
		step = max(-n-1, min(n+1, *b[2])) // a larger step selects the same elements
	}
	if step == 0 {
		fail("the step of the slice is 0")
	}
	low, high := 0, n
	if step < 0 {
		low, high = -1, n-1
	}
	clip := func(p *int, def int) int {
		if p == nil {
			return def
		}
		i := *p
		if i < 0 {
			i += n
		}
		return max(low, min(i, high))
	}
	if step > 0 {
		return clip(b[0], low), clip(b[1], high), step
	}
	return clip(b[0], high), clip(b[1], low), step
}

// arguments holds the expressions of a call's arguments; args holds their values.
type arguments struct {
	list        []expr
	names       []string
	named       []expr
	more, pairs expr // arguments written as *more and **pairs
}

type args struct {
	list  []any
	named map[string]any
	order []string // order of the names
}

func (r *render) args(a *arguments) (out args) {
	for _, e := range a.list {
		out.list = append(out.list, r.eval(e))
	}
	for i, name := range a.names {
		if out.named == nil {
			out.named = map[string]any{}
		}
		out.named[name] = r.eval(a.named[i])
		out.order = append(out.order, name)
	}
	if a.more != nil {
		items := r.items(r.eval(a.more))
		r.spend(len(items))
		out.list = append(out.list, items...)
	}
	if a.pairs != nil {
		for _, pair := range pairs(r, r.eval(a.pairs)).Items {
			name := text(pair.(*List).Items[0], "an argument's name")
			if out.named == nil {
				out.named = map[string]any{}
			}
			if _, twice := out.named[name]; twice {
				fail("argument %s is given twice", name)
			}
			out.named[name] = pair.(*List).Items[1]
			out.order = append(out.order, name)
		}
	}
	return out
}

// get returns argument i, or the argument with the given name. If there is neither, it returns
// def.
func (a *args) get(i int, name string, def any) any {
	if i < len(a.list) {
		return a.list[i]
	}
	if v, ok := a.named[name]; ok {
		return v
	}
	return def
}

type callExpr struct {
	fn   expr
	args arguments
	line int
}

func (e *callExpr) eval(r *render) any {
	defer at(e.line)
	return r.call(r.eval(e.fn), r.args(&e.args))
}

func (r *render) call(v any, a args) any {
	switch f := v.(type) {
	case function:
		return f(r, a)
	case *macro:
		return f.call(r, a)
	case *loop:
		if f.again == nil {
			fail("the loop is not recursive")
		}
		return f.again(a.get(0, "iterable", nil))
	}
	fail("%s cannot be called", typeName(v))
	return nil
}

type filterExpr struct {
	e    expr
	name string
	fn   filter
	args arguments
	line int
}

func (e *filterExpr) eval(r *render) any {
	defer at(e.line)
	if e.fn == nil {
		fail("unknown filter %q", e.name)
	}
	return e.fn(r, r.eval(e.e), r.args(&e.args))
}

type testExpr struct {
	e    expr
	not  bool
	name string
	fn   test
	args arguments
	line int
}

func (e *testExpr) eval(r *render) any {
	defer at(e.line)
	if e.fn == nil {
		fail("unknown test %q", e.name)
	}
	return e.fn(r, r.eval(e.e), r.args(&e.args)) != e.not
}
