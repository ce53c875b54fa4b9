package chat

import (
	"cmp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Delta is a piece of an answer. One of its fields is set.
type Delta struct {
	Reasoning, Content string
	// Call is a complete call, or a call without arguments. In the latter case Arguments follow.
	Call      *ToolCall
	Arguments string // to append to those of the last call
}

// AnswerStream parses an answer while it is generated. However a text is divided into pieces, the
// deltas together are the same; if its calls are complete, they are the message that Template.Answer
// returns for the whole text.
//
// The time for an answer is linear in its length.
type AnswerStream struct {
	format answerFormat
	think  thinkMarks
	tools  []Tool
	state  state
	rest   string // text that may be the beginning of a mark or of a character
	last   bool   // no text follows

	out   []Delta
	space strings.Builder // white space that is left out if nothing follows it
	held  strings.Builder // text that may become a call
	guess guess
	calls int

	early   early
	harmony harmonyState
}

// state is what a stream expects next.
type state struct {
	marks []string                        // texts that end the state
	text  func(s *AnswerStream, t string) // takes text without marks
	mark  func(s *AnswerStream, m string) // takes a mark
	end   func(s *AnswerStream)           // ends the answer; may be nil
}

const (
	thinkBegin = "<think>"
	thinkEnd   = "</think>"

	answerBegin, answerEnd = "<answer>", "</answer>"
	cohereBegin, cohereEnd = "<|START_RESPONSE|>", "<|END_RESPONSE|>"
)

// Stream begins to parse an answer to a prompt, which is the rendered conversation. The prompt says
// whether the answer begins within the reasoning. See Answer for the tools and the text.
//
// The arguments of calls in the forms of Qwen and gpt-oss are returned while they come. If such a call is
// cut off or its arguments are not valid JSON, they have been returned as they are; for Answer, the call is
// part of the content.
func (t *Template) Stream(prompt string, tools []Tool) *AnswerStream {
	s := t.stream(strings.HasSuffix(strings.TrimRightFunc(prompt, unicode.IsSpace), cmp.Or(t.think.begin, thinkBegin)), tools)
	s.early.wanted = true
	return s
}

// stream begins to parse an answer. opened reports whether it begins within the reasoning.
func (t *Template) stream(opened bool, tools []Tool) *AnswerStream {
	s := &AnswerStream{format: t.format, think: t.think, tools: tools}
	switch {
	case t.format == harmonyAnswers:
		s.state, s.harmony.header = harmonyHeader, true
	case t.think.end != "":
		s.guess.opened = opened
		s.state = beginning(t.think)
	default:
		s.begin()
	}
	return s
}

// Add takes the next piece of the text, and returns what has become certain. It withholds text that
// may be the beginning of a mark.
func (s *AnswerStream) Add(piece string) []Delta {
	s.rest += piece
	s.parse()
	return s.take()
}

// Special takes the name of a special token. Names without a meaning in the answer's format are left out.
func (s *AnswerStream) Special(name string) []Delta {
	known := slices.Contains(s.state.marks, name) || s.harmony.header || len(s.tools) > 0 && slices.Contains(callMarks, name)
	if !known {
		return nil
	}
	return s.Add(name)
}

// callMarks are marks within calls.
var callMarks = []string{"<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", deepseekCall, deepseekCallEnd, deepseekSep, "<|python_start|>", "<|python_end|>"}

// End ends the text and returns the rest of the answer.
func (s *AnswerStream) End() []Delta {
	s.last = true
	s.parse()
	if s.state.end != nil {
		s.state.end(s)
	}
	if s.calls == 0 {
		s.content(s.space.String())
	}
	return s.take()
}

// take returns the deltas so far.
func (s *AnswerStream) take() []Delta {
	out := s.out
	s.out = nil
	return out
}

// parse reads the rest as far as it is certain. The functions of a state may change the state and
// put text back.
func (s *AnswerStream) parse() {
	for {
		at, mark := find(s.rest, s.state.marks)
		if mark != "" && at == 0 {
			s.rest = s.rest[len(mark):]
			s.state.mark(s, mark)
			continue
		}
		if mark == "" {
			if at = len(s.rest); !s.last {
				at -= unfinished(s.rest, s.state.marks)
			}
			if at == 0 {
				return
			}
		}
		text := s.rest[:at]
		s.rest = s.rest[at:]
		s.state.text(s, text)
	}
}

// find returns the first mark in a text and its place.
func find(text string, marks []string) (at int, mark string) {
	for at < len(text) && len(marks) > 0 {
		i := strings.IndexAny(text[at:], "<[")
		if i < 0 {
			break
		}
		at += i
		for _, m := range marks {
			if strings.HasPrefix(text[at:], m) {
				return at, m
			}
		}
		at++
	}
	return 0, ""
}

// unfinished returns the length of the end of a text that may be the beginning of a mark or of a
// character.
func unfinished(text string, marks []string) (n int) {
	for i := max(0, len(text)-utf8.UTFMax); i < len(text); i++ {
		if utf8.RuneStart(text[i]) && !utf8.FullRuneInString(text[i:]) {
			n = len(text) - i
			break
		}
	}
	for _, m := range marks {
		for k := min(len(m)-1, len(text)); k > n; k-- {
			if strings.HasSuffix(text, m[:k]) {
				n = k
			}
		}
	}
	return n
}

// content adds to the answer proper.
func (s *AnswerStream) content(text string) {
	if text != "" {
		s.out = append(s.out, Delta{Content: text})
	}
}

// said adds to the answer proper, and holds white space back that may be the last.
func (s *AnswerStream) said(text string) {
	trimmed := strings.TrimRightFunc(text, unicode.IsSpace)
	if trimmed != "" {
		s.content(s.space.String() + trimmed)
		s.space.Reset()
	}
	s.space.WriteString(text[len(trimmed):])
}

// reason adds to the reasoning, and leaves out white space around it.
func (s *AnswerStream) reason(text string) {
	if s.guess.reasons == 0 {
		text = strings.TrimLeftFunc(text, unicode.IsSpace)
	}
	trimmed := strings.TrimRightFunc(text, unicode.IsSpace)
	if trimmed != "" {
		s.out = append(s.out, Delta{Reasoning: s.space.String() + trimmed})
		s.guess.reasons++
		s.space.Reset()
	}
	s.space.WriteString(text[len(trimmed):])
}

// called adds calls.
func (s *AnswerStream) called(calls []ToolCall) {
	for i := range calls {
		s.out = append(s.out, Delta{Call: &calls[i]})
	}
	s.calls += len(calls)
}

// hold keeps text that may become a call.
func (s *AnswerStream) hold(text string) { s.held.WriteString(text) }

// taken returns the text that was kept.
func (s *AnswerStream) taken() string {
	text := s.held.String()
	s.held.Reset()
	return text
}

// beginning returns the state of white space before the answer.
func beginning(think thinkMarks) state {
	return state{
		marks: []string{think.begin},
		text: func(s *AnswerStream, t string) {
			if s.hold(t); strings.TrimSpace(t) != "" {
				s.leaveBeginning()
			}
		},
		mark: func(s *AnswerStream, _ string) {
			s.taken()
			s.state = reasoning(think)
		},
		end: func(s *AnswerStream) {
			s.leaveBeginning()
			s.parse()
			if s.state.end != nil {
				s.state.end(s)
			}
		},
	}
}

// reasoning returns the state of the reasoning.
func reasoning(think thinkMarks) state {
	return state{
		marks: []string{think.end},
		text:  (*AnswerStream).reason,
		mark: func(s *AnswerStream, _ string) {
			s.space.Reset()
			s.state = reasoned()
		},
		end: func(s *AnswerStream) { s.space.Reset() },
	}
}

// reasoned returns the state of line breaks before the answer proper.
func reasoned() state {
	return state{
		text: func(s *AnswerStream, t string) {
			if t = strings.TrimLeft(t, "\n"); t != "" {
				s.begin()
				s.rest = t + s.rest
			}
		},
	}
}

// leaveBeginning begins with the reasoning or the answer proper.
func (s *AnswerStream) leaveBeginning() {
	if s.guess.opened {
		s.state = reasoning(s.think)
	} else {
		s.begin()
	}
	s.rest = s.taken() + s.rest
}

// begin begins the answer proper.
func (s *AnswerStream) begin() {
	s.state = verbatim
	if len(s.tools) == 0 {
		switch s.format {
		case cohereAnswers:
			s.state = wrapped(cohereBegin, cohereEnd, state{text: (*AnswerStream).said})
		case wrappedAnswers:
			s.state = wrapped(answerBegin, answerEnd, state{text: (*AnswerStream).said})
		}
		return
	}
	switch s.format {
	case seedAnswers:
		s.state = tagged("<seed:tool_call>", "</seed:tool_call>")
	case minimaxAnswers:
		s.state = marked("<minimax:tool_call>", "</minimax:tool_call>", (*AnswerStream).hold, invokedCalls)
	case gemmaAnswers:
		s.state = marked(gemmaCall, gemmaCallEnd, (*AnswerStream).hold, gemmaCalls)
	case deepseekAnswers:
		s.state = marked("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", (*AnswerStream).hold, deepseekCalls)
	case cohereAnswers:
		s.state = wrapped(cohereBegin, cohereEnd, marked("<|START_ACTION|>", "<|END_ACTION|>", (*AnswerStream).hold, cohereCalls))
	case wrappedAnswers:
		s.state = wrapped(answerBegin, answerEnd, tagged("<tool_call>", "</tool_call>"))
	case taggedAnswers:
		s.state = tagged("<tool_call>", "</tool_call>")
	case bracketAnswers:
		s.state = marked("<|tool_call|>", "<|/tool_call|>", (*AnswerStream).hold, jsonCalls)
	case nemotronAnswers:
		s.state = marked(nemotronCalls, nemotronCallsEnd, (*AnswerStream).hold, jsonCalls)
	case mistralAnswers:
		s.state = mistralText
	case bareAnswers, fencedAnswers:
		s.state = guessing
	}
}

// verbatim is the state of text without calls.
var verbatim = state{text: (*AnswerStream).content}

// tagged returns the state of text with calls, each between two marks.
func tagged(begin, end string) state {
	return marked(begin, end, (*AnswerStream).callText, taggedCall)
}

// marked returns the state of text with calls between two marks. The last mark may be missing. inner takes
// the text between the marks.
func marked(begin, end string, inner func(*AnswerStream, string), parse func(string) []ToolCall) (text state) {
	call := state{marks: []string{end}, text: inner}
	finish := func(s *AnswerStream, end string) {
		if s.closeCall() {
			return
		}
		inner := s.taken()
		if calls := parse(inner); calls != nil {
			s.called(calls)
		} else {
			s.said(begin + inner + end)
		}
	}
	text = state{marks: []string{begin}, text: (*AnswerStream).said}
	call.mark = func(s *AnswerStream, m string) {
		finish(s, m)
		s.state = text
	}
	call.end = func(s *AnswerStream) { finish(s, "") }
	text.mark = func(s *AnswerStream, _ string) { s.state = call }
	return text
}

// mistralText is the state of text before [TOOL_CALLS], which ends the answer proper.
var mistralText = state{
	marks: []string{"[TOOL_CALLS]"}, text: (*AnswerStream).said,
	mark: func(s *AnswerStream, m string) {
		s.state = state{text: (*AnswerStream).hold, end: func(s *AnswerStream) {
			rest := s.taken()
			if calls := mistralCalls(rest); calls != nil {
				s.called(calls)
			} else {
				s.said(m + rest)
			}
		}}
	},
}

// guess is what a stream knows of an answer from its beginning.
type guess struct {
	opened  bool // the answer begins within the reasoning
	reasons int  // deltas of the reasoning
	name    int  // length of the name with which the answer begins
	after   bool // white space has followed the name
	sure    bool // the answer may be a call, which its end decides
}

// guessing is the state of an answer that is a call as a whole or not at all. Calls begin with {, [, a
// code fence, Llama's <|python_tag|>, or a name and a parenthesis.
var guessing = state{
	text: func(s *AnswerStream, t string) {
		s.hold(t)
		if !s.guess.sure && !s.guess.add(t, s.format) {
			s.state = verbatim
			s.content(s.taken())
		}
	},
	end: func(s *AnswerStream) {
		text := s.taken()
		calls := bareCalls(text, s.format)
		if named(calls, s.tools) {
			s.called(calls)
		} else {
			s.content(text)
		}
	},
}

// add takes the next text of an answer, and reports whether the answer may be a call.
func (g *guess) add(text string, format answerFormat) bool {
	for _, c := range text {
		switch {
		case unicode.IsSpace(c):
			g.after = g.name > 0
		case g.name == 0 && strings.ContainsRune("{[<`", c), c == '(' && g.name > 0 && format == fencedAnswers:
			g.sure = true
			return true
		case format == fencedAnswers && !g.after && c != utf8.RuneError && isName(string(c)):
			g.name++
		default:
			return false
		}
	}
	return true
}

// bareCalls parses an answer that is a call as a whole.
func bareCalls(text string, format answerFormat) []ToolCall {
	if format == bareAnswers {
		return jsonCalls(strings.TrimPrefix(strings.TrimSpace(text), "<|python_tag|>"))
	}
	inner := unfenced(strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(text), "<|python_start|>"), "<|python_end|>"))
	if calls := jsonCalls(inner); calls != nil {
		return calls
	}
	return pythonCalls(inner)
}
