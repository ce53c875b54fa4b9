package jinja

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// filter implements a filter, which is the right side of "v | filter".
type filter func(r *render, v any, a args) any

// filterOf returns the filter with the given name, or nil. It is a function rather than a map
// because filters such as map look up other filters.
func filterOf(name string) filter { return filters()[name] }

func filters() map[string]filter {
	all := map[string]filter{
		"tojson":     toJSON,
		"trim":       func(r *render, v any, a args) any { return strip(r, r.str(v), a.get(0, "chars", nil), true, true) },
		"length":     count,
		"count":      count,
		"upper":      onText(upper),
		"lower":      onText(lower),
		"title":      onText(titleWords),
		"capitalize": onText(capitalize),
		"string":     onText(func(s string) string { return s }),
		"safe":       onText(func(s string) string { return s }),
		"escape":     onText(escape),
		"e":          onText(escape),
		"join":       join,
		"first":      func(r *render, v any, _ args) any { return end(r.items(v), true) },
		"last":       func(r *render, v any, _ args) any { return end(r.items(v), false) },
		"list":       func(r *render, v any, _ args) any { return r.copied(r.items(v)) },
		"int":        toInt,
		"float":      toFloat,
		"abs":        absolute,
		"round":      round,
		"default":    defaultTo,
		"d":          defaultTo,
		"replace": func(r *render, v any, a args) any {
			return replaced(r, r.str(v), a)
		},
		"reverse": reverse,
		"sort":    sorted,
		"unique":  unique,
		"max": func(r *render, v any, a args) any {
			return extreme(r, v, a, func(x, y any) bool { return r.less(y, x) })
		},
		"min": func(r *render, v any, a args) any {
			return extreme(r, v, a, func(x, y any) bool { return r.less(x, y) })
		},
		"sum":        sum,
		"map":        mapped,
		"select":     func(r *render, v any, a args) any { return chosen(r, v, a, false, true) },
		"reject":     func(r *render, v any, a args) any { return chosen(r, v, a, false, false) },
		"selectattr": func(r *render, v any, a args) any { return chosen(r, v, a, true, true) },
		"rejectattr": func(r *render, v any, a args) any { return chosen(r, v, a, true, false) },
		"items":      func(r *render, v any, _ args) any { return pairs(r, v) },
		"dictsort":   dictSort,
		"indent":     indent,
		"attr":       attribute,
	}
	maps.Copy(all, moreFilters())
	return all
}

// attribute implements the filter attr. It returns an attribute of v that is not an element of
// a mapping.
func attribute(r *render, v any, a args) any {
	name := text(a.get(0, "name", nil), "a name")
	if _, ok := v.(*Dict); ok && dictMethods[name] == nil {
		return undefined{name}
	}
	return r.attr(v, name)
}

func onText(f func(string) string) filter {
	return func(r *render, v any, _ args) any {
		s := r.str(v)
		r.spend(len(s) / 16)
		return f(s)
	}
}

// copied returns a list with a copy of items.
func (r *render) copied(items []any) *List {
	r.spend(len(items))
	return &List{Items: slices.Clone(items)}
}

func end(items []any, first bool) any {
	switch {
	case len(items) == 0:
		return undefined{"the element of an empty list"}
	case first:
		return items[0]
	}
	return items[len(items)-1]
}

func count(_ *render, v any, _ args) any {
	n, ok := length(v)
	if !ok {
		fail("%s has no length", typeName(v))
	}
	return n
}

// maxIndent bounds the indent of a line.
const maxIndent = 64

// toJSON implements transformers' tojson: json.dumps, without escapes for HTML.
func toJSON(r *render, v any, a args) any {
	s := jsonStyle{item: ", ", key: ": ", ascii: truth(a.get(0, "ensure_ascii", false))}
	if n := a.get(1, "indent", nil); n != nil {
		with, isText := n.(string)
		if !isText {
			n := max(0, integer(n, "indent"))
			if n > maxIndent {
				fail("the indent %d is more than %d", n, maxIndent)
			}
			with = strings.Repeat(" ", n)
		}
		s.lines, s.indent, s.item = true, with, ","
	}
	if sep := a.get(2, "separators", nil); sep != nil {
		two := r.items(sep)
		if len(two) != 2 {
			fail("separators must be two strings")
		}
		s.item, s.key = text(two[0], "a separator"), text(two[1], "a separator")
	}
	s.sort = truth(a.get(3, "sort_keys", false))
	b := &builder{r: r}
	b.json(v, &s, 0)
	return b.String()
}

// strip removes the characters in chars from the ends of a text, or white space if chars is
// none.
func strip(r *render, s string, chars any, left, right bool) string {
	r.spend(len(s) / 32)
	in := unicode.IsSpace
	if chars != nil {
		set := text(chars, "the argument of strip")
		r.spend(len(s) * len(set) / 32)
		in = func(c rune) bool { return strings.ContainsRune(set, c) }
	}
	if left {
		s = strings.TrimLeftFunc(s, in)
	}
	if right {
		s = strings.TrimRightFunc(s, in)
	}
	return s
}

func escape(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;").Replace(s)
}

func join(r *render, v any, a args) any {
	items := r.items(v)
	parts := make([]string, len(items))
	attr := a.get(1, "attribute", nil)
	for i, item := range items {
		if attr != nil {
			item = r.path(item, attr)
		}
		parts[i] = r.str(item)
	}
	return r.join(r.str(a.get(0, "d", "")), parts...)
}

// path returns the value of an attribute. The name may contain dots.
func (r *render) path(v, name any) any {
	s, ok := name.(string)
	if !ok {
		return r.item(v, name)
	}
	for _, part := range strings.Split(s, ".") {
		r.spend(1)
		if i, err := strconv.Atoi(part); err == nil {
			v = r.item(v, i)
		} else {
			v = r.item(v, part)
		}
	}
	return v
}

func toInt(r *render, v any, a args) any {
	defined(v)
	if s, ok := v.(string); ok {
		base := integer(a.get(1, "base", 10), "a base")
		s = strings.ToLower(strings.TrimSpace(s))
		if prefix := map[int]string{2: "0b", 8: "0o", 16: "0x"}[base]; prefix != "" {
			s = strings.TrimPrefix(s, prefix)
		}
		if base >= 2 && base <= 36 {
			if n, err := strconv.ParseInt(s, base, 64); err == nil {
				return int(n)
			}
		}
	}
	f := toFloat(r, v, args{list: []any{nil}})
	if f, ok := f.(float64); ok && !math.IsNaN(f) && math.Abs(f) <= 1<<53 {
		return int(f)
	}
	return a.get(0, "default", 0)
}

// defined fails for an undefined value.
func defined(v any) {
	if u, ok := v.(undefined); ok {
		fail("%q is undefined", u.name)
	}
}

func toFloat(_ *render, v any, a args) any {
	defined(v)
	f, _, ok := number(v)
	if s, isText := v.(string); isText {
		var err error
		f, err = strconv.ParseFloat(strings.TrimSpace(s), 64)
		ok = err == nil
	}
	if !ok {
		return a.get(0, "default", 0.0)
	}
	return f
}

func absolute(_ *render, v any, _ args) any {
	f, whole, ok := number(v)
	if !ok {
		fail("%s has no absolute value", typeName(v))
	}
	if f = math.Abs(f); whole {
		return wholeNumber(f)
	}
	return f
}

func round(r *render, v any, a args) any {
	f, whole, ok := number(v)
	if !ok {
		fail("%s cannot be rounded", typeName(v))
	}
	precision := max(-300, min(300, integer(a.get(0, "precision", 0), "the precision")))
	scale := math.Pow(10, float64(precision))
	switch a.get(1, "method", "common") {
	case "ceil":
		return math.Ceil(f*scale) / scale
	case "floor":
		return math.Floor(f*scale) / scale
	}
	if whole {
		if precision >= 0 {
			return r.arithmetic("+", v, 0)
		}
		return wholeNumber(math.RoundToEven(f*scale) / scale)
	}
	if precision >= 0 { // rounds the shortest decimal text, like Python
		f, _ = strconv.ParseFloat(strconv.FormatFloat(f, 'f', precision, 64), 64)
		return f
	}
	return math.RoundToEven(f*scale) / scale
}

func defaultTo(_ *render, v any, a args) any {
	_, missing := v.(undefined)
	if missing || truth(a.get(1, "boolean", false)) && !truth(v) {
		return a.get(0, "default_value", "")
	}
	return v
}

// replaced returns s with all occurrences of one text replaced by another.
func replaced(r *render, s string, a args) any {
	from, to := text(a.get(0, "old", nil), "the replaced text"), text(a.get(1, "new", nil), "the replacement")
	most := -1
	if n := a.get(2, "count", nil); n != nil {
		most = integer(n, "the count")
	}
	n := strings.Count(s, from)
	if most >= 0 {
		n = min(n, most)
	}
	r.spend(len(s) / 32)
	if len(to) > 0 && n > 32*r.budget/len(to) {
		r.spend(-1)
	}
	r.spend(n * len(to) / 32)
	return strings.Replace(s, from, to, most)
}

func reverse(r *render, v any, _ args) any {
	l := r.copied(r.items(v))
	slices.Reverse(l.Items)
	if _, ok := v.(string); ok {
		return join(r, l, args{})
	}
	return l
}

// folded returns a value as sort and similar filters compare it. Strings are converted to
// lower case unless cased is true.
func (r *render) folded(v any, cased bool) any {
	switch v := v.(type) {
	case string:
		if !cased {
			r.spend(len(v) / 16)
			return lower(v)
		}
	case *List:
		if v.keys { // the key consists of several attributes
			l := &List{Items: make([]any, len(v.Items))}
			for i, item := range v.Items {
				l.Items[i] = r.folded(item, cased)
			}
			return l
		}
	}
	return v
}

// order returns the elements sorted by key. The sort is stable.
func (r *render) order(items []any, cased, reverse bool, key func(any) any) []any {
	return slices.SortedStableFunc(slices.Values(items), func(x, y any) int {
		r.spend(4)
		x, y = r.folded(key(x), cased), r.folded(key(y), cased)
		if reverse {
			x, y = y, x
		}
		switch {
		case r.less(x, y):
			return -1
		case r.less(y, x):
			return 1
		}
		return 0
	})
}

func (r *render) byAttribute(name any) func(any) any {
	return func(v any) any {
		if name == nil {
			return v
		}
		return r.path(v, name)
	}
}

func sorted(r *render, v any, a args) any {
	attr := a.get(2, "attribute", nil)
	by := r.byAttribute(attr)
	if attr != nil {
		names := []any{attr}
		if s, ok := attr.(string); ok {
			names = names[:0]
			for name := range strings.SplitSeq(s, ",") {
				names = append(names, name)
			}
		}
		by = func(v any) any {
			l := &List{keys: true}
			for _, n := range names {
				l.Items = append(l.Items, r.path(v, n))
			}
			return l
		}
	}
	return &List{Items: r.order(r.items(v), truth(a.get(1, "case_sensitive", false)), truth(a.get(0, "reverse", false)), by)}
}

func unique(r *render, v any, a args) any {
	out := &List{}
	by := r.byAttribute(a.get(1, "attribute", nil))
	var seen List
	for _, item := range r.items(v) {
		k := by(item)
		if s, ok := k.(string); ok && !truth(a.get(0, "case_sensitive", false)) {
			k = strings.ToLower(s)
		}
		if !r.contains(&seen, k) {
			seen.Items = append(seen.Items, k)
			out.Items = append(out.Items, item)
		}
	}
	return out
}

func extreme(r *render, v any, a args, better func(x, y any) bool) any {
	var best any = undefined{"the element of an empty list"}
	attribute, cased := r.byAttribute(a.get(1, "attribute", nil)), truth(a.get(0, "case_sensitive", false))
	by := func(v any) any { return r.folded(attribute(v), cased) }
	for i, item := range r.items(v) {
		if i == 0 || better(by(item), by(best)) {
			best = item
		}
	}
	return best
}

func sum(r *render, v any, a args) any {
	total := a.get(1, "start", 0)
	by := r.byAttribute(a.get(0, "attribute", nil))
	for _, item := range r.items(v) {
		total = r.arithmetic("+", total, by(item))
	}
	return total
}

// some returns the elements of the input of filters such as select and map. An undefined value
// has no elements.
func (r *render) some(v any) []any {
	if !truth(v) {
		return nil
	}
	return r.items(v)
}

func mapped(r *render, v any, a args) any {
	out := &List{}
	attr, byAttr := a.named["attribute"]
	var f filter
	if !byAttr {
		name := text(a.get(0, "", nil), "a filter's name")
		if f = filterOf(name); f == nil {
			fail("unknown filter %q", name)
		}
	}
	for _, item := range r.some(v) {
		r.spend(1)
		if byAttr {
			item = r.path(item, attr)
			if _, missing := item.(undefined); missing {
				item = a.get(9, "default", item)
			}
		} else {
			item = f(r, item, args{list: a.list[1:], named: a.named})
		}
		out.Items = append(out.Items, item)
	}
	return out
}

// chosen returns the elements for which a test holds, or, if byAttr is true, whose attribute
// passes the test.
func chosen(r *render, v any, a args, byAttr, want bool) any {
	out := &List{}
	rest := a.list
	var attr any
	if byAttr {
		if len(rest) == 0 {
			fail("the attribute's name is missing")
		}
		attr, rest = rest[0], rest[1:]
	}
	holds := func(v any) bool { return truth(v) }
	if len(rest) > 0 {
		name := text(rest[0], "a test's name")
		t := tests[name]
		if t == nil {
			fail("unknown test %q", name)
		}
		holds = func(v any) bool { return t(r, v, args{list: rest[1:], named: a.named}) }
	}
	for _, item := range r.some(v) {
		r.spend(1)
		x := item
		if byAttr {
			x = r.path(item, attr)
		}
		if holds(x) == want {
			out.Items = append(out.Items, item)
		}
	}
	return out
}

// pairs returns the keys and values of a mapping.
func pairs(r *render, v any) *List {
	out := &List{}
	switch d := v.(type) {
	case *Dict:
		r.spend(2 * len(d.keys))
		for _, k := range d.keys {
			out.Items = append(out.Items, &List{Items: []any{k, d.values[k]}, tuple: true})
		}
	case undefined:
	default:
		fail("%s is not a mapping", typeName(v))
	}
	return out
}

func dictSort(r *render, v any, a args) any {
	defined(v)
	i := 0
	if a.get(1, "by", "key") == "value" {
		i = 1
	}
	key := func(pair any) any { return pair.(*List).Items[i] }
	return &List{Items: r.order(pairs(r, v).Items, truth(a.get(0, "case_sensitive", false)), truth(a.get(2, "reverse", false)), key)}
}

func indent(r *render, v any, a args) any {
	s := r.str(v)
	with, ok := a.get(0, "width", 4).(string)
	if !ok {
		n := integer(a.get(0, "width", 4), "the width")
		if n < 0 || n > maxIndent {
			fail("the indent %d is not in 0..%d", n, maxIndent)
		}
		with = strings.Repeat(" ", n)
	}
	lines := strings.Split(s, "\n")
	r.spend(len(lines) * (1 + len(with)/32))
	for i, line := range lines {
		if i == 0 && !truth(a.get(1, "first", false)) || line == "" && !truth(a.get(2, "blank", false)) {
			continue
		}
		lines[i] = with + line
	}
	return r.join("\n", lines...)
}
