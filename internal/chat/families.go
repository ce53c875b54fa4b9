package chat

import (
	"encoding/json"
	"strings"
)

// thinkMarks are the texts around the reasoning.
type thinkMarks struct{ begin, end string }

// thinkMarksOf determines the texts around the reasoning from a template's source. Without reasoning
// they are empty.
func thinkMarksOf(source string) thinkMarks {
	for _, m := range []thinkMarks{{"<seed:think>", "</seed:think>"}, {"<|START_THINKING|>", "<|END_THINKING|>"}, {"<|channel>thought", "<channel|>"}, {thinkBegin, thinkEnd}} {
		if strings.Contains(source, m.end) {
			return m
		}
	}
	return thinkMarks{}
}

// wrapped returns the state of text in which two marks may stand around the answer proper. The marks
// and white space beside them are left out.
func wrapped(begin, end string, inner state) (text state) {
	text = state{marks: append([]string{begin, end}, inner.marks...), text: inner.text, end: inner.end}
	text.mark = func(s *AnswerStream, m string) {
		switch m {
		case begin:
			s.space.Reset()
			s.state = state{marks: []string{end}, text: func(s *AnswerStream, t string) {
				if t = strings.TrimLeft(t, " \n"); t != "" {
					s.state, s.rest = text, t+s.rest
				}
			}, mark: func(s *AnswerStream, _ string) { s.state = text }}
		case end:
			s.space.Reset()
		default:
			inner.mark(s, m)
		}
	}
	return text
}

// glmCall parses the form of GLM-4.5, a name and pairs of <arg_key>k</arg_key>
// <arg_value>v</arg_value>.
func glmCall(text string) []ToolCall {
	name, rest, _ := strings.Cut(text, "<arg_key>")
	if name = strings.TrimSpace(name); !isName(name) {
		return nil
	}
	var o objectWriter
	for rest != "" {
		key, after, ok := strings.Cut(rest, "</arg_key>")
		_, value, opened := strings.Cut(after, "<arg_value>")
		value, after, closed := strings.Cut(value, "</arg_value>")
		if !ok || !opened || !closed {
			return nil
		}
		o.setValue(strings.TrimSpace(key), value)
		_, rest, _ = strings.Cut(after, "<arg_key>")
	}
	return []ToolCall{{Name: name, Arguments: o.object()}}
}

// invokedCalls parses the form of MiniMax-M2: <invoke name="f"><parameter name="x">1</parameter>
// </invoke>, once or several times.
func invokedCalls(text string) (calls []ToolCall) {
	for {
		_, after, found := strings.Cut(text, "<invoke name=")
		if !found {
			return calls
		}
		body, rest, closed := strings.Cut(after, "</invoke>")
		name, body, ok := strings.Cut(body, ">")
		if name = unquoted(name); !closed || !ok || !isName(name) {
			return nil
		}
		var o objectWriter
		for {
			_, after, found := strings.Cut(body, "<parameter name=")
			if !found {
				break
			}
			key, value, ok := strings.Cut(after, ">")
			if !ok {
				return nil
			}
			value, body, _ = strings.Cut(value, "</parameter>")
			o.setValue(unquoted(key), strings.TrimSuffix(strings.TrimPrefix(value, "\n"), "\n"))
		}
		calls = append(calls, ToolCall{Name: name, Arguments: o.object()})
		text = rest
	}
}

// unquoted removes double quotes around a name.
func unquoted(s string) string { return strings.Trim(strings.TrimSpace(s), `"`) }

// The marks of DeepSeek's calls.
const (
	deepseekCall    = "<｜tool▁call▁begin｜>"
	deepseekCallEnd = "<｜tool▁call▁end｜>"
	deepseekSep     = "<｜tool▁sep｜>"
)

// deepseekCalls parses the calls of DeepSeek V3, function<sep>name and a code fence with JSON, and of
// V3.1, name<sep>JSON.
func deepseekCalls(text string) (calls []ToolCall) {
	for {
		_, after, found := strings.Cut(text, deepseekCall)
		if !found {
			return calls
		}
		body, rest, _ := strings.Cut(after, deepseekCallEnd)
		name, arguments, ok := strings.Cut(body, deepseekSep)
		if fence := strings.Index(arguments, "```"); strings.TrimSpace(name) == "function" && fence >= 0 {
			name, arguments = arguments[:fence], unfenced(arguments[fence:])
		}
		object, valid := jsonObject(json.RawMessage(arguments))
		if name = strings.TrimSpace(name); !ok || !valid || !isName(name) {
			return nil
		}
		calls = append(calls, ToolCall{Name: name, Arguments: object})
		text = rest
	}
}

// cohereCalls parses the calls of Command R7B, a list of objects with their own names of fields.
func cohereCalls(text string) (calls []ToolCall) {
	var list []struct {
		ID         string          `json:"tool_call_id"`
		Name       string          `json:"tool_name"`
		Parameters json.RawMessage `json:"parameters"`
	}
	if json.Unmarshal([]byte(text), &list) != nil {
		return nil
	}
	for _, c := range list {
		object, ok := jsonObject(c.Parameters)
		if !ok || c.Name == "" {
			return nil
		}
		calls = append(calls, ToolCall{ID: c.ID, Name: c.Name, Arguments: object})
	}
	return calls
}
