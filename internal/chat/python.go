package chat

import (
	"encoding/json"
	"strconv"
	"strings"
)

// pythonCalls parses calls in Python syntax: one call such as f(x=1, y='a'), or a list of
// calls. It returns nil for any other text.
func pythonCalls(text string) (calls []ToolCall) {
	p := &python{rest: text}
	list := p.skip("[")
	for {
		name := p.name()
		if name == "" || !p.skip("(") {
			return nil
		}
		var o objectWriter
		for n := 0; !p.skip(")"); n++ {
			if n > 0 && !p.skip(",") {
				return nil
			}
			key := p.name()
			if key == "" || !p.skip("=") {
				return nil
			}
			value, ok := p.value(0)
			if !ok {
				return nil
			}
			o.set(key, value)
		}
		calls = append(calls, ToolCall{Name: name, Arguments: o.object()})
		if !list || !p.skip(",") {
			break
		}
	}
	if list && !p.skip("]") || p.space() != "" {
		return nil
	}
	return calls
}

// python parses constants in Python syntax and converts them to JSON.
type python struct{ rest string }

// space skips white space and returns the rest.
func (p *python) space() string {
	p.rest = strings.TrimLeft(p.rest, " \t\n")
	return p.rest
}

func (p *python) skip(s string) bool {
	rest, ok := strings.CutPrefix(p.space(), s)
	if ok {
		p.rest = rest
	}
	return ok
}

func (p *python) name() string {
	s := p.space()
	n := 0
	for n < len(s) && isName(s[n:n+1]) && s[n] != ':' && s[n] != '-' {
		n++
	}
	p.rest = s[n:]
	return s[:n]
}

// maxPythonDepth bounds the nesting of lists.
const maxPythonDepth = 50

func (p *python) value(depth int) (json.RawMessage, bool) {
	s := p.space()
	switch {
	case s == "" || depth > maxPythonDepth:
		return nil, false
	case s[0] == '\'' || s[0] == '"':
		return p.text()
	case s[0] == '[' || s[0] == '(':
		end := map[byte]string{'[': "]", '(': ")"}[s[0]]
		p.rest = s[1:]
		var items []string
		for !p.skip(end) {
			if len(items) > 0 && !p.skip(",") {
				return nil, false
			}
			v, ok := p.value(depth + 1)
			if !ok {
				return nil, false
			}
			items = append(items, string(v))
		}
		return json.RawMessage("[" + strings.Join(items, ", ") + "]"), true
	case s[0] == '{':
		p.rest = s[1:]
		var o objectWriter
		for n := 0; !p.skip("}"); n++ {
			if n > 0 && !p.skip(",") {
				return nil, false
			}
			key, ok := p.value(depth + 1)
			var name string
			if !ok || json.Unmarshal(key, &name) != nil || !p.skip(":") {
				return nil, false
			}
			v, ok := p.value(depth + 1)
			if !ok {
				return nil, false
			}
			o.set(name, v)
		}
		return o.object(), true
	}
	n := strings.IndexAny(s, ",)]} \t\n")
	if n < 0 {
		return nil, false
	}
	word := s[:n]
	p.rest = s[n:]
	if c, ok := map[string]string{"True": "true", "true": "true", "False": "false", "false": "false", "None": "null", "null": "null"}[word]; ok {
		return json.RawMessage(c), true
	}
	return json.RawMessage(word), json.Valid([]byte(word))
}

// text parses a string. It supports the escapes that Go and Python have in common.
func (p *python) text() (json.RawMessage, bool) {
	s := p.rest
	quote := s[0]
	s = s[1:]
	var b strings.Builder
	for s != "" && s[0] != quote {
		if strings.HasPrefix(s, `\'`) || strings.HasPrefix(s, `\"`) {
			b.WriteByte(s[1])
			s = s[2:]
			continue
		}
		if s[0] == '\n' || s[0] == '"' || s[0] == '\'' {
			b.WriteByte(s[0])
			s = s[1:]
			continue
		}
		c, _, rest, err := strconv.UnquoteChar(s, quote)
		if err != nil {
			return nil, false
		}
		b.WriteRune(c)
		s = rest
	}
	if s == "" {
		return nil, false
	}
	p.rest = s[1:]
	return jsonText(b.String()), true
}
