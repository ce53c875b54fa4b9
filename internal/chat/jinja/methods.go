package jinja

import (
	"maps"
	"strings"
	"unicode"
)

// test implements a test, which is the right side of "v is test".
type test func(r *render, v any, a args) bool

var tests map[string]test

// Functions in the map read the map, so it must be filled during initialization.
func init() {
	kind := func(names ...string) test {
		return func(_ *render, v any, _ args) bool {
			for _, n := range names {
				if typeName(v) == n {
					return true
				}
			}
			return false
		}
	}
	compare := func(op string) test {
		return func(r *render, v any, a args) bool { return r.compare(op, v, a.get(0, "other", nil)) }
	}
	is := func(f func(any) bool) test { return func(_ *render, v any, _ args) bool { return f(v) } }
	missing := func(v any) bool { _, ok := v.(undefined); return ok }
	modulo := func(r *render, v, n any, rest int) bool { return r.equal(r.arithmetic("%", v, n), rest, 0) }
	tests = map[string]test{
		"defined":     is(func(v any) bool { return !missing(v) }),
		"undefined":   is(missing),
		"none":        is(func(v any) bool { return v == nil }),
		"string":      kind("a string"),
		"number":      kind("a number", "a boolean"),
		"boolean":     kind("a boolean"),
		"mapping":     kind("a mapping"),
		"callable":    is(func(v any) bool { return missing(v) || typeName(v) == "a function" }),
		"integer":     is(isInteger),
		"float":       is(func(v any) bool { _, ok := v.(float64); return ok }),
		"true":        is(func(v any) bool { return v == any(true) }),
		"false":       is(func(v any) bool { return v == any(false) }),
		"iterable":    is(func(v any) bool { _, ok := length(v); return ok }),
		"sequence":    is(func(v any) bool { _, ok := length(v); return ok }),
		"odd":         func(r *render, v any, _ args) bool { return modulo(r, v, 2, 1) },
		"even":        func(r *render, v any, _ args) bool { return modulo(r, v, 2, 0) },
		"divisibleby": func(r *render, v any, a args) bool { return modulo(r, v, a.get(0, "num", nil), 0) },
		"lower":       func(r *render, v any, _ args) bool { return isCase(r.str(v), unicode.IsLower, unicode.IsUpper) },
		"upper":       func(r *render, v any, _ args) bool { return isCase(r.str(v), unicode.IsUpper, unicode.IsLower) },
		"sameas":      func(r *render, v any, a args) bool { return r.same(v, a.get(0, "other", nil)) },
		"in":          func(r *render, v any, a args) bool { return r.contains(a.get(0, "seq", nil), v) },
		"filter":      func(r *render, v any, _ args) bool { return filterOf(r.str(v)) != nil },
		"test":        func(r *render, v any, _ args) bool { return tests[r.str(v)] != nil },
	}
	for op, names := range map[string][]string{
		"==": {"==", "eq", "equalto"}, "!=": {"!=", "ne"}, "<": {"<", "lt", "lessthan"},
		"<=": {"<=", "le"}, ">": {">", "gt", "greaterthan"}, ">=": {">=", "ge"},
	} {
		for _, n := range names {
			tests[n] = compare(op)
		}
	}
}

func isInteger(v any) bool {
	switch v.(type) {
	case int, digits:
		return true
	}
	return false
}

// same implements Python's operator "is" for the values that templates compare with it: none,
// booleans, and the same object.
func (r *render) same(a, b any) bool {
	switch a.(type) {
	case function, undefined:
		return false
	}
	switch b.(type) {
	case function, undefined:
		return false
	}
	return a == b
}

// isCase reports whether s contains letters of one case and none of the other.
func isCase(s string, is, other func(rune) bool) bool {
	return strings.ContainsFunc(s, is) && !strings.ContainsFunc(s, other)
}

// newDict implements dict(...) with a dictionary and named arguments.
func newDict(a args) *Dict {
	d := NewDict()
	switch from := a.get(0, "", nil).(type) {
	case *Dict:
		for _, k := range from.keys {
			d.Set(k, from.values[k])
		}
	case *List:
		for _, item := range from.Items {
			pair, ok := item.(*List)
			if !ok || len(pair.Items) != 2 {
				fail("dict needs a list of pairs")
			}
			d.Set(key(pair.Items[0]), pair.Items[1])
		}
	}
	names := make(map[string]bool, len(a.named))
	for _, n := range a.order {
		if !names[n] {
			d.Set(n, a.named[n])
		}
		names[n] = true
	}
	return d
}

// globals holds the functions visible to every template. The other maps hold the methods of
// values.
var (
	globals       map[string]function
	dictMethods   map[string]func(r *render, d *Dict, a args) any
	listMethods   map[string]func(r *render, l *List, a args) any
	stringMethods map[string]func(r *render, s string, a args) any
)

// Functions in these maps read the maps, so they must be filled during initialization.
func init() {
	globals = map[string]function{
		"range": func(r *render, a args) any {
			from, to, step := 0, 0, 1
			switch len(a.list) {
			case 1:
				to = integer(a.list[0], "a range's end")
			case 2, 3:
				from, to = integer(a.list[0], "a range's start"), integer(a.list[1], "a range's end")
				if len(a.list) == 3 {
					step = integer(a.list[2], "a range's step")
				}
			default:
				fail("range takes one to three numbers")
			}
			if step == 0 {
				fail("the step of the range is 0")
			}
			out := &List{}
			for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
				if len(out.Items) == maxRange {
					fail("the range has more than %d numbers", maxRange)
				}
				r.spend(1)
				out.Items = append(out.Items, i)
			}
			return out
		},
		"namespace": func(_ *render, a args) any { return &namespace{newDict(a)} },
		"dict":      func(_ *render, a args) any { return newDict(a) },
		"joiner": func(_ *render, a args) any {
			sep, used := a.get(0, "sep", ", "), false
			return function(func(*render, args) any {
				if !used {
					used = true
					return ""
				}
				return sep
			})
		},
		"raise_exception": func(r *render, a args) any {
			panic(failure{&RaisedError{r.str(a.get(0, "message", ""))}})
		},
		"strftime_now": func(r *render, a args) any {
			layout := text(a.get(0, "format", nil), "a format")
			r.spend(len(layout))
			return strftime(r.now(), layout)
		},
	}
	dictMethods = map[string]func(r *render, d *Dict, a args) any{
		"items": func(r *render, d *Dict, _ args) any { return pairs(r, d) },
		"keys":  func(r *render, d *Dict, _ args) any { return r.copied(d.keys) },
		"values": func(r *render, d *Dict, _ args) any {
			r.spend(len(d.keys))
			out := &List{}
			for _, k := range d.keys {
				out.Items = append(out.Items, d.values[k])
			}
			return out
		},
		"get": func(_ *render, d *Dict, a args) any {
			if v, ok := d.Get(key(a.get(0, "", nil))); ok {
				return v
			}
			return a.get(1, "default", nil)
		},
		"copy": func(r *render, d *Dict, _ args) any {
			r.spend(len(d.keys))
			return newDict(args{list: []any{d}})
		},
	}
	listMethods = map[string]func(r *render, l *List, a args) any{
		"index": func(r *render, l *List, a args) any {
			for i, item := range l.Items {
				if r.equal(item, a.get(0, "", nil), 0) {
					return i
				}
			}
			fail("the element is not in the list")
			return nil
		},
		"copy": func(r *render, l *List, _ args) any { return r.copied(l.Items) },
		"count": func(r *render, l *List, a args) any {
			n := 0
			for _, item := range l.Items {
				if r.equal(item, a.get(0, "", nil), 0) {
					n++
				}
			}
			return n
		},
	}
	stringMethods = map[string]func(r *render, s string, a args) any{
		"strip":      func(r *render, s string, a args) any { return strip(r, s, a.get(0, "chars", nil), true, true) },
		"lstrip":     func(r *render, s string, a args) any { return strip(r, s, a.get(0, "chars", nil), true, false) },
		"rstrip":     func(r *render, s string, a args) any { return strip(r, s, a.get(0, "chars", nil), false, true) },
		"split":      func(r *render, s string, a args) any { return split(r, s, a, false) },
		"rsplit":     func(r *render, s string, a args) any { return split(r, s, a, true) },
		"startswith": func(r *render, s string, a args) any { return affix(r, s, a, strings.HasPrefix) },
		"endswith":   func(r *render, s string, a args) any { return affix(r, s, a, strings.HasSuffix) },
		"removeprefix": func(r *render, s string, a args) any {
			return strings.TrimPrefix(s, text(a.get(0, "", nil), "a prefix"))
		},
		"removesuffix": func(r *render, s string, a args) any {
			return strings.TrimSuffix(s, text(a.get(0, "", nil), "a suffix"))
		},
		"upper":      method(upper),
		"lower":      method(lower),
		"title":      method(title),
		"capitalize": method(capitalize),
		"replace":    func(r *render, s string, a args) any { return replaced(r, s, a) },
		"find":       func(r *render, s string, a args) any { return findIn(r, s, a, strings.Index) },
		"rfind":      func(r *render, s string, a args) any { return findIn(r, s, a, strings.LastIndex) },
		"count": func(r *render, s string, a args) any {
			r.spend(len(s) / 32)
			s, _ = part(r, s, a, 1)
			return strings.Count(s, text(a.get(0, "", nil), "the counted text"))
		},
		"join": func(r *render, s string, a args) any {
			items := r.items(a.get(0, "", nil))
			for _, item := range items {
				text(item, "a joined element")
			}
			return join(r, &List{Items: items}, args{list: []any{s}})
		},
		"splitlines": splitLines,
		"isdigit":    func(r *render, s string, _ args) any { return all(r, s, unicode.IsDigit) },
		"isalpha":    func(r *render, s string, _ args) any { return all(r, s, unicode.IsLetter) },
		"isspace":    func(r *render, s string, _ args) any { return all(r, s, unicode.IsSpace) },
		"isalnum": func(r *render, s string, _ args) any {
			return all(r, s, func(c rune) bool { return unicode.IsLetter(c) || unicode.IsDigit(c) })
		},
		"isupper": func(_ *render, s string, _ args) any { return isCase(s, unicode.IsUpper, unicode.IsLower) },
		"islower": func(_ *render, s string, _ args) any { return isCase(s, unicode.IsLower, unicode.IsUpper) },
	}
	maps.Copy(stringMethods, textMethods())
}

func method(f func(string) string) func(r *render, s string, a args) any {
	return func(r *render, s string, _ args) any {
		r.spend(len(s) / 16)
		return f(s)
	}
}

func all(r *render, s string, is func(rune) bool) bool {
	r.spend(len(s) / 16)
	return every(s, is)
}

// affix tests a string for a prefix or suffix, or for any element of a tuple of them.
func affix(r *render, s string, a args, has func(s, x string) bool) bool {
	s, _ = part(r, s, a, 1)
	arg := a.get(0, "", nil)
	if l, ok := arg.(*List); ok && l.tuple {
		for _, x := range l.Items {
			if r.spend(1); has(s, text(x, "the searched text")) {
				return true
			}
		}
		return false
	}
	return has(s, text(arg, "the searched text"))
}

// split implements Python's split and rsplit.
func split(r *render, s string, a args, fromRight bool) any {
	r.spend(len(s) / 4)
	most := integer(a.get(1, "maxsplit", -1), "maxsplit")
	sep := a.get(0, "sep", nil)
	var parts []string
	if sep == nil {
		parts = strings.Fields(s)
		if most >= 0 && len(parts) > most+1 {
			parts = fieldsN(s, parts, most, fromRight)
		}
	} else {
		by := text(sep, "a separator")
		if by == "" {
			fail("the separator is empty")
		}
		if parts = strings.Split(s, by); most >= 0 && len(parts) > most+1 {
			if fromRight {
				first := len(parts) - most
				parts = append([]string{strings.Join(parts[:first], by)}, parts[first:]...)
			} else {
				parts = strings.SplitN(s, by, most+1)
			}
		}
	}
	out := &List{Items: make([]any, len(parts))}
	for i, p := range parts {
		out.Items[i] = p
	}
	return out
}

// fieldsN splits off at most the given number of words from one end of s and returns the rest
// as one element.
func fieldsN(s string, words []string, most int, fromRight bool) []string {
	if fromRight {
		rest := s
		for i := range most {
			rest = strings.TrimSuffix(strings.TrimRightFunc(rest, unicode.IsSpace), words[len(words)-1-i])
		}
		return append([]string{strings.TrimRightFunc(rest, unicode.IsSpace)}, words[len(words)-most:]...)
	}
	rest := s
	for i := range most {
		rest = strings.TrimPrefix(strings.TrimLeftFunc(rest, unicode.IsSpace), words[i])
	}
	return append(append([]string(nil), words[:most]...), strings.TrimLeftFunc(rest, unicode.IsSpace))
}
