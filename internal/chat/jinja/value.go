package jinja

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A value is nil (none), a bool, int, digits, float64, string, *List, *Dict, undefined,
// function, *macro, *namespace or *loop. Templates cannot change values other than namespaces.

// List is a Python list or tuple.
type List struct {
	Items []any
	tuple bool
	group bool // a group of groupby: a pair of attribute value and list of elements
	keys  bool // a sort key that consists of several attributes
}

// Dict is a Python dictionary. It keeps the order in which keys were added.
type Dict struct {
	keys   []any
	values map[any]any
}

// NewDict returns a dictionary. pairs are alternating keys and values.
func NewDict(pairs ...any) *Dict {
	d := &Dict{values: map[any]any{}}
	for i := 0; i+1 < len(pairs); i += 2 {
		d.Set(pairs[i], pairs[i+1])
	}
	return d
}

// Set sets the value of a key, which must be nil, a bool, an int, a float64 or a string.
func (d *Dict) Set(key, value any) {
	if _, ok := d.values[key]; !ok {
		d.keys = append(d.keys, key)
	}
	d.values[key] = value
}

// Get returns the value of a key.
func (d *Dict) Get(key any) (any, bool) {
	v, ok := d.values[key]
	return v, ok
}

// MapText returns a copy of a value with f applied to all strings in it, keys included.
func MapText(v any, f func(string) string) any {
	switch v := v.(type) {
	case string:
		return f(v)
	case *List:
		c := *v
		c.Items = make([]any, len(v.Items))
		for i := range v.Items {
			c.Items[i] = MapText(v.Items[i], f)
		}
		return &c
	case *Dict:
		c := NewDict()
		for _, key := range v.keys {
			c.Set(MapText(key, f), MapText(v.values[key], f))
		}
		return c
	}
	return v
}

// FromJSON converts a JSON text to a value. Objects keep the order of their keys.
func FromJSON(data []byte) (any, error) {
	dec := json.NewDecoder(strings.NewReader(string(data)))
	dec.UseNumber()
	v, err := decodeJSON(dec, 0)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("jinja: data after the JSON value")
	}
	return v, nil
}

func decodeJSON(dec *json.Decoder, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("jinja: JSON nested deeper than %d", maxDepth)
	}
	t, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Number:
		return wholeOrFloat(t.String())
	case json.Delim:
		list, dict := &List{}, NewDict()
		for dec.More() {
			var key any
			if t == '{' {
				if key, err = dec.Token(); err != nil {
					return nil, err
				}
			}
			v, err := decodeJSON(dec, depth+1)
			if err != nil {
				return nil, err
			}
			if t == '{' {
				dict.Set(key, v)
			} else {
				list.Items = append(list.Items, v)
			}
		}
		if _, err := dec.Token(); err != nil {
			return nil, err
		}
		if t == '{' {
			return dict, nil
		}
		return list, nil
	}
	return t, nil
}

// digits is an integer that does not fit in an int, as its decimal text.
type digits string

// maxDigits is the largest number of digits of an integer. Python has the same limit.
const maxDigits = 4300

func wholeOrFloat(s string) (any, error) {
	if n, err := strconv.Atoi(s); err == nil {
		return n, nil
	}
	if !strings.ContainsAny(s, ".eE") && len(s) <= maxDigits {
		return digits(s), nil
	}
	return strconv.ParseFloat(s, 64)
}

// undefined is the value of a missing variable or attribute. It keeps the name for error
// messages.
type undefined struct{ name string }

// function is a callable value.
type function func(r *render, a args) any

// namespace is an object whose fields {% set ns.x = ... %} changes.
type namespace struct{ fields *Dict }

// loop is the value of the variable loop inside a loop.
type loop struct {
	index, length int
	items         []any
	depth         int             // nesting depth, beginning at 0
	again         func(v any) any // in a recursive loop: runs the loop over other elements
	changed       []any           // last arguments of loop.changed
}

func (l *loop) attr(name string) any {
	near := func(i int) any {
		if i < 0 || i >= l.length {
			return undefined{"loop." + name}
		}
		return l.items[i]
	}
	switch name {
	case "index":
		return l.index + 1
	case "index0":
		return l.index
	case "revindex":
		return l.length - l.index
	case "revindex0":
		return l.length - l.index - 1
	case "first":
		return l.index == 0
	case "last":
		return l.index == l.length-1
	case "length":
		return l.length
	case "previtem":
		return near(l.index - 1)
	case "nextitem":
		return near(l.index + 1)
	case "depth":
		return l.depth + 1
	case "depth0":
		return l.depth
	case "changed":
		return function(func(r *render, a args) any {
			if l.changed != nil && r.equal(&List{Items: l.changed}, &List{Items: a.list}, 0) {
				return false
			}
			l.changed = append([]any{}, a.list...)
			return true
		})
	case "cycle":
		return function(func(_ *render, a args) any {
			if len(a.list) == 0 {
				fail("cycle needs at least one argument")
			}
			return a.list[l.index%len(a.list)]
		})
	}
	return undefined{"loop." + name}
}

func truth(v any) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case *List:
		return len(v.Items) > 0
	case *Dict:
		return len(v.keys) > 0
	}
	return true
}

// typeName returns the name of a value's type for messages.
func typeName(v any) string {
	switch v := v.(type) {
	case nil:
		return "none"
	case bool:
		return "a boolean"
	case int, digits, float64:
		return "a number"
	case string:
		return "a string"
	case *List:
		return "a list"
	case *Dict:
		return "a mapping"
	case undefined:
		return strconv.Quote(v.name) + ", which is undefined,"
	case function, *macro:
		return "a function"
	}
	return "an object"
}

// number converts a number to float64. Booleans are numbers, as in Python.
func number(v any) (f float64, whole bool, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, true, true
		}
		return 0, true, true
	case int:
		return float64(v), true, true
	case digits:
		f, _ = strconv.ParseFloat(string(v), 64)
		return f, true, true
	case float64:
		return v, false, true
	}
	return 0, false, false
}

// integer converts a value to an integer.
func integer(v any, what string) int {
	switch v := v.(type) {
	case int:
		return v
	case bool:
		if v {
			return 1
		}
		return 0
	}
	fail("%s is %s, not an integer", what, typeName(v))
	return 0
}

func text(v any, what string) string {
	s, ok := v.(string)
	if !ok {
		fail("%s is %s, not a string", what, typeName(v))
	}
	return s
}

// equal implements the operator ==.
func (r *render) equal(a, b any, depth int) bool {
	r.nested(depth)
	x, _, okX := number(a)
	y, _, okY := number(b)
	if okX || okY {
		if i, ok := a.(int); ok {
			if j, ok := b.(int); ok {
				return i == j
			}
		}
		if i, ok := a.(digits); ok {
			if j, ok := b.(digits); ok {
				return i == j
			}
		}
		return okX && okY && x == y
	}
	switch a := a.(type) {
	case string:
		b, ok := b.(string)
		if ok && len(a) == len(b) {
			r.spend(len(a) / 32)
		}
		return ok && a == b
	case undefined:
		_, ok := b.(undefined)
		return ok
	case *List:
		b, ok := b.(*List)
		if !ok || len(a.Items) != len(b.Items) || a.tuple != b.tuple {
			return false
		}
		for i := range a.Items {
			if !r.equal(a.Items[i], b.Items[i], depth+1) {
				return false
			}
		}
		return true
	case *Dict:
		b, ok := b.(*Dict)
		if !ok || len(a.keys) != len(b.keys) {
			return false
		}
		for _, k := range a.keys {
			v, ok := b.values[k]
			if !ok || !r.equal(a.values[k], v, depth+1) {
				return false
			}
		}
		return true
	case function:
		return false
	case nil:
		return b == nil
	}
	return a == b
}

// nested counts a step into a value and bounds the depth, because templates can build very
// deep values.
func (r *render) nested(depth int) {
	if r.spend(1); depth > maxDepth {
		fail("value nested deeper than %d", maxDepth)
	}
}

// less implements the operator <.
func (r *render) less(a, b any) bool {
	if x, ok := a.(int); ok {
		if y, ok := b.(int); ok {
			return x < y
		}
	}
	if x, ok := a.(*List); ok {
		if y, ok := b.(*List); ok && x.tuple == y.tuple {
			return r.lessList(x, y)
		}
	}
	x, _, okX := number(a)
	y, _, okY := number(b)
	if okX && okY {
		return x < y
	}
	s, okS := a.(string)
	t, okT := b.(string)
	if !okS || !okT {
		fail("cannot order %s and %s", typeName(a), typeName(b))
	}
	r.spend(min(len(s), len(t)) / 32)
	return s < t
}

// lessList orders lists by the first elements that differ.
func (r *render) lessList(a, b *List) bool {
	defer func() { r.depth-- }()
	r.deeper()
	for i := range min(len(a.Items), len(b.Items)) {
		if !r.equal(a.Items[i], b.Items[i], 0) {
			return r.less(a.Items[i], b.Items[i])
		}
	}
	return len(a.Items) < len(b.Items)
}

// items returns the elements that a loop over v visits.
func (r *render) items(v any) []any {
	switch v := v.(type) {
	case *List:
		return v.Items
	case *Dict:
		return v.keys
	case string:
		r.spend(len(v))
		list := make([]any, 0, utf8.RuneCountInString(v))
		for _, c := range v {
			list = append(list, string(c))
		}
		return list
	case undefined:
		return nil
	}
	fail("cannot loop over %s", typeName(v))
	return nil
}

// length implements Python's len.
func length(v any) (int, bool) {
	switch v := v.(type) {
	case string:
		return utf8.RuneCountInString(v), true
	case *List:
		return len(v.Items), true
	case *Dict:
		return len(v.keys), true
	case undefined:
		return 0, true
	}
	return 0, false
}

// str converts a value to text as Python's str does.
func (r *render) str(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case undefined:
		return ""
	}
	b := &builder{r: r}
	b.repr(v, 0)
	return b.String()
}

// builder builds text and charges it to the budget.
type builder struct {
	strings.Builder
	r *render
}

func (b *builder) add(s string) {
	b.r.spend(1 + len(s)/32)
	b.WriteString(s)
}

// repr writes a value as Python's repr does.
func (b *builder) repr(v any, depth int) {
	b.r.nested(depth)
	switch v := v.(type) {
	case nil:
		b.add("None")
	case bool:
		if v {
			b.add("True")
		} else {
			b.add("False")
		}
	case int:
		b.add(strconv.Itoa(v))
	case digits:
		b.add(string(v))
	case float64:
		b.add(formatFloat(v))
	case string:
		b.add(quote(v))
	case *macro:
		b.add("<Macro " + quote(v.s.name) + ">")
	case *namespace:
		b.add("<Namespace ")
		b.repr(v.fields, depth+1)
		b.add(">")
	case undefined:
		b.add("Undefined")
	case *List:
		open, end := "[", "]"
		if v.tuple {
			open, end = "(", ")"
			if len(v.Items) == 1 {
				end = ",)"
			}
		}
		b.add(open)
		for i, item := range v.Items {
			if i > 0 {
				b.add(", ")
			}
			b.repr(item, depth+1)
		}
		b.add(end)
	case *Dict:
		b.add("{")
		for i, k := range v.keys {
			if i > 0 {
				b.add(", ")
			}
			b.repr(k, depth+1)
			b.add(": ")
			b.repr(v.values[k], depth+1)
		}
		b.add("}")
	default:
		b.add("<" + strings.TrimPrefix(typeName(v), "a ") + ">")
	}
}

// formatFloat writes a number as Python's repr does: the shortest text that parses to the same
// number, with an exponent outside of 1e-4 to 1e16.
func formatFloat(f float64) string {
	if f == math.Trunc(f) && math.Abs(f) < 1e16 {
		return strconv.FormatFloat(f, 'f', 1, 64)
	}
	if a := math.Abs(f); a >= 1e-4 && a < 1e16 {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	return strings.ToLower(strings.TrimPrefix(strconv.FormatFloat(f, 'g', -1, 64), "+"))
}

// quote writes a string as Python's repr does.
func quote(s string) string {
	q := '\''
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		q = '"'
	}
	var b strings.Builder
	b.WriteRune(q)
	for _, c := range s {
		switch {
		case c == q || c == '\\':
			b.WriteByte('\\')
			b.WriteRune(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\r':
			b.WriteString(`\r`)
		case c == '\t':
			b.WriteString(`\t`)
		case unicode.IsPrint(c):
			b.WriteRune(c)
		case c < 0x100:
			fmt.Fprintf(&b, `\x%02x`, c)
		case c < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, c)
		default:
			fmt.Fprintf(&b, `\U%08x`, c)
		}
	}
	b.WriteRune(q)
	return b.String()
}

// jsonStyle is the format of the filter tojson.
type jsonStyle struct {
	lines     bool   // one element per line
	indent    string // indent per level
	item, key string
	ascii     bool
	sort      bool
}

// json writes a value as Python's json.dumps does.
func (b *builder) json(v any, s *jsonStyle, depth int) {
	b.r.nested(depth)
	line := func(depth int) {
		if s.lines {
			b.add("\n" + b.r.repeat(s.indent, depth))
		}
	}
	switch v := v.(type) {
	case nil:
		b.add("null")
	case bool:
		b.add(strconv.FormatBool(v))
	case int:
		b.add(strconv.Itoa(v))
	case digits:
		b.add(string(v))
	case float64:
		b.add(formatFloat(v))
	case string:
		b.add(jsonString(v, s.ascii))
	case *List:
		b.add("[")
		for i, item := range v.Items {
			if i > 0 {
				b.add(s.item)
			}
			line(depth + 1)
			b.json(item, s, depth+1)
		}
		if len(v.Items) > 0 {
			line(depth)
		}
		b.add("]")
	case *Dict:
		keys := v.keys
		if s.sort {
			b.r.spend(8 * len(keys))
			keys = slices.SortedStableFunc(slices.Values(keys), func(x, y any) int { return strings.Compare(b.r.str(x), b.r.str(y)) })
		}
		b.add("{")
		for i, k := range keys {
			if i > 0 {
				b.add(s.item)
			}
			line(depth + 1)
			name, ok := k.(string)
			if !ok {
				inner := &builder{r: b.r}
				inner.json(k, s, depth+1)
				name = inner.String()
			}
			b.add(jsonString(name, s.ascii))
			b.add(s.key)
			b.json(v.values[k], s, depth+1)
		}
		if len(keys) > 0 {
			line(depth)
		}
		b.add("}")
	default:
		fail("cannot convert %s to JSON", typeName(v))
	}
}

func jsonString(s string, ascii bool) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteRune(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\r':
			b.WriteString(`\r`)
		case c == '\t':
			b.WriteString(`\t`)
		case c == '\b':
			b.WriteString(`\b`)
		case c == '\f':
			b.WriteString(`\f`)
		case c < 0x20 || ascii && c >= 0x7f && c < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, c)
		case ascii && c >= 0x10000:
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+(c-0x10000)>>10, 0xdc00+(c-0x10000)&0x3ff)
		default:
			b.WriteRune(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}
