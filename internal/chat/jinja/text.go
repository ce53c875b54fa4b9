package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// longUpper replaces letters whose upper case has several characters.
var longUpper = strings.NewReplacer("ß", "SS", "ŉ", "ʼN", "ǰ", "J̌", "ﬀ", "FF", "ﬁ", "FI", "ﬂ", "FL", "ﬃ", "FFI", "ﬄ", "FFL", "ﬅ", "ST", "ﬆ", "ST")

func upper(s string) string { return strings.ToUpper(longUpper.Replace(s)) }

func lower(s string) string { return strings.ToLower(strings.ReplaceAll(s, "İ", "i̇")) }

// title capitalizes the first letter of every run of letters.
func title(s string) string {
	inWord := false
	return strings.Map(func(c rune) rune {
		was := inWord
		inWord = unicode.IsLetter(c)
		if inWord && !was {
			return unicode.ToTitle(c)
		}
		return unicode.ToLower(c)
	}, s)
}

// titleWords implements the filter title. Words begin after white space or an opening bracket.
func titleWords(s string) string {
	begins := true
	return strings.Map(func(c rune) rune {
		first := begins
		begins = unicode.IsSpace(c) || strings.ContainsRune("-({[<", c)
		if first {
			return unicode.ToUpper(c)
		}
		return unicode.ToLower(c)
	}, s)
}

func capitalize(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	return upper(s[:n]) + lower(s[n:])
}

func swapCase(s string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsUpper(c) {
			return unicode.ToLower(c)
		}
		return unicode.ToUpper(c)
	}, s)
}

func isTitle(s string) bool { return s == title(s) && strings.ContainsFunc(s, unicode.IsUpper) }

func isIdentifier(s string) bool { return s != "" && nameRE.FindString(s) == s }

// textMethods returns the methods of strings that stringMethods lacks.
func textMethods() map[string]func(r *render, s string, a args) any {
	is := func(f func(string) bool) func(r *render, s string, a args) any {
		return func(r *render, s string, _ args) any {
			r.spend(len(s) / 16)
			return f(s)
		}
	}
	index := func(find func(s, x string) int) func(r *render, s string, a args) any {
		return func(r *render, s string, a args) any {
			i := findIn(r, s, a, find)
			if i == -1 {
				fail("the string does not contain the text")
			}
			return i
		}
	}
	pad := func(left, right bool) func(r *render, s string, a args) any {
		return func(r *render, s string, a args) any {
			fill := text(a.get(1, "fillchar", " "), "the fill character")
			if utf8.RuneCountInString(fill) != 1 {
				fail("the fill character must be one character")
			}
			return r.padded(s, integer(a.get(0, "width", nil), "a width"), fill, left, right)
		}
	}
	return map[string]func(r *render, s string, a args) any{
		"format":       func(r *render, s string, a args) any { return r.format(s, a) },
		"index":        index(strings.Index),
		"rindex":       index(strings.LastIndex),
		"partition":    func(r *render, s string, a args) any { return partition(r, s, a, false) },
		"rpartition":   func(r *render, s string, a args) any { return partition(r, s, a, true) },
		"center":       pad(true, true),
		"ljust":        pad(false, true),
		"rjust":        pad(true, false),
		"zfill":        zeroFill,
		"expandtabs":   expandTabs,
		"swapcase":     method(swapCase),
		"casefold":     method(func(s string) string { return lower(strings.ReplaceAll(s, "ß", "ss")) }),
		"isnumeric":    is(func(s string) bool { return every(s, unicode.IsNumber) }),
		"isdecimal":    is(func(s string) bool { return every(s, unicode.IsDigit) }),
		"isprintable":  is(func(s string) bool { return s == "" || every(s, unicode.IsPrint) }),
		"isascii":      is(func(s string) bool { return s == "" || every(s, func(c rune) bool { return c < utf8.RuneSelf }) }),
		"istitle":      is(isTitle),
		"isidentifier": is(isIdentifier),
	}
}

func every(s string, is func(rune) bool) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool { return !is(c) })
}

// part returns the part of s that a method's arguments start and end select, and the offset of
// that part in characters. They are the arguments i and i+1.
func part(r *render, s string, a args, i int) (string, int) {
	from, to := a.get(i, "start", nil), a.get(i+1, "end", nil)
	if from == nil && to == nil {
		return s, 0
	}
	r.spend(len(s) / 4)
	runes := []rune(s)
	var b [3]*int
	for j, v := range []any{from, to} {
		if v != nil {
			n := integer(v, "a position")
			b[j] = &n
		}
	}
	low, high, _ := sliceBounds(b, len(runes))
	return string(runes[low:max(low, high)]), low
}

// findIn returns the index of a text in characters, or -1.
func findIn(r *render, s string, a args, index func(s, x string) int) int {
	r.spend(len(s) / 16)
	s, before := part(r, s, a, 1)
	i := index(s, text(a.get(0, "", nil), "the searched text"))
	if i < 0 {
		return -1
	}
	return before + utf8.RuneCountInString(s[:i])
}

// padded pads s with fill to a width in characters.
func (r *render) padded(s string, width int, fill string, left, right bool) string {
	missing := width - utf8.RuneCountInString(s)
	switch {
	case missing <= 0:
		return s
	case left && right: // for an even width, Python pads the left side with the extra character
		n := missing/2 + missing&width&1
		return r.repeat(fill, n) + s + r.repeat(fill, missing-n)
	case left:
		return r.repeat(fill, missing) + s
	}
	return s + r.repeat(fill, missing)
}

func zeroFill(r *render, s string, a args) any {
	width := integer(a.get(0, "width", nil), "a width")
	if strings.HasPrefix(s, "-") || strings.HasPrefix(s, "+") {
		return s[:1] + r.padded(s[1:], max(0, width-1), "0", true, false)
	}
	return r.padded(s, width, "0", true, false)
}

func expandTabs(r *render, s string, a args) any {
	size := integer(a.get(0, "tabsize", 8), "a width")
	if size > maxWidth {
		fail("the width %d is more than %d", size, maxWidth)
	}
	b := &builder{r: r}
	column := 0
	for _, c := range s {
		switch {
		case c == '\t' && size > 0:
			b.add(strings.Repeat(" ", size-column%size))
			column = 0
		case c == '\t':
		case c == '\n' || c == '\r':
			column = 0
			b.WriteRune(c)
		default:
			column++
			b.WriteRune(c)
		}
	}
	r.spend(len(s) / 16)
	return b.String()
}

func partition(r *render, s string, a args, fromRight bool) any {
	r.spend(len(s) / 32)
	sep := text(a.get(0, "sep", nil), "a separator")
	if sep == "" {
		fail("the separator is empty")
	}
	i := strings.Index(s, sep)
	if fromRight {
		i = strings.LastIndex(s, sep)
	}
	parts := []any{s, "", ""}
	switch {
	case i >= 0:
		parts = []any{s[:i], sep, s[i+len(sep):]}
	case fromRight:
		parts = []any{"", "", s}
	}
	return &List{Items: parts, tuple: true}
}

// splitLines splits a text into lines as Python does. It keeps the line ends if the argument
// is true.
func splitLines(r *render, s string, a args) any {
	r.spend(len(s))
	keep := truth(a.get(0, "keepends", false))
	out := &List{}
	for s != "" {
		end := strings.IndexAny(s, "\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029")
		if end < 0 {
			out.Items = append(out.Items, s)
			break
		}
		_, n := utf8.DecodeRuneInString(s[end:])
		if strings.HasPrefix(s[end:], "\r\n") {
			n = 2
		}
		if keep {
			out.Items = append(out.Items, s[:end+n])
		} else {
			out.Items = append(out.Items, s[:end])
		}
		s = s[end+n:]
	}
	return out
}
