package jinja

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxWidth bounds the width and the precision of formatting.
const maxWidth = 4096

// printf implements Python's operator format % v.
func (r *render) printf(format string, v any) string {
	list, isTuple := v.(*List)
	dict, isDict := v.(*Dict)
	values := []any{v}
	if isTuple = isTuple && list.tuple; isTuple {
		values = list.Items
	}
	used, keyed := 0, false
	next := func() any {
		if used++; used > len(values) {
			fail("the format has more conversions than values")
		}
		return values[used-1]
	}
	b := &builder{r: r}
	for {
		text, rest, found := strings.Cut(format, "%")
		if b.add(text); !found {
			break
		}
		flags := rest[:len(rest)-len(strings.TrimLeft(rest, "#0- +"))]
		key, named := "", false
		if strings.HasPrefix(rest, "(") {
			if key, rest, named = strings.Cut(rest[1:], ")"); !named || !isDict {
				fail("a format with names needs a mapping as its value")
			}
			keyed = true
			flags = rest[:len(rest)-len(strings.TrimLeft(rest, "#0- +"))]
		}
		rest = rest[len(flags):]
		size := func() (n int) {
			if strings.HasPrefix(rest, "*") {
				rest, n = rest[1:], integer(next(), "a width")
			} else {
				digits := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
				rest = rest[len(digits):]
				n, _ = strconv.Atoi("0" + digits)
			}
			if n < 0 || n > maxWidth {
				fail("the width %d is not in 0..%d", n, maxWidth)
			}
			return n
		}
		width, precision := size(), -1
		if strings.HasPrefix(rest, ".") {
			rest = rest[1:]
			precision = size()
		}
		rest = strings.TrimLeft(rest, "hlL")
		verb, n := utf8.DecodeRuneInString(rest)
		if n == 0 {
			fail("the format is incomplete")
		}
		if format = rest[n:]; verb == '%' {
			b.add("%")
			continue
		}
		var value any
		if named {
			var ok bool
			if value, ok = dict.Get(key); !ok {
				fail("the mapping has no key %q", key)
			}
		} else {
			value = next()
		}
		b.add(r.verb(byte(min(verb, utf8.RuneSelf)), flags, width, precision, value))
	}
	_, missing := v.(undefined)
	if used < len(values) && !keyed && (isTuple || list == nil && !isDict && !missing) {
		fail("the format has fewer conversions than values")
	}
	return b.String()
}

// verb formats one value as C does. Verbs for numbers use package fmt.
func (r *render) verb(verb byte, flags string, width, precision int, v any) string {
	layout := "%" + strings.ReplaceAll(flags, "0", "") + strconv.Itoa(width)
	if precision >= 0 {
		layout += "." + strconv.Itoa(precision)
	}
	if width == 0 {
		layout = strings.Replace(layout, "0", "", 1)
	}
	zeros := strings.Contains(flags, "0") && !strings.Contains(flags, "-")
	if zeros {
		layout = "%0" + layout[1:]
	}
	switch verb {
	case 's', 'r', 'a', 'c':
		s := r.str(v)
		if verb == 'r' || verb == 'a' {
			s = r.repr(v)
		}
		if n, ok := v.(int); ok && verb == 'c' {
			s = string(rune(n))
		}
		return fmt.Sprintf(strings.Replace(layout, "%0", "%", 1)+"s", s)
	case 'd', 'i', 'u', 'x', 'X', 'o':
		if strings.ContainsRune("iu", rune(verb)) {
			verb = 'd'
		}
		f, whole, ok := number(v)
		if n, exact := v.(int); exact {
			return fmt.Sprintf(layout+string(verb), n)
		}
		if !ok || !whole && verb != 'd' || math.Abs(f) > 1<<53 {
			fail("%%%c needs a whole number, not %s", verb, typeName(v))
		}
		return fmt.Sprintf(layout+string(verb), int(f))
	case 'e', 'E', 'f', 'F', 'g', 'G':
		f, _, ok := number(v)
		if !ok {
			fail("%%%c needs a number, not %s", verb, typeName(v))
		}
		if precision < 0 {
			layout += ".6"
		}
		return fmt.Sprintf(layout+string(verb), f)
	}
	fail("unknown conversion %%%c in a format", verb)
	return ""
}

// repr returns a value as Python's repr does.
func (r *render) repr(v any) string {
	b := &builder{r: r}
	b.repr(v, 0)
	return b.String()
}

// format implements Python's s.format(...).
func (r *render) format(s string, a args) any {
	b := &builder{r: r}
	auto := 0
	for {
		i := strings.IndexAny(s, "{}")
		if i < 0 {
			b.add(s)
			return b.String()
		}
		b.add(s[:i])
		if strings.HasPrefix(s[i+1:], s[i:i+1]) {
			b.add(s[i : i+1])
			s = s[i+2:]
			continue
		}
		if s[i] == '}' {
			fail("the format has a } without a {")
		}
		field, rest, ok := strings.Cut(s[i+1:], "}")
		if !ok || strings.Contains(field, "{") {
			fail("the format has a { without a }, or nested braces")
		}
		s = rest
		field, spec, _ := strings.Cut(field, ":")
		field, conversion, converted := strings.Cut(field, "!")
		v := r.field(field, &auto, a)
		if converted {
			if conversion == "s" {
				v = r.str(v)
			} else {
				v = r.repr(v)
			}
		}
		b.add(r.aligned(v, spec))
	}
}

// field returns the value of a replacement field, such as 0, name, name.attribute or
// name[key].
func (r *render) field(field string, auto *int, a args) any {
	end := strings.IndexAny(field, ".[")
	if end < 0 {
		end = len(field)
	}
	name, path := field[:end], field[end:]
	var v any
	index, err := strconv.Atoi(name)
	if name == "" {
		index, err = *auto, nil
		*auto++
	}
	if err == nil {
		if index < 0 || index >= len(a.list) {
			fail("the format refers to value %d, which is missing", index)
		}
		v = a.list[index]
	} else {
		var ok bool
		if v, ok = a.named[name]; !ok {
			fail("the format refers to value %q, which is missing", name)
		}
	}
	for path != "" {
		r.spend(1)
		if path[0] == '[' {
			key, rest, ok := strings.Cut(path[1:], "]")
			if !ok {
				fail("the format has a [ without a ]")
			}
			path = rest
			if n, err := strconv.Atoi(key); err == nil {
				v = r.item(v, n)
			} else {
				v = r.item(v, key)
			}
			continue
		}
		path = path[1:]
		end := strings.IndexAny(path, ".[")
		if end < 0 {
			end = len(path)
		}
		v, path = r.attr(v, path[:end]), path[end:]
	}
	return v
}

// aligned implements format(v, spec):
// [[fill]align][sign][#][0][width][,][.precision][type].
func (r *render) aligned(v any, spec string) string {
	fill, align := " ", byte(0)
	if _, n := utf8.DecodeRuneInString(spec); len(spec) > n && strings.IndexByte("<>^=", spec[n]) >= 0 {
		fill, align, spec = spec[:n], spec[n], spec[n+1:]
	} else if spec != "" && strings.IndexByte("<>^=", spec[0]) >= 0 {
		align, spec = spec[0], spec[1:]
	}
	take := func(set string) string {
		s := spec[:len(spec)-len(strings.TrimLeft(spec, set))]
		spec = spec[len(s):]
		return s
	}
	sign := take("+- ")
	alternate := take("#")
	digits := take("0123456789")
	if strings.HasPrefix(digits, "0") && align == 0 {
		fill, align = "0", '='
	}
	width, _ := strconv.Atoi("0" + digits)
	group := take(",_")
	precision := -1
	if strings.HasPrefix(spec, ".") {
		spec = spec[1:]
		precision, _ = strconv.Atoi("0" + take("0123456789"))
	}
	if width > maxWidth || precision > maxWidth || len(spec) > 1 || len(sign) > 1 || len(group) > 1 || len(alternate) > 1 {
		fail("invalid format specification")
	}
	f, whole, isNumber := number(v)
	if _, isBool := v.(bool); isBool && spec == "" {
		isNumber = false
	}
	var s string
	switch {
	case !isNumber:
		if spec != "" && spec != "s" {
			fail("the format specification %q is for numbers", spec)
		}
		if s = r.str(v); precision >= 0 {
			runes := []rune(s)
			s = string(runes[:min(precision, len(runes))])
		}
	case spec == "%":
		s = r.verb('f', sign, 0, max(precision, -1), f*100) + "%"
	case spec == "" && whole && precision < 0:
		s = r.verb('d', sign, 0, -1, v)
	case spec == "" && precision < 0:
		if s = formatFloat(f); sign == "+" && f >= 0 {
			s = "+" + s
		}
	case spec == "":
		s = r.verb('g', sign, 0, precision, v)
	case strings.Contains("dxXoeEfFgG", spec):
		s = r.verb(spec[0], sign+alternate, 0, precision, v)
	default:
		fail("the format specification %q is for text", spec)
	}
	if group != "" && isNumber {
		s = grouped(s, group)
	}
	missing := width - utf8.RuneCountInString(s)
	if missing <= 0 {
		return s
	}
	if align == 0 {
		align = '<'
		if isNumber {
			align = '>'
		}
	}
	switch align {
	case '>':
		return r.repeat(fill, missing) + s
	case '^':
		return r.repeat(fill, missing/2) + s + r.repeat(fill, missing-missing/2)
	case '=':
		if strings.HasPrefix(s, "-") || strings.HasPrefix(s, "+") {
			return s[:1] + r.repeat(fill, missing) + s[1:]
		}
		return r.repeat(fill, missing) + s
	}
	return s + r.repeat(fill, missing)
}

// grouped inserts a separator between groups of three digits.
func grouped(s, mark string) string {
	start := len(s) - len(strings.TrimLeft(s, "+- "))
	end := start
	for end < len(s) && s[end] >= '0' && s[end] <= '9' {
		end++
	}
	for i := end - 3; i > start; i -= 3 {
		s = s[:i] + mark + s[i:]
	}
	return s
}
