package chat

import (
	"bytes"
	"encoding/json"
	"strings"
)

// The marks of Gemma 4's calls, and the mark around the text of its strings.
const (
	gemmaCall    = "<|tool_call>"
	gemmaCallEnd = "<tool_call|>"
	gemmaQuote   = `<|"|>`
)

// gemmaCalls parses the form of Gemma 4, call:name{key:<|"|>text<|"|>,other:[1,true]}, once or several
// times.
func gemmaCalls(text string) (calls []ToolCall) {
	p := &gemma{rest: text}
	for p.space() != "" {
		if !p.skip("call:") {
			return nil
		}
		name, _, found := strings.Cut(p.rest, "{")
		p.rest = p.rest[len(name):]
		name = strings.TrimSpace(name)
		arguments, ok := p.object(0)
		if !found || !ok || !isName(name) {
			return nil
		}
		calls = append(calls, ToolCall{Name: name, Arguments: arguments})
	}
	return calls
}

// gemma parses values in the form of Gemma 4 and converts them to JSON.
type gemma struct{ rest string }

// space skips white space and returns the rest.
func (p *gemma) space() string {
	p.rest = strings.TrimLeft(p.rest, " \t\n")
	return p.rest
}

func (p *gemma) skip(s string) bool {
	rest, ok := strings.CutPrefix(p.space(), s)
	if ok {
		p.rest = rest
	}
	return ok
}

// maxGemmaDepth bounds the nesting of values.
const maxGemmaDepth = 50

// object parses {key:value,...}.
func (p *gemma) object(depth int) (json.RawMessage, bool) {
	if depth > maxGemmaDepth || !p.skip("{") {
		return nil, false
	}
	var o objectWriter
	for n := 0; !p.skip("}"); n++ {
		if n > 0 && !p.skip(",") {
			return nil, false
		}
		key, ok := p.quoted()
		if !ok {
			if key, p.rest, ok = strings.Cut(p.space(), ":"); !ok || strings.ContainsAny(key, "{}[],") {
				return nil, false
			}
			key = unquoted(key)
		} else if !p.skip(":") {
			return nil, false
		}
		value, ok := p.value(depth + 1)
		if !ok {
			return nil, false
		}
		o.set(key, value)
	}
	return o.object(), true
}

// quoted returns the text between two marks.
func (p *gemma) quoted() (text string, ok bool) {
	if !strings.HasPrefix(p.space(), gemmaQuote) {
		return "", false
	}
	text, rest, ok := strings.Cut(p.rest[len(gemmaQuote):], gemmaQuote)
	if ok {
		p.rest = rest
	}
	return text, ok
}

// value parses a text, an object, a list, or a number, string or word of JSON.
func (p *gemma) value(depth int) (json.RawMessage, bool) {
	if text, ok := p.quoted(); ok {
		return jsonText(text), true
	}
	switch {
	case depth > maxGemmaDepth || p.space() == "":
		return nil, false
	case p.rest[0] == '{':
		return p.object(depth)
	case p.rest[0] == '[':
		return p.list(depth)
	}
	dec := json.NewDecoder(strings.NewReader(p.rest))
	var raw json.RawMessage
	if dec.Decode(&raw) != nil {
		return nil, false
	}
	p.rest = p.rest[dec.InputOffset():]
	return raw, true
}

// list parses [value,...].
func (p *gemma) list(depth int) (json.RawMessage, bool) {
	var b bytes.Buffer
	b.WriteByte('[')
	p.skip("[")
	for n := 0; !p.skip("]"); n++ {
		if n > 0 {
			if !p.skip(",") {
				return nil, false
			}
			b.WriteString(", ")
		}
		value, ok := p.value(depth + 1)
		if !ok {
			return nil, false
		}
		b.Write(value)
	}
	b.WriteByte(']')
	return b.Bytes(), true
}
