package jinja

import (
	"regexp"
	"strconv"
	"strings"
)

// tokenKind is the kind of a token.
type tokenKind uint8

const (
	tokEnd tokenKind = iota
	tokData
	tokBlockBegin // {%
	tokBlockEnd
	tokVarBegin // {{
	tokVarEnd
	tokName
	tokString
	tokInt
	tokFloat
	tokOp
)

type token struct {
	kind tokenKind
	text string
	line int
}

// lexer splits a template into tokens.
type lexer struct {
	src  string
	pos  int
	line int
	out  []token
}

var (
	nameRE   = regexp.MustCompile(`^[\p{L}_][\p{L}\p{N}_]*`)
	numberRE = regexp.MustCompile(`^[0-9](_?[0-9])*((\.[0-9](_?[0-9])*)?[eE][+-]?[0-9](_?[0-9])*|\.[0-9](_?[0-9])*)?`)
	rawEndRE = regexp.MustCompile(`\{%(-?)\+?\s*endraw\s*(-?)(\+?)%\}`)
)

// operators lists the operators. Longer ones precede their prefixes.
var operators = []string{"**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">", "=", "(", ")", "[", "]", "{", "}", ",", ":", ".", "|", ";"}

func lex(src string) []token {
	src = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(src)
	l := &lexer{src: strings.TrimSuffix(src, "\n"), line: 1}
	for l.pos < len(l.src) {
		l.data()
	}
	return append(l.out, token{tokEnd, "", l.line})
}

func (l *lexer) emit(kind tokenKind, text string) {
	l.out = append(l.out, token{kind, text, l.line})
}

// advance moves n bytes forward and returns them.
func (l *lexer) advance(n int) string {
	s := l.src[l.pos : l.pos+n]
	l.line += strings.Count(s, "\n")
	l.pos += n
	return s
}

// data reads the text up to the next tag and the beginning of that tag.
func (l *lexer) data() {
	rest := l.src[l.pos:]
	i := 0
	for {
		j := strings.IndexByte(rest[i:], '{')
		if j < 0 || i+j+1 >= len(rest) {
			i = len(rest)
			break
		}
		i += j
		if c := rest[i+1]; c == '%' || c == '{' || c == '#' {
			break
		}
		i++
	}
	text := rest[:i]
	if i == len(rest) {
		l.text(text)
		l.advance(len(text))
		return
	}
	tag := rest[i : i+2]
	switch mark := strings.TrimPrefix(rest[i:], tag); {
	case strings.HasPrefix(mark, "-"):
		l.text(strings.TrimRight(text, " \t\n\v\f"))
		tag += "-"
	case strings.HasPrefix(mark, "+"):
		l.text(text)
		tag += "+"
	case tag != "{{": // the option lstrip_blocks
		trimmed := strings.TrimRight(text, " \t\v\f")
		if strings.HasSuffix(trimmed, "\n") || trimmed == "" && (l.pos == 0 || l.src[l.pos-1] == '\n') {
			text = trimmed
		}
		l.text(text)
	default:
		l.text(text)
	}
	l.advance(i + len(tag))
	switch tag[1] {
	case '#':
		end := strings.Index(l.src[l.pos:], "#}")
		if end < 0 {
			panic(failure{&Error{l.line, errText("the comment has no end")}})
		}
		minus := strings.HasSuffix(l.src[l.pos:l.pos+end], "-")
		plus := strings.HasSuffix(l.src[l.pos:l.pos+end], "+")
		l.advance(end + 2)
		l.after(minus, !plus)
	case '%':
		if m := rawBeginRE.FindStringSubmatch(l.src[l.pos:]); m != nil {
			l.raw(m)
			return
		}
		l.emit(tokBlockBegin, "")
		l.code("%}", tokBlockEnd)
	default:
		l.emit(tokVarBegin, "")
		l.code("}}", tokVarEnd)
	}
}

var rawBeginRE = regexp.MustCompile(`^\s*raw\s*(-?)\+?%\}`)

// raw reads the content of {% raw %} ... {% endraw %} as text.
func (l *lexer) raw(begin []string) {
	l.advance(len(begin[0]))
	l.after(begin[1] == "-", true)
	end := rawEndRE.FindStringSubmatchIndex(l.src[l.pos:])
	if end == nil {
		panic(failure{&Error{l.line, errText("raw has no endraw")}})
	}
	text, tag := l.src[l.pos:l.pos+end[0]], l.src[l.pos+end[0]:l.pos+end[1]]
	if end[3] > end[2] {
		text = strings.TrimRight(text, " \t\n\v\f")
	} else if trimmed := strings.TrimRight(text, " \t\v\f"); strings.HasSuffix(trimmed, "\n") {
		text = trimmed
	}
	l.text(text)
	l.advance(end[1])
	l.after(strings.HasSuffix(tag, "-%}"), end[7] == end[6])
}

func (l *lexer) text(s string) {
	if s != "" {
		l.emit(tokData, s)
	}
}

// after skips the white space that a tag removes after it: all of it, or one line end.
func (l *lexer) after(minus, trim bool) {
	rest := l.src[l.pos:]
	switch {
	case minus:
		l.advance(len(rest) - len(strings.TrimLeft(rest, " \t\n\v\f")))
	case trim && strings.HasPrefix(rest, "\n"):
		l.advance(1)
	}
}

// code reads the tokens up to the end of a tag.
func (l *lexer) code(end string, kind tokenKind) {
	depth := 0 // nesting of brackets; inside them }} closes two dictionaries
	for {
		l.advance(len(l.src[l.pos:]) - len(strings.TrimLeft(l.src[l.pos:], " \t\n\v\f")))
		rest := l.src[l.pos:]
		if rest == "" {
			panic(failure{&Error{l.line, errText("the tag has no end")}})
		}
		if depth == 0 {
			for _, mark := range []string{"", "-", "+"} {
				if strings.HasPrefix(rest, mark+end) && (mark != "+" || end == "%}") {
					l.emit(kind, "")
					l.advance(len(mark) + 2)
					l.after(mark == "-", mark == "" && end == "%}")
					return
				}
			}
		}
		switch c := rest[0]; {
		case c == '"' || c == '\'':
			l.str(c)
			continue
		case c >= '0' && c <= '9':
			m := numberRE.FindStringSubmatch(rest)
			if m[2] != "" {
				l.emit(tokFloat, strings.ReplaceAll(m[0], "_", ""))
			} else {
				l.emit(tokInt, strings.ReplaceAll(m[0], "_", ""))
			}
			l.advance(len(m[0]))
			continue
		}
		if name := nameRE.FindString(rest); name != "" {
			l.emit(tokName, name)
			l.advance(len(name))
			continue
		}
		op := ""
		for _, o := range operators {
			if strings.HasPrefix(rest, o) {
				op = o
				break
			}
		}
		switch op {
		case "":
			panic(failure{&Error{l.line, errText("unexpected character " + strconv.QuoteRune([]rune(rest[:min(4, len(rest))])[0]))}})
		case "(", "[", "{":
			depth++
		case ")", "]", "}":
			depth--
			if depth < 0 {
				panic(failure{&Error{l.line, errText("unexpected " + op)}})
			}
		}
		l.emit(tokOp, op)
		l.advance(len(op))
	}
}

// str reads a string with Python's escapes.
func (l *lexer) str(quote byte) {
	rest := l.src[l.pos:]
	i := 1
	for i < len(rest) && rest[i] != quote {
		if rest[i] == '\\' {
			i++
		}
		i++
	}
	if i >= len(rest) {
		panic(failure{&Error{l.line, errText("the string has no end")}})
	}
	l.emit(tokString, unescape(rest[1:i]))
	l.advance(i + 1)
}

// simpleEscapes maps the letter of an escape to its character.
var simpleEscapes = map[byte]string{
	'n': "\n", 't': "\t", 'r': "\r", '\\': "\\", '\'': "'", '"': "\"", 'a': "\a", 'b': "\b", 'f': "\f", 'v': "\v", '\n': "",
}

func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		if text, ok := simpleEscapes[s[i]]; ok {
			b.WriteString(text)
			continue
		}
		if s[i] >= '0' && s[i] <= '7' {
			n := 1
			for n < 3 && i+n < len(s) && s[i+n] >= '0' && s[i+n] <= '7' {
				n++
			}
			c, _ := strconv.ParseUint(s[i:i+n], 8, 32)
			b.WriteRune(rune(c))
			i += n - 1
			continue
		}
		if digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[i]]; digits > 0 && i+digits < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+1+digits], 16, 32); err == nil {
				b.WriteRune(rune(n))
				i += digits
				continue
			}
		}
		b.WriteByte('\\')
		b.WriteByte(s[i])
	}
	return b.String()
}

// errText is an error message without prefix and line number.
type errText string

// Error implements error.
func (e errText) Error() string { return string(e) }
