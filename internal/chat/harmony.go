package chat

import (
	"encoding/json"
	"strings"
)

// harmonyState is the state of an answer of gpt-oss. It is a list of messages, each with a header, which
// names its channel and for a call its recipient, and a body.
type harmonyState struct {
	header    bool // the stream is in a header
	name      string
	isCall    bool
	thoughts  int    // messages of the reasoning
	contents  int    // messages of the answer proper
	preamble  string // a message before a call, or before the answer proper
	preambled bool
}

// harmonyEnds are the marks that end a body. The last two begin the next header.
var harmonyEnds = []string{"<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"}

// harmonyHeader is the state of a header. It is set in init because the states refer to each other.
var harmonyHeader state

func init() {
	harmonyHeader = state{
		marks: []string{"<|message|>"}, text: (*AnswerStream).hold,
		mark: func(s *AnswerStream, _ string) { s.harmonyMessage(s.taken()) },
		end: func(s *AnswerStream) { // the header is incomplete or missing
			s.harmonyPreamble(false)
			if text := s.taken(); text != "" && !strings.Contains(text, "<|") {
				s.harmonyContent()(s, text)
			}
		},
	}
}

// harmonyMessage begins the body of a message.
func (s *AnswerStream) harmonyMessage(header string) {
	h := &s.harmony
	h.header = false
	channel := word(header, "<|channel|>")
	h.name, h.isCall = strings.CutPrefix(word(header, "to="), "functions.")
	call := len(s.tools) > 0 && h.isCall && isName(h.name)
	body := state{marks: harmonyEnds}
	finish := func(*AnswerStream) {}
	switch {
	case call:
		body.text, finish = (*AnswerStream).argumentsText, (*AnswerStream).harmonyCall
	case channel == "analysis" && !h.isCall:
		s.harmonyPreamble(false)
		if h.thoughts++; h.thoughts > 1 {
			s.out = append(s.out, Delta{Reasoning: "\n"})
		}
		body.text = func(s *AnswerStream, t string) { s.out = append(s.out, Delta{Reasoning: t}) }
	case channel == "commentary" && !h.isCall && h.thoughts > 0 && len(s.tools) > 0:
		s.harmonyPreamble(false)
		body.text = (*AnswerStream).hold
		finish = func(s *AnswerStream) { h.preamble, h.preambled = s.taken(), true }
	default:
		s.harmonyPreamble(false)
		body.text = s.harmonyContent()
	}
	body.end = func(s *AnswerStream) {
		finish(s)
		s.harmonyPreamble(false)
	}
	body.mark = func(s *AnswerStream, m string) {
		finish(s)
		h.header = true
		s.state = harmonyHeader
		if m == "<|start|>" || m == "<|channel|>" {
			s.hold(m)
		}
	}
	s.state = body
}

// harmonyContent begins a message of the answer proper, and returns what takes its text.
func (s *AnswerStream) harmonyContent() func(*AnswerStream, string) {
	if s.harmony.contents++; s.harmony.contents > 1 {
		s.content("\n")
	}
	return (*AnswerStream).content
}

// harmonyPreamble adds the message that was kept. Before a call it belongs to the reasoning, because the
// template has one field for both.
func (s *AnswerStream) harmonyPreamble(call bool) {
	h := &s.harmony
	if !h.preambled {
		return
	}
	h.preambled = false
	if call {
		h.thoughts++
		s.out = append(s.out, Delta{Reasoning: "\n" + h.preamble})
	} else {
		s.harmonyContent()(s, h.preamble)
	}
	h.preamble = ""
}

// harmonyCall ends the body of a call. A body that is not an object is part of the answer proper.
func (s *AnswerStream) harmonyCall() {
	if s.closeCall() {
		return
	}
	body := s.taken()
	object, ok := jsonObject(json.RawMessage(body))
	s.harmonyPreamble(ok)
	if ok {
		s.called([]ToolCall{{Name: s.harmony.name, Arguments: object}})
	} else {
		s.harmonyContent()(s, body)
	}
}

// word returns the word that follows a mark in a message's header.
func word(header, mark string) string {
	_, after, _ := strings.Cut(header, mark)
	if i := strings.IndexAny(after, " \n<"); i >= 0 {
		after = after[:i]
	}
	return after
}
