package chat

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode"
)

// answerFormat is the form in which a model family writes tool calls and reasoning.
type answerFormat uint8

const (
	plainAnswers    answerFormat = iota
	taggedAnswers                // <tool_call>{"name": ..., "arguments": {...}}</tool_call>: Qwen, Hermes
	mistralAnswers               // [TOOL_CALLS][{"name": ..., "arguments": {...}}]
	bareAnswers                  // {"name": ..., "parameters": {...}} and nothing else: Llama 3
	bracketAnswers               // <|tool_call|>[{...}]<|/tool_call|>: Phi 4 mini
	harmonyAnswers               // channels: gpt-oss
	fencedAnswers                // [f(x=1)] or JSON, with or without a code fence: Gemma 3, Llama 4
	seedAnswers                  // <seed:tool_call><function=f><parameter=x>1</parameter></function></seed:tool_call>: Seed-OSS
	minimaxAnswers               // <minimax:tool_call><invoke name="f"><parameter name="x">1</parameter></invoke></minimax:tool_call>
	deepseekAnswers              // <｜tool▁calls▁begin｜> and calls with marks of their own: DeepSeek V3
	cohereAnswers                // <|START_ACTION|>[{"tool_name": ..., "parameters": {...}}]<|END_ACTION|>: Command R7B
	gemmaAnswers                 // <|tool_call>call:f{x:1}<tool_call|>: Gemma 4
	nemotronAnswers              // <TOOLCALL>[{"name": ..., "arguments": {...}}]</TOOLCALL>: Nemotron
	wrappedAnswers               // <answer>...</answer>, and calls as in taggedAnswers: Hunyuan
)

// The texts around calls of nemotronAnswers.
const (
	nemotronCalls    = "<TOOLCALL>"
	nemotronCallsEnd = "</TOOLCALL>"
)

// formatOf determines the answer format of a template's family from the template's source.
func formatOf(source string) answerFormat {
	for _, f := range []struct {
		mark   string
		format answerFormat
	}{
		{"<|channel|>", harmonyAnswers}, {gemmaCall, gemmaAnswers}, {"[TOOL_CALLS]", mistralAnswers}, {"<seed:tool_call>", seedAnswers},
		{"<minimax:tool_call>", minimaxAnswers}, {nemotronCalls, nemotronAnswers}, {"<｜tool▁calls▁begin｜>", deepseekAnswers}, {"<|START_ACTION|>", cohereAnswers},
		{"<answer>", wrappedAnswers}, {"<|header_start|>", fencedAnswers}, {"<tool_call>", taggedAnswers}, {"<|tool_call|>", bracketAnswers},
		{"<|tool|>", bracketAnswers}, {"<|start_header_id|>", bareAnswers}, {"<start_of_turn>", fencedAnswers},
	} {
		if strings.Contains(source, f.mark) {
			return f.format
		}
	}
	return plainAnswers
}

// Answer parses the output of a model of the template's family into reasoning, content and
// tool calls. text spells special tokens by name ("<|channel|>final<|message|>Hi"). Answer
// looks for calls only if tools is not empty. Llama 3 and Gemma 3 do not mark calls, so their
// calls must name one of the tools. An incomplete call remains part of the content. White space
// at the end of the content is left out if there are calls. Content that gpt-oss writes between
// its reasoning and a call counts as reasoning, because its template has only one field for
// both. IDs are empty for models that do not number their calls.
//
// The tag that begins the reasoning may be missing, because it can be part of the prompt.
func (t *Template) Answer(text string, tools []Tool) Message {
	opened := t.think.end != "" && !strings.HasPrefix(strings.TrimSpace(text), t.think.begin) && strings.Contains(text, t.think.end)
	s := t.stream(opened, tools)
	m := Message{Role: "assistant"}
	var reasoning, content strings.Builder
	for _, d := range append(s.Add(text), s.End()...) {
		reasoning.WriteString(d.Reasoning)
		content.WriteString(d.Content)
		if d.Call != nil {
			m.ToolCalls = append(m.ToolCalls, *d.Call)
		}
	}
	m.Content, m.Reasoning = content.String(), reasoning.String()
	return m
}

// jsonCalls parses calls in JSON: one object, a list of objects, or several objects separated
// by semicolons or white space. It returns nil for any other text.
func jsonCalls(text string) (calls []ToolCall) {
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "[") {
		var list []json.RawMessage
		if json.Unmarshal([]byte(text), &list) != nil {
			return nil
		}
		for _, raw := range list {
			c, ok := jsonCall(raw)
			if !ok {
				return nil
			}
			calls = append(calls, c)
		}
		return calls
	}
	for text != "" {
		var raw json.RawMessage
		dec := json.NewDecoder(strings.NewReader(text))
		if dec.Decode(&raw) != nil {
			return nil
		}
		c, ok := jsonCall(raw)
		if !ok {
			return nil
		}
		calls = append(calls, c)
		text = strings.TrimLeft(text[dec.InputOffset():], "; \t\n")
	}
	return calls
}

// jsonCall parses one call. The arguments may be a string that contains JSON.
func jsonCall(raw json.RawMessage) (ToolCall, bool) {
	var c struct {
		ID                    string
		Name                  string
		Arguments, Parameters json.RawMessage
		Function              json.RawMessage
	}
	if json.Unmarshal(raw, &c) != nil {
		return ToolCall{}, false
	}
	if c.Name == "" && len(c.Function) > 0 && json.Unmarshal(c.Function, &c.Name) != nil {
		inner, ok := jsonCall(c.Function)
		inner.ID = c.ID
		return inner, ok
	}
	arguments := c.Arguments
	if arguments == nil {
		arguments = c.Parameters
	}
	object, ok := jsonObject(arguments)
	return ToolCall{ID: c.ID, Name: c.Name, Arguments: object}, ok && c.Name != ""
}

// jsonObject returns an object unchanged, the content of a string that contains an object, and
// {} for empty raw.
func jsonObject(raw json.RawMessage) (json.RawMessage, bool) {
	raw = bytes.TrimSpace(raw)
	var text string
	if len(raw) > 0 && raw[0] == '"' && json.Unmarshal(raw, &text) == nil {
		raw = bytes.TrimSpace([]byte(text))
	}
	if len(raw) == 0 || string(raw) == "null" {
		return json.RawMessage("{}"), true
	}
	return raw, raw[0] == '{' && json.Valid(raw)
}

// taggedCall parses the text between Qwen's tags. It is JSON, Qwen3-Coder's form
// <function=f><parameter=x>1</parameter></function>, or GLM-4.5's form.
func taggedCall(text string) []ToolCall {
	if calls := jsonCalls(text); len(calls) == 1 {
		return calls
	}
	name, rest, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(text), "<function="), ">")
	if name = strings.TrimSpace(name); !ok || !isName(name) || !strings.HasPrefix(strings.TrimSpace(text), "<function=") {
		return glmCall(text)
	}
	var o objectWriter
	for {
		_, after, found := strings.Cut(rest, "<parameter=")
		if !found {
			return []ToolCall{{Name: name, Arguments: o.object()}}
		}
		key, value, ok := strings.Cut(after, ">")
		if !ok {
			return nil
		}
		value, rest, _ = strings.Cut(value, "</parameter>")
		value = strings.TrimSuffix(strings.TrimPrefix(value, "\n"), "\n")
		o.setValue(key, value)
	}
}

// objectWriter writes a JSON object and keeps the order of its keys.
type objectWriter struct{ b bytes.Buffer }

func (o *objectWriter) set(key string, value json.RawMessage) {
	if o.b.Len() > 0 {
		o.b.WriteString(", ")
	}
	o.b.Write(jsonText(key))
	o.b.WriteString(": ")
	o.b.Write(value)
}

func (o *objectWriter) setText(key, value string) { o.set(key, jsonText(value)) }

// setValue sets a value that is JSON, but not a string in JSON, or plain text.
func (o *objectWriter) setValue(key, value string) {
	if trimmed := strings.TrimSpace(value); json.Valid([]byte(trimmed)) && !strings.HasPrefix(trimmed, `"`) {
		o.set(key, json.RawMessage(trimmed))
	} else {
		o.setText(key, value)
	}
}

func (o *objectWriter) object() json.RawMessage { return json.RawMessage("{" + o.b.String() + "}") }

// jsonText returns a string as JSON, without HTML escapes.
func jsonText(s string) json.RawMessage {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // encoding a string cannot fail
	return bytes.TrimSpace(b.Bytes())
}

// mistralCalls parses the text after [TOOL_CALLS]: JSON, or the later form
// name[ARGS]{...}[TOOL_CALLS]name[ARGS]{...}.
func mistralCalls(text string) []ToolCall {
	if calls := jsonCalls(text); calls != nil {
		return calls
	}
	var calls []ToolCall
	for one := range strings.SplitSeq(text, "[TOOL_CALLS]") {
		name, arguments, ok := strings.Cut(one, "[ARGS]")
		if i := strings.IndexByte(one, '{'); !ok && i > 0 {
			name, arguments = one[:i], one[i:]
		}
		name, id, _ := strings.Cut(name, "[CALL_ID]")
		object, ok := jsonObject(json.RawMessage(arguments))
		if name = strings.TrimSpace(name); !ok || arguments == "" || !isName(name) {
			return nil
		}
		calls = append(calls, ToolCall{ID: strings.TrimSpace(id), Name: name, Arguments: object})
	}
	return calls
}

// named reports whether calls is not empty and every call names one of the tools.
func named(calls []ToolCall, tools []Tool) bool {
	for _, c := range calls {
		known := false
		for _, t := range tools {
			known = known || t.Name == c.Name
		}
		if !known {
			return false
		}
	}
	return len(calls) > 0
}

func isName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return !unicode.IsLetter(c) && !unicode.IsDigit(c) && !strings.ContainsRune("_-.:", c)
	})
}

// unfenced removes the fence of a code block: ```json, ```tool_code.
func unfenced(text string) string {
	text = strings.TrimSpace(text)
	if rest, ok := strings.CutPrefix(text, "```"); ok {
		if _, inner, ok := strings.Cut(rest, "\n"); ok {
			return strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(inner), "```"))
		}
	}
	return text
}
