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
	target    []string
	over      expr
	cond      expr
	body, els []stmt
}

func (s *forStmt) run(r *render) {
	items := s.items(r)
	if len(items) == 0 {
		r.within(func() { r.block(s.els) })
		return
	}
	l := &loop{items: items, length: len(items)}
	for i, item := range items {
		r.spend(1)
		l.index = i
		r.within(func() {
			r.scope.vars["loop"] = l
			s.assign(r, item)
			r.block(s.body)
		})
		jump := r.jump
		if r.jump = ""; jump == "break" {
			return
		}
	}
}

// items returns the elements that the loop's filter leaves.
func (s *forStmt) items(r *render) (items []any) {
	defer at(s.line)
	all := r.items(r.eval(s.over))
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

// assign gives names a value, or each an element of it.
func (r *render) assign(names []string, v any) {
	if len(names) == 1 {
		r.scope.vars[names[0]] = v
		return
	}
	items := r.items(v)
	if len(items) != len(names) {
		fail("%d values for %d names", len(items), len(names))
	}
	for i, name := range names {
		r.scope.vars[name] = items[i]
	}
}

// captured is the text of a block, as its filters' input.
type captured struct{}

func (c *captured) eval(r *render) any {
	s, _ := r.lookup(capturedName).(string)
	return s
}

// capturedName is no name that a template can have.
const capturedName = "{% block %}"

type setStmt struct {
	line     int
	target   []string
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
	ns, ok := r.lookup(s.target[0]).(*namespace)
	if !ok {
		fail("%s is no namespace", s.target[0])
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
}

func (s *macroStmt) run(r *render) {
	where := r.scope
	r.scope.vars[s.name] = function(func(r *render, a args) any { return s.call(r, where, a) })
}

func (s *macroStmt) call(r *render, where *scope, a args) any {
	if r.calls++; r.calls > maxCalls {
		fail("more than %d macros are within one another", maxCalls)
	}
	if len(a.list) > len(s.params) {
		fail("macro %s takes %d arguments, not %d", s.name, len(s.params), len(a.list))
	}
	outer := r.scope
	r.scope = &scope{vars: map[string]any{}, up: where}
	for i, p := range s.params {
		switch v, named := a.named[p.name]; {
		case i < len(a.list):
			r.scope.vars[p.name] = a.list[i]
		case named:
			r.scope.vars[p.name] = v
		case p.def != nil:
			r.scope.vars[p.name] = r.eval(p.def)
		default:
			r.scope.vars[p.name] = undefined{p.name}
		}
	}
	for name := range a.named {
		if _, ok := r.scope.vars[name]; !ok {
			fail("macro %s has no argument %s", s.name, name)
		}
	}
	text := r.capture(func() { r.block(s.body) })
	r.scope = outer
	r.calls--
	return text
}
