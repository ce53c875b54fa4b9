package chat

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// early returns the arguments of a call while they are generated. A call begins when its name and the
// brace of its arguments have come; text that follows the arguments within the call is left out.
type early struct {
	wanted bool // Answer wants complete calls only
	tried  bool // the call's beginning has another form, so that its end decides
	open   bool // the call has begun
	object braces
}

// callBeginning matches the beginning of a call in JSON up to the brace of its arguments.
var callBeginning = regexp.MustCompile(`^\s*\{\s*"name"\s*:\s*"([^"\\\x00-\x1f]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*\{`)

// maxBeginning bounds the length of the beginning of a call.
const maxBeginning = 512

// callText takes the text of a call in JSON.
func (s *AnswerStream) callText(text string) {
	e := &s.early
	if e.open {
		s.arguments(text)
		return
	}
	if s.hold(text); !e.wanted || e.tried {
		return
	}
	text = s.held.String()
	at := callBeginning.FindStringSubmatchIndex(text[:min(len(text), maxBeginning)])
	if at == nil {
		e.tried = len(text) >= maxBeginning
		return
	}
	if name := text[at[2]:at[3]]; utf8.ValidString(name) {
		s.openCall(name, text[at[1]-1:])
	} else {
		e.tried = true
	}
}

// argumentsText takes the text of a call of gpt-oss, which has the arguments only.
func (s *AnswerStream) argumentsText(text string) {
	e := &s.early
	if e.open {
		s.arguments(text)
		return
	}
	if s.hold(text); !e.wanted || e.tried {
		return
	}
	text = strings.TrimLeftFunc(text, unicode.IsSpace)
	if e.tried = text != "" && text[0] != '{'; text != "" && !e.tried {
		s.harmonyPreamble(true)
		s.openCall(s.harmony.name, text)
	}
}

// openCall begins a call whose arguments begin with text.
func (s *AnswerStream) openCall(name, text string) {
	s.taken()
	s.early.open, s.early.object = true, braces{}
	s.called([]ToolCall{{Name: name}})
	s.arguments(text)
}

// arguments adds to the arguments of the call that is open.
func (s *AnswerStream) arguments(text string) {
	if text = s.early.object.take(text); text != "" {
		s.out = append(s.out, Delta{Arguments: text})
	}
}

// closeCall ends a call, and reports whether it was open.
func (s *AnswerStream) closeCall() bool {
	open := s.early.open
	s.early.open, s.early.tried = false, false
	return open
}

// braces finds the end of a JSON object.
type braces struct {
	depth                 int
	quoted, escaped, done bool
}

// take returns the part of a text that belongs to the object.
func (b *braces) take(text string) string {
	for i := range len(text) {
		if b.done {
			return text[:i]
		}
		switch c := text[i]; {
		case b.escaped:
			b.escaped = false
		case b.quoted:
			b.escaped, b.quoted = c == '\\', c != '"'
		case c == '"':
			b.quoted = true
		case c == '{' || c == '[':
			b.depth++
		case c == '}' || c == ']':
			b.depth--
			b.done = b.depth == 0
		}
	}
	return text
}
