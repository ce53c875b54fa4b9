package jinja

// stmt is a statement.
type stmt interface{ run(r *render) }

// expr is an expression.
type expr interface{ eval(r *render) any }

func (r *render) block(list []stmt) {
	r.deeper()
	for _, s := range list {
		r.spend(1)
		if s.run(r); r.jump != "" {
			break
		}
	}
	r.depth--
}

func (r *render) eval(e expr) any {
	r.deeper()
	v := e.eval(r)
	r.depth--
	return v
}

type textStmt struct{ text string }

func (s *textStmt) run(r *render) { r.out.add(s.text) }

type outStmt struct {
	e    expr
	line int
}

func (s *outStmt) run(r *render) {
	defer at(s.line)
	r.out.add(r.str(r.eval(s.e)))
}

type groupStmt struct{ body []stmt }

func (s *groupStmt) run(r *render) { r.within(func() { r.block(s.body) }) }

type jumpStmt struct{ where string }

func (s *jumpStmt) run(r *render) { r.jump = s.where }

type ifStmt struct {
	line      int
	cond      expr
	then, els []stmt
}

func (s *ifStmt) run(r *render) {
	if s.holds(r) {
		r.block(s.then)
	} else {
		r.block(s.els)
	}
}

func (s *ifStmt) holds(r *render) bool {
	defer at(s.line)
	return truth(r.eval(s.cond))
}

type forStmt struct {
	line      int
	recursive bool
	target    target
	over      expr
	cond      expr
	body, els []stmt
}

func (s *forStmt) run(r *render) {
	var over any
	func() {
		defer at(s.line)
		over = r.eval(s.over)
	}()
	s.loop(r, over, 0)
}

// loop runs the loop over elements. In a recursive loop, loop(...) calls it again.
func (s *forStmt) loop(r *render, over any, depth int) {
	items := s.items(r, over)
	l := &loop{items: items, length: len(items), depth: depth}
	if s.recursive {
		where := r.scope
		l.again = func(v any) any {
			if depth >= maxCalls {
				fail("recursive loop deeper than %d", maxCalls)
			}
			outer := r.scope
			r.scope = where
			text := r.capture(func() { s.loop(r, v, depth+1) })
			r.scope = outer
			return text
		}
	}
	whole := false // an iteration has reached its end; if none has, else is executed
	for i, item := range items {
		r.spend(1)
		l.index = i
		r.within(func() {
			r.scope.vars["loop"] = l
			s.assign(r, item)
			r.block(s.body)
		})
		jump := r.jump
		whole = whole || jump == ""
		if r.jump = ""; jump == "break" {
			break
		}
	}
	if !whole {
		r.within(func() { r.block(s.els) })
	}
}

// items returns the elements that pass the loop's filter.
func (s *forStmt) items(r *render, over any) (items []any) {
	defer at(s.line)
	all := r.items(over)
	if s.cond == nil {
		return all
	}
	for _, item := range all {
		r.within(func() {
			s.assign(r, item)
			if truth(r.eval(s.cond)) {
				items = append(items, item)
			}
		})
	}
	return items
}

func (s *forStmt) assign(r *render, v any) {
	defer at(s.line)
	r.assign(s.target, v)
}

// target is the left side of an assignment: one name, or several names that each receive one
// element.
type target struct {
	name  string
	parts []target
}

// assign assigns v to a target.
func (r *render) assign(t target, v any) {
	if t.parts == nil {
		r.scope.vars[t.name] = v
		return
	}
	r.spend(1)
	items := r.items(v)
	if len(items) != len(t.parts) {
		fail("cannot assign %d values to %d names", len(items), len(t.parts))
	}
	for i, part := range t.parts {
		r.assign(part, items[i])
	}
}

// captured is the expression for the text of a block, to which the block's filters are
// applied.
type captured struct{}

func (c *captured) eval(r *render) any {
	s, _ := r.lookup(capturedName).(string)
	return s
}

// capturedName is the internal name of a captured text. No template can refer to it.
const capturedName = "{% block %}"

type setStmt struct {
	line     int
	target   target
	attr     string
	value    expr
	captured *captured
	body     []stmt
}

func (s *setStmt) run(r *render) {
	var inner string
	if s.captured != nil {
		inner = r.capture(func() { r.within(func() { r.block(s.body) }) })
	}
	defer at(s.line)
	var v any
	if s.captured != nil {
		r.within(func() {
			r.scope.vars[capturedName] = inner
			v = r.eval(s.value)
		})
	} else {
		v = r.eval(s.value)
	}
	if s.attr == "" {
		r.assign(s.target, v)
		return
	}
	ns, ok := r.lookup(s.target.name).(*namespace)
	if !ok {
		fail("%s is not a namespace", s.target.name)
	}
	ns.fields.Set(s.attr, v)
}

type filterStmt struct {
	line   int
	filter expr
	e      expr
	body   []stmt
}

func (s *filterStmt) run(r *render) {
	inner := r.capture(func() { r.within(func() { r.block(s.body) }) })
	defer at(s.line)
	r.within(func() {
		r.scope.vars[capturedName] = inner
		r.out.add(r.str(r.eval(s.filter)))
	})
}

type param struct {
	name string
	def  expr
}

type macroStmt struct {
	name   string
	params []param
	body   []stmt
	// uses holds the implicit names that the macro reads: varargs, kwargs, caller.
	uses map[string]bool
}

// macro is a defined macro with the variables visible at its definition.
type macro struct {
	s     *macroStmt
	where *scope
}

func (s *macroStmt) run(r *render) { r.scope.vars[s.name] = &macro{s, r.scope} }

func (m *macro) call(r *render, a args) any {
	s := m.s
	if r.calls++; r.calls > maxCalls {
		fail("macro calls nested deeper than %d", maxCalls)
	}
	if len(a.list) > len(s.params) && !s.uses["varargs"] {
		fail("macro %s takes %d arguments, not %d", s.name, len(s.params), len(a.list))
	}
	outer := r.scope
	r.scope = &scope{vars: map[string]any{}, up: m.where}
	vars := r.scope.vars
	for i, p := range s.params {
		switch v, named := a.named[p.name]; {
		case i < len(a.list):
			if named {
				fail("macro %s receives argument %s twice", s.name, p.name)
			}
			vars[p.name] = a.list[i]
		case named:
			vars[p.name] = v
		case p.def != nil:
			vars[p.name] = r.eval(p.def)
		default:
			vars[p.name] = undefined{p.name}
		}
	}
	others := NewDict()
	for _, name := range a.order {
		if _, ok := vars[name]; ok {
			continue
		}
		switch {
		case name == "caller" && s.uses["caller"]:
			vars[name] = a.named[name]
		case s.uses["kwargs"]:
			others.Set(name, a.named[name])
		default:
			fail("macro %s has no argument %s", s.name, name)
		}
	}
	if s.uses["varargs"] {
		vars["varargs"] = &List{Items: a.list[min(len(a.list), len(s.params)):], tuple: true}
	}
	if s.uses["kwargs"] {
		vars["kwargs"] = others
	}
	if _, ok := vars["caller"]; !ok && s.uses["caller"] {
		vars["caller"] = undefined{"caller"}
	}
	text := r.capture(func() { r.block(s.body) })
	r.scope = outer
	r.calls--
	return text
}

// callStmt is {% call %}, which passes its block to a macro under the name caller.
type callStmt struct {
	line int
	call *callExpr
	body *macroStmt
}

func (s *callStmt) run(r *render) {
	defer at(s.line)
	a := r.args(&s.call.args)
	if a.named == nil {
		a.named = map[string]any{}
	}
	if _, twice := a.named["caller"]; twice {
		fail("the argument caller is given twice")
	}
	a.named["caller"] = &macro{s.body, r.scope}
	a.order = append(a.order, "caller")
	r.out.add(r.str(r.call(r.eval(s.call.fn), a)))
}

// withStmt is {% with %}, which defines variables for a block. Their values cannot refer to
// one another.
type withStmt struct {
	line    int
	targets []target
	values  []expr
	body    []stmt
}

func (s *withStmt) run(r *render) {
	values := make([]any, len(s.values))
	func() {
		defer at(s.line)
		for i, e := range s.values {
			values[i] = r.eval(e)
		}
	}()
	r.within(func() {
		func() {
			defer at(s.line)
			for i, t := range s.targets {
				r.assign(t, values[i])
			}
		}()
		r.block(s.body)
	})
}
