package tokenizer

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode"
	"unicode/utf8"
)

// regexPattern is a regular expression of a tokenizer.json. Package regexp matches it in
// linear time, where a backtracking matcher may take exponential time.
//
// The expressions have Oniguruma's Ruby syntax, in which classes such as \s are Unicode's. The
// suffix \s+(?!\S)|\s+ needs lookahead and is implemented by hand. Other expressions that
// package regexp does not support are refused, and so are those that depend on the text before
// the match (^, \b).
type regexPattern struct {
	re *regexp.Regexp
	// spaces reports whether the expression has that suffix. Its last group is then \s+, and a
	// match of the group leaves the last character to the following word.
	spaces bool
}

func newRegexPattern(expr string) (*regexPattern, error) {
	p := new(regexPattern)
	expr, p.spaces = strings.CutSuffix(expr, `|\s+(?!\S)|\s+`)
	t := translator{in: expr}
	if err := t.run(); err != nil {
		return nil, err
	}
	out := t.out.String()
	if p.spaces {
		out = "(?:" + out + ")|(" + classText(whiteSpace, false) + "+)"
	}
	re, err := regexp.Compile(out)
	if err != nil {
		return nil, err
	}
	p.re = re
	return p, nil
}

func (p *regexPattern) next(s string) (int, bool) {
	for from := 0; from < len(s); {
		m := p.re.FindStringSubmatchIndex(s[from:])
		if m == nil {
			break
		}
		start, end := from+m[0], from+m[1]
		if start == end {
			_, n := utf8.DecodeRuneInString(s[end:])
			from = end + n
			continue
		}
		if start > 0 {
			return start, false
		}
		if p.spaces && len(m) > 2 && m[len(m)-2] == 0 && end < len(s) {
			if _, n := utf8.DecodeLastRuneInString(s[:end]); n < end {
				end -= n
			}
		}
		return end, true
	}
	return len(s), false
}

// Oniguruma's classes, written in the syntax of package regexp.
const (
	whiteSpace = `\t-\r\x{85}\p{Z}`
	wordChars  = `\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}` + alphaSigns
	digitChars = `\p{Nd}`
	// latinNumbers are characters that \w contains only outside brackets.
	latinNumbers = `\x{b2}\x{b3}\x{b9}\x{bc}-\x{be}`
	// alphaSigns are the symbols with Unicode's property Alphabetic: letters in circles and
	// squares.
	alphaSigns = `\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189}`
)

// translator translates an Oniguruma expression for package regexp.
type translator struct {
	in  string
	pos int
	out strings.Builder
}

var errEnds = errors.New("incomplete")

func (t *translator) more() bool { return t.pos < len(t.in) }

func (t *translator) run() error {
	for t.more() {
		switch c := t.in[t.pos]; c {
		case '\\':
			if err := t.escape(); err != nil {
				return err
			}
		case '[':
			class, err := t.class()
			if err != nil {
				return err
			}
			t.out.WriteString(class)
		case '(':
			if err := t.group(); err != nil {
				return err
			}
		case '^', '$':
			return fmt.Errorf("the anchor %c", c)
		case '+', '*', '?', '}':
			t.out.WriteByte(c)
			t.pos++
			if t.more() && t.in[t.pos] == '+' && c != '}' {
				return errors.New("a possessive quantifier")
			}
		default:
			t.out.WriteByte(c)
			t.pos++
		}
	}
	return nil
}

// group translates the beginning of a group, from its opening parenthesis to its content.
func (t *translator) group() error {
	rest := t.in[t.pos:]
	for _, open := range []string{"(?:", "(?i:", "(?i)"} {
		if strings.HasPrefix(rest, open) {
			t.out.WriteString(open)
			t.pos += len(open)
			return nil
		}
	}
	if strings.HasPrefix(rest, "(?") {
		return fmt.Errorf("the group %s", quote(rest[:min(len(rest), 4)]))
	}
	t.out.WriteString("(?:")
	t.pos++
	return nil
}

// escape translates an escape outside a class.
func (t *translator) escape() error {
	if t.pos+1 == len(t.in) {
		return errEnds
	}
	switch c := t.in[t.pos+1]; c {
	case 'w', 'W':
		t.pos += 2
		t.out.WriteString(classText(wordChars+latinNumbers, c == 'W'))
		return nil
	case 's', 'S', 'd', 'D', 'p', 'P', 'h', 'H':
		class, err := t.item()
		if err != nil {
			return err
		}
		t.out.WriteString("[" + class + "]")
		return nil
	default:
		r, err := t.char()
		if err != nil {
			return err
		}
		fmt.Fprintf(&t.out, `\x{%x}`, r)
		return nil
	}
}

// class translates a class in brackets.
func (t *translator) class() (string, error) {
	t.pos++
	not := ""
	if t.more() && t.in[t.pos] == '^' {
		not = "^"
		t.pos++
	}
	var b strings.Builder
	for first := true; ; first = false {
		if !t.more() {
			return "", errEnds
		}
		rest := t.in[t.pos:]
		switch {
		case rest[0] == ']' && !first:
			t.pos++
			return "[" + not + b.String() + "]", nil
		case strings.HasPrefix(rest, "&&"):
			return "", errors.New("an intersection of classes")
		case strings.HasPrefix(rest, "[:"):
			name, _, ok := strings.Cut(rest[2:], ":]")
			class, known := posixClasses()[name]
			if !ok || !known {
				return "", fmt.Errorf("the class %s", quote(rest[:min(len(rest), 12)]))
			}
			t.pos += len(name) + 4
			b.WriteString(class)
		case rest[0] == '[':
			class, err := t.class()
			if err != nil {
				return "", err
			}
			if strings.HasPrefix(class, "[^") {
				return "", errors.New("a negated class in a class")
			}
			b.WriteString(class[1 : len(class)-1])
		default:
			item, err := t.item()
			if err != nil {
				return "", err
			}
			b.WriteString(item)
		}
	}
}

// posixClasses returns the POSIX classes by the name in [:name:].
func posixClasses() map[string]string {
	return map[string]string{
		"alpha": alphabetic(), "digit": digitChars, "space": whiteSpace, "upper": `\p{Lu}`, "lower": `\p{Ll}`,
		"alnum": alphabetic() + digitChars, "punct": `\p{P}$+<=>^` + "`" + `|~`, "word": wordChars, "xdigit": `0-9A-Fa-f`, "cntrl": `\p{Cc}`,
	}
}

// alphabetic returns the members of Unicode's property Alphabetic.
func alphabetic() string {
	var b strings.Builder
	b.WriteString(`\p{L}\p{Nl}`)
	write := func(lo, hi, stride uint32) {
		if stride == 1 {
			fmt.Fprintf(&b, `\x{%x}-\x{%x}`, lo, hi)
			return
		}
		for r := lo; r <= hi; r += stride {
			fmt.Fprintf(&b, `\x{%x}`, r)
		}
	}
	for _, r := range unicode.Other_Alphabetic.R16 {
		write(uint32(r.Lo), uint32(r.Hi), uint32(r.Stride))
	}
	for _, r := range unicode.Other_Alphabetic.R32 {
		write(r.Lo, r.Hi, r.Stride)
	}
	return b.String()
}

// item translates one member of a class: a character, a range, or an escape that stands for
// several characters.
func (t *translator) item() (string, error) {
	if rest := t.in[t.pos:]; rest[0] == '\\' {
		if len(rest) == 1 {
			return "", errEnds
		}
		short := map[byte]string{'s': whiteSpace, 'w': wordChars, 'd': digitChars, 'h': `0-9A-Fa-f`}
		if class, ok := short[rest[1]]; ok {
			t.pos += 2
			return class, nil
		}
		if class, ok := short[rest[1]|0x20]; ok && rest[1] < 'a' {
			t.pos += 2
			return complement(class)
		}
		if rest[1] == 'p' || rest[1] == 'P' {
			return t.property()
		}
	}
	from, err := t.char()
	if err != nil {
		return "", err
	}
	if rest := t.in[t.pos:]; len(rest) >= 2 && rest[0] == '-' && rest[1] != ']' {
		t.pos++
		to, err := t.char()
		if err != nil {
			return "", err
		}
		return fmt.Sprintf(`\x{%x}-\x{%x}`, from, to), nil
	}
	return fmt.Sprintf(`\x{%x}`, from), nil
}

// property translates \p{...}.
func (t *translator) property() (string, error) {
	rest := t.in[t.pos:]
	end := strings.IndexByte(rest, '}')
	if len(rest) < 3 || rest[2] != '{' || end < 0 {
		return "", errors.New(`\p without a name in braces`)
	}
	t.pos += end + 1
	name := rest[3:end]
	not := rest[1] == 'P'
	if cut, ok := strings.CutPrefix(name, "^"); ok {
		name, not = cut, !not
	}
	if not {
		return `\P{` + name + `}`, nil
	}
	return `\p{` + name + `}`, nil
}

// char reads a character, which may be written as an escape.
func (t *translator) char() (rune, error) {
	if !t.more() {
		return 0, errEnds
	}
	r, n := utf8.DecodeRuneInString(t.in[t.pos:])
	t.pos += n
	if r != '\\' {
		return r, nil
	}
	if !t.more() {
		return 0, errEnds
	}
	r, n = utf8.DecodeRuneInString(t.in[t.pos:])
	t.pos += n
	switch r {
	case 'n':
		return '\n', nil
	case 'r':
		return '\r', nil
	case 't':
		return '\t', nil
	case 'f':
		return '\f', nil
	case 'v':
		return '\v', nil
	case 'u', 'x':
		digits := t.in[t.pos:min(t.pos+4, len(t.in))]
		if r == 'x' {
			if rest, ok := strings.CutPrefix(t.in[t.pos:], "{"); ok {
				digits, _, _ = strings.Cut(rest, "}")
				t.pos += 2
			} else {
				digits = digits[:min(2, len(digits))]
			}
		}
		t.pos += len(digits)
		var v rune
		if _, err := fmt.Sscanf(digits, "%x", &v); err != nil || t.pos > len(t.in) || v > utf8.MaxRune {
			return 0, fmt.Errorf(`the escape \%c%s`, r, digits)
		}
		return v, nil
	}
	if r < utf8.RuneSelf && ('a' <= r|0x20 && r|0x20 <= 'z' || '0' <= r && r <= '9') {
		return 0, fmt.Errorf(`the escape \%c`, r)
	}
	return r, nil
}

// complement returns the complement of a class.
func complement(class string) (string, error) {
	re, err := syntax.Parse(classText(class, true), syntax.Perl)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for i := 0; i+1 < len(re.Rune); i += 2 {
		fmt.Fprintf(&b, `\x{%x}-\x{%x}`, re.Rune[i], re.Rune[i+1])
	}
	return b.String(), nil
}

func classText(class string, not bool) string {
	if not {
		return "[^" + class + "]"
	}
	return "[" + class + "]"
}
