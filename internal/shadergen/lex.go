package main

import (
	"fmt"
	"regexp"
	"strings"
)

// token is a word, number, string or operator in a source.
type token struct {
	s        string
	pos, end int // byte offsets in the source
}

// comment is a comment without its delimiters.
type comment struct {
	text string
	pos  int
}

// fault is an error at a place in a source: "shaders/norm.metal:12: ...".
type fault struct {
	path string
	line int
	what string
}

// Error implements error.
func (f *fault) Error() string { return fmt.Sprintf("%s:%d: %s", f.path, f.line, f.what) }

var anyToken = regexp.MustCompile(`^(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[A-Za-z_]\w*|\d[\w.]*(?:[eEpP][+-]\w+)?|\[\[|\]\]|::|->|[=!]=|\S)`)

// lex returns the tokens of a source without preprocessor lines, and the comments.
func lex(src string) (tokens []token, comments []comment) {
	start := true // the line has only spaces so far
	depth := 0    // nesting of [[
	for i := 0; i < len(src); {
		rest := src[i:]
		switch {
		case rest[0] == '\n':
			start = true
			i++
		case rest[0] == ' ' || rest[0] == '\t' || rest[0] == '\r':
			i++
		case strings.HasPrefix(rest, "//"):
			n := strings.IndexByte(rest, '\n')
			if n < 0 {
				n = len(rest)
			}
			comments = append(comments, comment{strings.TrimSpace(rest[2:n]), i})
			i += n
		case strings.HasPrefix(rest, "/*"):
			n := strings.Index(rest[2:], "*/")
			if n < 0 {
				return tokens, comments
			}
			comments = append(comments, comment{strings.TrimSpace(rest[2 : 2+n]), i})
			i += n + 4
		case rest[0] == '#' && start:
			for i < len(src) && src[i] != '\n' {
				if src[i] == '\\' {
					i++ // a backslash continues the line
				}
				i++
			}
		default:
			start = false
			s := anyToken.FindString(rest)
			t := token{s, i, i + len(s)}
			i += len(s)
			switch {
			case s == "[[":
				depth++
			case s == "]]" && depth == 0: // "]]" that closes two subscripts, as in a[b[0]]
				tokens = append(tokens, token{"]", t.pos, t.pos + 1})
				t = token{"]", t.pos + 1, t.end}
			case s == "]]":
				depth--
			}
			tokens = append(tokens, t)
		}
	}
	return tokens, comments
}
