package responses

import (
	"encoding/json"
	"fmt"

	"github.com/pianola-engine/pianola/internal/serve/fields"
)

// request is a request for a response.
type request struct {
	model                     string
	input                     fields.Value
	instructions, previous    *string
	tools                     []function
	toolChoice                string
	parallel, store, stream   bool
	maxTokens, maxCalls       *int
	temperature, topP         float64
	presence, frequency       float64
	topLogProbs               int
	logProbs                  bool // log-probabilities are part of the output text
	effort, summary           *string
	metadata                  map[string]string
	user, safety, promptCache *string
}

// function is a function that the model may call.
type function struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description *string         `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
	Strict      bool            `json:"strict"` // always false
}

// The bounds of a request.
const (
	maxItems     = 4096
	maxParts     = 1024
	maxFunctions = 1024
	maxTokens    = 1 << 30
	maxInclude   = 16
	// OpenAI's bounds of metadata.
	maxPairs, maxKey, maxValue = 16, 64, 512
)

// unconstrained explains why a request is refused that needs constrained decoding.
const unconstrained = "it needs constrained decoding, which this service does not have"

// requestFields are the fields of a request for a response.
var requestFields = []fields.Field[request]{
	{Name: "model", Doc: "may be absent if the service has one model", Read: func(r *request, v fields.Value) error { return v.Text(&r.model) }},
	{Name: "input", Doc: "a text, or the items message, reasoning, function_call, function_call_output and item_reference, with parts of text",
		Read: func(r *request, v fields.Value) error { r.input = v; return nil }},
	{Name: "instructions", Read: func(r *request, v fields.Value) error { return text(&r.instructions, v) }},
	{Name: "previous_response_id", Doc: "of a response that is still kept in memory",
		Read: func(r *request, v fields.Value) error { return text(&r.previous, v) }},
	{Name: "store", Doc: "true by default", Read: func(r *request, v fields.Value) error { return v.Bool(&r.store) }},
	{Name: "stream", Read: func(r *request, v fields.Value) error { return v.Bool(&r.stream) }},
	{Name: "max_output_tokens", Read: func(r *request, v fields.Value) error { return count(&r.maxTokens, v) }},
	{Name: "temperature", Doc: "1 by default", Read: func(r *request, v fields.Value) error { return v.Number(&r.temperature, 0, 2) }},
	{Name: "top_p", Read: func(r *request, v fields.Value) error { return v.Number(&r.topP, 0, 1) }},
	{Name: "presence_penalty", Doc: "of Open Responses", Read: func(r *request, v fields.Value) error { return v.Number(&r.presence, -2, 2) }},
	{Name: "frequency_penalty", Doc: "of Open Responses", Read: func(r *request, v fields.Value) error { return v.Number(&r.frequency, -2, 2) }},
	{Name: "top_logprobs", Doc: "0 to 20; more than 0 adds log-probabilities to the output text", Read: func(r *request, v fields.Value) error {
		err := v.Int(&r.topLogProbs, 0, 20)
		r.logProbs = r.logProbs || r.topLogProbs > 0
		return err
	}},
	{Name: "include", Read: readInclude,
		Doc: "`message.output_text.logprobs`; `reasoning.encrypted_content` has no effect, because reasoning is not encrypted"},
	{Name: "tools", Doc: "functions; `strict` must be false or absent, which means false", Read: readTools},
	{Name: "tool_choice", Doc: "`auto` and `none`", Read: readToolChoice},
	{Name: "parallel_tool_calls", Doc: "false ends an answer after its first call", Read: func(r *request, v fields.Value) error { return v.Bool(&r.parallel) }},
	{Name: "reasoning", Doc: "`effort` is `reasoning_effort` of the chat template, and turns `enable_thinking` off if it is `none`; a template that knows neither ignores it. `summary` may be `auto`",
		Read: func(r *request, v fields.Value) error { return fields.Read(v, reasoningFields, r) }},
	{Name: "text", Doc: "the format `text` and the verbosity `medium`", Read: func(r *request, v fields.Value) error { return fields.Read(v, textFields, r) }},
	{Name: "metadata", Read: readMetadata},
	{Name: "truncation", Doc: "`disabled`: a conversation that does not fit is refused", Read: func(_ *request, v fields.Value) error {
		return v.Choice(new(string), "disabled")
	}},
	{Name: "background", Doc: "false", Read: readBackground},
	{Name: "service_tier", Doc: "`auto` and `default`; has no effect", Read: func(_ *request, v fields.Value) error {
		return v.Choice(new(string), "auto", "default")
	}},
	{Name: "max_tool_calls", Doc: "returned; limits built-in tools, of which there are none", Read: func(r *request, v fields.Value) error { return count(&r.maxCalls, v) }},
	{Name: "user", Doc: "returned", Read: func(r *request, v fields.Value) error { return text(&r.user, v) }},
	{Name: "safety_identifier", Doc: "returned", Read: func(r *request, v fields.Value) error { return text(&r.safety, v) }},
	{Name: "prompt_cache_key", Doc: "returned", Read: func(r *request, v fields.Value) error { return text(&r.promptCache, v) }},
	{Name: "prompt_cache_retention", Doc: "prompts are cached as long as there is room"},
	{Name: "prompt_cache_options", Doc: "prompts are cached as long as there is room"},
	{Name: "stream_options", Doc: "streams have no obfuscation"},
	{Name: "conversation", Refused: "previous_response_id continues a conversation"},
	{Name: "prompt", Refused: "there are no stored prompts"},
	{Name: "context_management", Refused: "conversations are not compacted"},
	{Name: "moderation", Refused: "nothing is moderated"},
}

// newRequest returns a request with the values of absent fields.
func newRequest() *request {
	return &request{temperature: 1, topP: 1, parallel: true, store: true, toolChoice: "auto", metadata: map[string]string{}}
}

// text sets an optional text.
func text(into **string, v fields.Value) error {
	*into = new(string)
	return v.Text(*into)
}

// count sets an optional number of at least 1.
func count(into **int, v fields.Value) error {
	*into = new(int)
	return v.Int(*into, 1, maxTokens)
}

// readInclude reads what a response shall include.
func readInclude(r *request, v fields.Value) error {
	list, err := v.List(maxInclude)
	for _, one := range list {
		var name string
		if err := one.Choice(&name, "message.output_text.logprobs", "reasoning.encrypted_content"); err != nil {
			return err
		}
		if name == "message.output_text.logprobs" {
			r.logProbs = true
		}
	}
	return err
}

// readTools reads the functions that the model may call.
func readTools(r *request, v fields.Value) error {
	list, err := v.List(maxFunctions)
	for _, one := range list {
		kind, err := typeOf(one)
		if err != nil {
			return err
		}
		if kind != "function" {
			return &fields.Error{Param: one.Path + ".type", Why: fmt.Sprintf("tools of type %.80q are not supported", kind)}
		}
		f := function{Type: kind, Parameters: json.RawMessage("{}")}
		if err := fields.Read(one, functionFields, &f); err != nil {
			return err
		}
		if f.Name == "" {
			return &fields.Error{Param: one.Path + ".name", Why: "a function needs a name"}
		}
		r.tools = append(r.tools, f)
	}
	return err
}

// functionFields are the fields of a function.
var functionFields = []fields.Field[function]{
	{Name: "type", Doc: "`function`; it is read before the other fields"},
	{Name: "name", Read: func(f *function, v fields.Value) error { return v.Text(&f.Name) }},
	{Name: "description", Read: func(f *function, v fields.Value) error { return text(&f.Description, v) }},
	{Name: "parameters", Read: func(f *function, v fields.Value) error {
		f.Parameters = v.Raw
		_, err := v.Members()
		return err
	}},
	{Name: "strict", Doc: "false, also if it is absent", Read: func(f *function, v fields.Value) error {
		if err := v.Bool(&f.Strict); err == nil && f.Strict {
			return v.Errorf("strict is not supported: %s", unconstrained)
		} else if err != nil {
			return err
		}
		return nil
	}},
}

// readToolChoice reads whether the model may call functions.
func readToolChoice(r *request, v fields.Value) error {
	if v.Kind() == "a string" {
		if err := v.Text(&r.toolChoice); err == nil && (r.toolChoice == "auto" || r.toolChoice == "none") {
			return nil
		}
	}
	return v.Errorf("only auto and none are supported: to require a call needs constrained decoding, which this service does not have")
}

// efforts are the values of reasoning.effort.
var efforts = []string{"none", "minimal", "low", "medium", "high", "xhigh", "max"}

// reasoningFields are the fields of reasoning.
var reasoningFields = []fields.Field[request]{
	{Name: "effort", Doc: "`none` to `max`", Read: func(r *request, v fields.Value) error {
		r.effort = new(string)
		return v.Choice(r.effort, efforts...)
	}},
	{Name: "summary", Doc: "`auto`; there are no summaries, because the reasoning itself is returned", Read: func(r *request, v fields.Value) error {
		r.summary = new(string)
		return v.Choice(r.summary, "auto")
	}},
	{Name: "generate_summary", Refused: "the reasoning itself is returned"},
	{Name: "context", Refused: "the chat template decides which reasoning it renders"},
	{Name: "mode", Refused: "there is one mode"},
}

// textFields are the fields of text.
var textFields = []fields.Field[request]{
	{Name: "format", Doc: "`text`", Read: func(_ *request, v fields.Value) error {
		kind, err := typeOf(v)
		if err != nil || kind == "text" {
			return err
		}
		return v.Errorf("the format %.80q is not supported: %s", kind, unconstrained)
	}},
	{Name: "verbosity", Doc: "`medium`", Read: func(_ *request, v fields.Value) error { return v.Choice(new(string), "medium") }},
}

// readMetadata reads the metadata.
func readMetadata(r *request, v fields.Value) error {
	pairs, err := v.Members()
	if len(pairs) > maxPairs {
		return v.Errorf("at most %d pairs are allowed", maxPairs)
	}
	for name, of := range pairs {
		var s string
		if err := of.Text(&s); err != nil {
			return err
		}
		if len(name) > maxKey || len(s) > maxValue {
			return v.Errorf("a name may have %d bytes, and a value %d", maxKey, maxValue)
		}
		r.metadata[name] = s
	}
	return err
}

// readBackground refuses responses in the background.
func readBackground(_ *request, v fields.Value) error {
	var on bool
	if err := v.Bool(&on); err != nil {
		return err
	}
	if on {
		return v.Errorf("background is not supported: a response ends with its request")
	}
	return nil
}

// typeOf returns the type of an object.
func typeOf(v fields.Value) (string, error) {
	members, err := v.Members()
	if err != nil {
		return "", err
	}
	of, ok := members["type"]
	if !ok {
		return "", v.Errorf("an object needs a type")
	}
	var kind string
	err = of.Text(&kind)
	return kind, err
}

// Table returns the table of the fields of a request, for documents: name, support and description.
func Table() [][3]string {
	var rows [][3]string
	for i := range requestFields {
		f := &requestFields[i]
		doc := f.Doc
		if f.Refused != "" {
			doc = f.Refused
		}
		rows = append(rows, [3]string{f.Name, f.Support(), doc})
	}
	return rows
}
