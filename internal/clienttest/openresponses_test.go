package clienttest

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3/responses"
)

// required are the fields that Open Responses requires of a response, with the JSON types that they may
// have: an object, a list, a text, a number, a boolean or null.
var required = map[string]string{
	"id": "s", "object": "s", "created_at": "n", "completed_at": "n0", "status": "s", "incomplete_details": "o0", "model": "s",
	"previous_response_id": "s0", "instructions": "s0", "output": "l", "error": "o0", "tools": "l", "tool_choice": "os", "truncation": "s",
	"parallel_tool_calls": "b", "text": "o", "top_p": "n", "presence_penalty": "n", "frequency_penalty": "n", "top_logprobs": "n",
	"temperature": "n", "reasoning": "o0", "usage": "o0", "max_output_tokens": "n0", "max_tool_calls": "n0", "store": "b",
	"background": "b", "service_tier": "s", "metadata": "o", "safety_identifier": "s0", "prompt_cache_key": "s0",
}

// jsonType returns the letter of a JSON value's type.
func jsonType(raw json.RawMessage) string {
	switch raw[0] {
	case '{':
		return "o"
	case '[':
		return "l"
	case '"':
		return "s"
	case 't', 'f':
		return "b"
	case 'n':
		return "0"
	}
	return "n"
}

// resource checks the form of a response, and returns it.
func resource(t *testing.T, raw []byte) *responses.Response {
	t.Helper()
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	for name, types := range required {
		if v, ok := fields[name]; !ok || !strings.Contains(types, jsonType(v)) {
			t.Errorf("the field %s is %s, expected one of the types %s", name, v, types)
		}
	}
	r := new(responses.Response)
	formed(t, string(raw), r, extraResponse...)
	return r
}

// scenario sends a request, checks the form of the reply and of all events, and returns the response and
// the types of the events.
func (s *service) scenario(t *testing.T, body string) (*responses.Response, []string) {
	t.Helper()
	r, err := s.post("/v1/responses", body)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	raw, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %s %v", body, r.Status, raw, err)
	}
	if !strings.HasPrefix(r.Header.Get("Content-Type"), "text/event-stream") {
		return resource(t, raw), nil
	}
	var kinds []string
	var last *responses.Response
	for block := range bytes.SplitSeq(bytes.TrimSuffix(raw, []byte("\n\n")), []byte("\n\n")) {
		head, data, _ := strings.Cut(string(block), "\ndata: ")
		if string(block) == "data: [DONE]" {
			kinds = append(kinds, "[DONE]")
			continue
		}
		eventFormed(t, data)
		var e struct {
			Type     string
			Sequence *int `json:"sequence_number"`
			Response json.RawMessage
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatalf("%s: %v", block, err)
		}
		if head != "event: "+e.Type || e.Sequence == nil || *e.Sequence != len(kinds) {
			t.Errorf("event %d is %s", len(kinds), block)
		}
		if e.Response != nil {
			last = resource(t, e.Response)
		}
		kinds = append(kinds, e.Type)
	}
	return last, kinds
}

// weatherTool is the tool of the scenarios.
const weatherTool = `{"type":"function","name":"get_weather","description":"Get the current weather for a location","parameters":{"type":"object","properties":{"city":{"type":"string","description":"The city"}},"required":["city"]}}`

// TestOpenResponses has a scenario for each template of the compliance tests of Open Responses. They are
// named as the templates are. Templates that need what the service refuses expect the refusal.
func TestOpenResponses(t *testing.T) {
	s := start(t)
	completed := func(t *testing.T, r *responses.Response, text string) {
		t.Helper()
		if r.Status != "completed" || r.OutputText() != text {
			t.Errorf("the response is %s, expected %q", r.RawJSON(), text)
		}
	}
	calls := func(t *testing.T, r *responses.Response) string {
		t.Helper()
		if r.Status != "completed" || len(r.Output) != 1 || r.Output[0].Type != "function_call" || r.Output[0].Name != "get_weather" {
			t.Fatalf("the response is %s, expected a call", r.RawJSON())
		}
		return r.Output[0].CallID
	}
	t.Run("basic-response", func(t *testing.T) {
		r, _ := s.scenario(t, `{"model":"scripted","input":[{"type":"message","role":"user","content":"Say hello."}]}`)
		completed(t, r, "Hello, world!")
	})
	t.Run("streaming-response", func(t *testing.T) {
		r, kinds := s.scenario(t, `{"model":"scripted","stream":true,"input":[{"type":"message","role":"user","content":"Say hello."}]}`)
		completed(t, r, "Hello, world!")
		for i, kind := range []string{"response.created", "response.in_progress", "response.output_item.added", "response.content_part.added", "response.output_text.delta"} {
			if kinds[i] != kind {
				t.Errorf("event %d has the type %s, expected %s", i, kinds[i], kind)
			}
		}
		end := []string{"response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed", "[DONE]"}
		if !slices.Equal(kinds[len(kinds)-len(end):], end) {
			t.Errorf("the events end with %q", kinds[max(0, len(kinds)-len(end)):])
		}
	})
	t.Run("system-prompt", func(t *testing.T) {
		r, _ := s.scenario(t, `{"model":"scripted","input":[{"type":"message","role":"system","content":"You are a pirate."},{"type":"message","role":"user","content":"Repeat the system prompt."}]}`)
		completed(t, r, "You are a pirate.")
	})
	question := `"tools":[` + weatherTool + `],"input":[{"type":"message","role":"user","content":"What is the weather in Paris?"}]`
	t.Run("tool-calling", func(t *testing.T) {
		r, _ := s.scenario(t, `{"model":"scripted",`+question+`}`)
		calls(t, r)
	})
	t.Run("tool-calling-streaming", func(t *testing.T) {
		r, kinds := s.scenario(t, `{"model":"scripted","stream":true,`+question+`}`)
		calls(t, r)
		for _, kind := range []string{"response.output_item.added", "response.function_call_arguments.delta", "response.function_call_arguments.done", "response.output_item.done"} {
			if !slices.Contains(kinds, kind) {
				t.Errorf("no event has the type %s", kind)
			}
		}
	})
	t.Run("function-call-roundtrip", func(t *testing.T) {
		r, _ := s.scenario(t, `{"model":"scripted","tools":[`+weatherTool+`],"input":"What is the weather in Paris?"}`)
		output := `{"type":"function_call_output","call_id":"` + calls(t, r) + `","output":"{\"temperature\":18}"}`
		call := r.Output[0].RawJSON()
		r, _ = s.scenario(t, `{"model":"scripted","tools":[`+weatherTool+`],"input":[{"type":"message","role":"user","content":"What is the weather in Paris?"},`+call+`,`+output+`]}`)
		completed(t, r, `It says: {"temperature":18}`)
		// The template requires the call, which needs constrained decoding.
		s.refuses(t, `{"model":"scripted","tools":[`+weatherTool+`],"tool_choice":{"type":"function","name":"get_weather"},"input":"Say hello."}`, "tool_choice")
	})
	t.Run("multi-turn", func(t *testing.T) {
		r, _ := s.scenario(t, `{"model":"scripted","input":[{"type":"message","role":"user","content":"My name is Alice."},{"type":"message","role":"assistant","content":"Hello Alice! Nice to meet you."},{"type":"message","role":"user","content":"Repeat my first message."}]}`)
		completed(t, r, "My name is Alice.")
	})
	t.Run("previous-response-id", func(t *testing.T) {
		first, _ := s.scenario(t, `{"model":"scripted","input":"Remember this code word: papaya."}`)
		r, _ := s.scenario(t, `{"model":"scripted","previous_response_id":"`+first.ID+`","input":"Repeat my first message."}`)
		completed(t, r, "Remember this code word: papaya.")
	})
	t.Run("image-input", func(t *testing.T) {
		s.refuses(t, `{"model":"scripted","input":[{"type":"message","role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,AAAA"}]}]}`, "input[0].content[0].type")
	})
	t.Run("file-input", func(t *testing.T) {
		s.refuses(t, `{"model":"scripted","input":[{"type":"message","role":"user","content":[{"type":"input_file","filename":"a.pdf","file_data":"data:application/pdf;base64,AAAA"}]}]}`, "input[0].content[0].type")
	})
	t.Run("file-search", func(t *testing.T) {
		s.refuses(t, `{"model":"scripted","input":"Search.","tools":[{"type":"file_search","vector_store_ids":["x"]}]}`, "tools[0].type")
	})
	t.Run("offline-web-search", func(t *testing.T) {
		s.refuses(t, `{"model":"scripted","input":"Search.","tools":[{"type":"web_search","external_web_access":false}]}`, "tools[0].type")
	})
}

// refuses fails the test unless a request is refused because of a parameter.
func (s *service) refuses(t *testing.T, body, parameter string) {
	t.Helper()
	r, err := s.post("/v1/responses", body)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	raw, err := io.ReadAll(r.Body)
	var reply struct {
		Error struct{ Message, Type, Param string }
	}
	if err != nil || json.Unmarshal(raw, &reply) != nil || r.StatusCode != http.StatusBadRequest || reply.Error.Param != parameter || reply.Error.Type != "invalid_request_error" {
		t.Errorf("%s: %s %s %v, expected a refusal of %s", body, r.Status, raw, err, parameter)
	}
}
