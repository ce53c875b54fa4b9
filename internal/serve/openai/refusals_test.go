package openai

import (
	"net/http"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/serve/backend"
	"github.com/pianola-engine/pianola/internal/serve/enginetest"
)

const (
	chatPath       = "/v1/chat/completions"
	completionPath = "/v1/completions"
	hi             = `"messages":[{"role":"user","content":"Hi"}]`
)

// refusals are requests that are refused, with the status, the parameter and a part of the message.
var refusals = []struct {
	path, body, param, why string
	status                 int
}{
	{chatPath, `{`, "", "ends within", 400},
	{chatPath, ``, "", "empty", 400},
	{chatPath, `[]`, "", "want an object", 400},
	{chatPath, `{` + hi + `,` + hi + `}`, "", "occurs twice", 400},
	{chatPath, `{` + hi + `} {}`, "", "more than one", 400},
	{chatPath, "{\"model\":\"\xff\"}", "", "UTF-8", 400},
	{chatPath, strings.Repeat("[", 100000), "", "nested", 400},
	{chatPath, `{"model":"other",` + hi + `}`, "model", "no such model", 404},
	{chatPath, `{"model":"../../etc/passwd",` + hi + `}`, "model", "no such model", 404},
	{chatPath, `{"model":"other","stream":true,` + hi + `}`, "model", "no such model", 404},
	{chatPath, `{"model":7,` + hi + `}`, "model", "want a string", 400},
	{chatPath, `{}`, "messages", "must have a message", 400},
	{chatPath, `{"messages":[]}`, "messages", "must have a message", 400},
	{chatPath, `{"messages":[123]}`, "messages[0]", "want an object", 400},
	{chatPath, `{"messages":[{}]}`, "messages[0]", "must have a role", 400},
	{chatPath, `{"messages":[{"role":123}]}`, "messages[0].role", "want a string", 400},
	{chatPath, `{"messages":[{"role":"user","content":"Hi"},{}]}`, "messages[1]", "must have a role", 400},
	{chatPath, `{` + hi + `,"timings_per_token":true}`, "timings_per_token", "not known", 400},
	{chatPath, `{` + hi + `,"response_format":{"type":"sound"}}`, "response_format.type", "not supported", 400},
	{chatPath, `{"messages":"Hi"}`, "messages", "want a list", 400},
	{chatPath, `{"messages":[{"content":"Hi"}]}`, "messages[0]", "must have a role", 400},
	{chatPath, `{"messages":[{"role":"wizard","content":"Hi"}]}`, "messages[0].role", "not one of", 400},
	{chatPath, `{"messages":[{"role":"function","name":"f","content":"Hi"}]}`, "messages[0].role", "use tools", 400},
	{chatPath, `{"messages":[{"role":"user","content":5}]}`, "messages[0].content", "string or a list", 400},
	{chatPath, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`, "messages[0].content[0].type", "image_url", 400},
	{chatPath, `{"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{}}]}]}`, "messages[0].content[0].type", "input_audio", 400},
	{chatPath, `{"messages":[{"role":"user","content":[{"text":"x"}]}]}`, "messages[0].content[0]", "must have a type", 400},
	{chatPath, `{"messages":[{"role":"user","content":"x","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":""}}]}]}`, "messages[0]", "only the assistant", 400},
	{chatPath, `{"messages":[{"role":"assistant","function_call":{"name":"f"}}]}`, "messages[0].function_call", "use tool_calls", 400},
	{chatPath, `{` + hi + `,"tools":[{"type":"custom","custom":{"name":"f"}}]}`, "tools[0].type", "custom", 400},
	{chatPath, `{` + hi + `,"tools":[{"type":"function"}]}`, "tools[0]", "with a name", 400},
	{chatPath, `{` + hi + `,"tools":[{"type":"function","function":{"name":"a b"}}]}`, "tools[0].function.name", "letters", 400},
	{chatPath, `{` + hi + `,"tools":[{"type":"function","function":{"name":"f","strict":true}}]}`, "tools[0].function.strict", "constrained decoding", 400},
	{chatPath, `{` + hi + `,"tools":[{"type":"function","function":{"name":"f","parameters":[]}}]}`, "tools[0].function.parameters", "JSON schema", 400},
	{chatPath, `{` + hi + `,"tool_choice":"required"}`, "tool_choice", "constrained decoding", 400},
	{chatPath, `{` + hi + `,"tool_choice":{"type":"function","function":{"name":"f"}}}`, "tool_choice", "constrained decoding", 400},
	{chatPath, `{` + hi + `,"functions":[{"name":"f"}]}`, "functions", "use tools", 400},
	{chatPath, `{` + hi + `,"function_call":"auto"}`, "function_call", "use tool_choice", 400},
	{chatPath, `{` + hi + `,"response_format":{"type":"json_object"}}`, "response_format.type", "constrained decoding", 400},
	{chatPath, `{` + hi + `,"response_format":{"type":"json_schema","json_schema":{}}}`, "response_format.type", "constrained decoding", 400},
	{chatPath, `{` + hi + `,"guided_json":{}}`, "guided_json", "constrained decoding", 400},
	{chatPath, `{` + hi + `,"modalities":["text","audio"]}`, "modalities[1]", "text only", 400},
	{chatPath, `{` + hi + `,"audio":{}}`, "audio", "text only", 400},
	{chatPath, `{` + hi + `,"verbosity":"low"}`, "verbosity", "no such setting", 400},
	{chatPath, `{` + hi + `,"temperature":2.1}`, "temperature", "between 0 and 2", 400},
	{chatPath, `{` + hi + `,"temperature":-0.1}`, "temperature", "between 0 and 2", 400},
	{chatPath, `{` + hi + `,"temperature":"1"}`, "temperature", "want a number", 400},
	{chatPath, `{` + hi + `,"top_p":1.5}`, "top_p", "between 0 and 1", 400},
	{chatPath, `{` + hi + `,"top_k":-2}`, "top_k", "between", 400},
	{chatPath, `{` + hi + `,"presence_penalty":3}`, "presence_penalty", "between -2 and 2", 400},
	{chatPath, `{` + hi + `,"n":0}`, "n", "between 1 and 16", 400},
	{chatPath, `{` + hi + `,"n":17}`, "n", "between 1 and 16", 400},
	{chatPath, `{` + hi + `,"max_tokens":0}`, "max_tokens", "between", 400},
	{chatPath, `{` + hi + `,"max_tokens":1.5}`, "max_tokens", "integer", 400},
	{chatPath, `{` + hi + `,"top_logprobs":2}`, "top_logprobs", "logprobs must be true", 400},
	{chatPath, `{` + hi + `,"logprobs":true,"top_logprobs":21}`, "top_logprobs", "between 0 and 20", 400},
	{chatPath, `{` + hi + `,"logit_bias":{"x":1}}`, "logit_bias", "not a token", 400},
	{chatPath, `{` + hi + `,"logit_bias":{"5":101}}`, "logit_bias.5", "between -100 and 100", 400},
	{chatPath, `{` + hi + `,"logit_bias":{"99999":1}}`, "logit_bias", "vocabulary", 400},
	{chatPath, `{` + hi + `,"stop":""}`, "stop", "1 to 1024 bytes", 400},
	{chatPath, `{` + hi + `,"stop":["a",1]}`, "stop[1]", "want a string", 400},
	{chatPath, `{` + hi + `,"stream":"yes"}`, "stream", "want a boolean", 400},
	{chatPath, `{` + hi + `,"stream_options":{"x":1}}`, "stream_options.x", "not known", 400},
	{chatPath, `{` + hi + `,"frobnicate":1}`, "frobnicate", "not known", 400},
	{chatPath, `{` + hi + `,"Temperature":1}`, "Temperature", "not known", 400},
	{chatPath, `{` + hi + `,"continue_final_message":true}`, "continue_final_message", "not the assistant's", 400},
	{chatPath, `{` + hi + `,"add_generation_prompt":false}`, "add_generation_prompt", "either", 400},
	{chatPath, `{"messages":[{"role":"user","content":"` + strings.Repeat("x", 5000) + `"}]}`, "", "context", 400},
	{chatPath, `{"stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("x", 5000) + `"}]}`, "", "context", 400},
	{completionPath, `{}`, "prompt", "required", 400},
	{completionPath, `{"prompt":[]}`, "prompt", "empty", 400},
	{completionPath, `{"prompt":[1,"a"]}`, "prompt", "list of tokens", 400},
	{completionPath, `{"prompt":["a",{}]}`, "prompt[1]", "want a string", 400},
	{completionPath, `{"prompt":[-1]}`, "prompt[0]", "not a token", 400},
	{completionPath, `{"prompt":[99999]}`, "prompt", "vocabulary", 400},
	{completionPath, `{"prompt":""}`, "prompt", "no tokens", 400},
	{completionPath, `{"prompt":"a","echo":true}`, "echo", "not supported", 400},
	{completionPath, `{"prompt":"a","suffix":"b"}`, "suffix", "not supported", 400},
	{completionPath, `{"prompt":"a","best_of":2}`, "best_of", "not supported", 400},
	{completionPath, `{"prompt":"a","logprobs":21}`, "logprobs", "between 0 and 20", 400},
	{completionPath, `{"prompt":"a","messages":[]}`, "messages", "not known", 400},
	{"/v1/embeddings", `{}`, "input", "required", 400},
	{"/v1/embeddings", `{"input":[]}`, "input", "empty", 400},
	{"/v1/embeddings", `{"input":"a","dimensions":4}`, "dimensions", "8 elements", 400},
	{"/v1/embeddings", `{"input":"a","encoding_format":"hex"}`, "encoding_format", "float, base64", 400},
	{"/v1/embeddings", `{"input":[99999]}`, "input", "vocabulary", 400},
	{"/v1/rerank", `{"documents":["a"]}`, "query", "required", 400},
	{"/rerank", `{"query":"a","documents":[]}`, "documents", "no documents", 400},
	{"/rerank", `{"query":"a","documents":123}`, "documents", "want a list", 400},
	{"/rerank", `{"query":"a","documents":[1,2]}`, "documents[0]", "want a string", 400},
	{"/rerank", `{"query":"a"}`, "documents", "no documents", 400},
	{"/v1/rerank", `{"query":"a","documents":["a"],"top_n":0}`, "top_n", "between", 400},
	{"/v1/rerank", `{"query":"a","documents":[{"txt":"a"}]}`, "documents[0].txt", "not known", 400},
	{"/tokenize", `{}`, "prompt", "required", 400},
	{"/tokenize", `{"content":"a",` + hi + `}`, "prompt", "either", 400},
	{"/detokenize", `{}`, "tokens", "required", 400},
	{"/detokenize", `{"tokens":[99999]}`, "tokens", "vocabulary", 400},
	{"/detokenize", `{"tokens":"a"}`, "tokens", "want a list", 400},
}

// TestRefusals sends requests that are refused.
func TestRefusals(t *testing.T) {
	s := start(t, enginetest.Options{Reply: answers}, backend.Limits{})
	for _, c := range refusals {
		status, text := s.do(t, http.MethodPost, c.path, c.body)
		f := checkFailure(t, text)
		param := ""
		if f.Param != nil {
			param = *f.Param
		}
		if status != c.status || param != c.param || !strings.Contains(f.Message, c.why) {
			t.Errorf("%s %.100s: %d, %s, want %d about %q: %s", c.path, c.body, status, text, c.status, c.param, c.why)
		}
	}
	if s.models.acquired != 0 {
		t.Errorf("%d models have not been released", s.models.acquired)
	}
}

// TestUnable sends requests to a model that can generate text only.
func TestUnable(t *testing.T) {
	s := start(t, enginetest.Options{Bare: true}, backend.Limits{})
	for path, body := range map[string]string{
		chatPath: `{` + hi + `}`, "/v1/embeddings": `{"input":"a"}`, "/v1/rerank": `{"query":"a","documents":["a"]}`, "/tokenize": `{` + hi + `}`,
	} {
		status, text := s.do(t, http.MethodPost, path, body)
		if f := checkFailure(t, text); status != 400 || f.Code == nil || *f.Code != "unsupported" {
			t.Errorf("%s: %d, %s", path, status, text)
		}
	}
	if status, text := s.do(t, http.MethodPost, completionPath, `{"prompt":"a"}`); status != 200 {
		t.Errorf("%d, %s", status, text)
	}
}

// TestAccepted sends what clients send besides what they want: nulls, empty lists, and fields that change
// nothing.
func TestAccepted(t *testing.T) {
	s := start(t, enginetest.Options{Reply: answers}, backend.Limits{})
	for _, extra := range []string{
		`"stream":false,"tools":[],"max_tokens":null,"stop":null,"tool_choice":"none","logit_bias":{},"n":1`,
		`"tools":null,"tool_choice":null,"functions":null,"function_call":null,"response_format":null,"logprobs":false,"top_logprobs":0,"unknown":null`,
		`"user":"u","store":true,"metadata":{"a":"b"},"service_tier":"auto","safety_identifier":"x","prompt_cache_key":"k","prompt_cache_retention":"24h","prediction":{"type":"content","content":"x"}`,
		`"response_format":{"type":"text"},"modalities":["text"],"tool_choice":"auto","parallel_tool_calls":true,"stream_options":null`,
		`"temperature":0,"top_p":0,"top_k":-1,"min_p":0.05,"repetition_penalty":1.1,"presence_penalty":0.0,"frequency_penalty":0,"seed":-1,"ignore_eos":false,"priority":1,"cache_prompt":true,"cache_salt":"s"`,
		`"max_completion_tokens":20,"max_tokens":30,"stop":["\u0000x"],"reasoning_effort":"none","chat_template_kwargs":{"enable_thinking":false,"x":[1]},"add_generation_prompt":true,"continue_final_message":false`,
	} {
		if status, text := s.do(t, http.MethodPost, chatPath, `{`+hi+`,`+extra+`}`); status != 200 {
			t.Errorf("%s: %d, %s", extra, status, text)
		}
	}
	for _, messages := range []string{
		`{"role":"assistant","content":null,"refusal":null,"annotations":[],"audio":null,"function_call":null,"tool_calls":[{"index":0,"id":"x","type":"function","function":{"name":"f","arguments":""}}]},{"role":"tool","tool_call_id":"x","content":[{"type":"text","text":"y"}]}`,
		`{"role":"assistant","content":"","tool_calls":[],"reasoning_content":"hm","id":"msg"},{"role":"user","content":[],"name":"me"}`,
		`{"role":"assistant","refusal":"no"},{"role":"user","content":[{"type":"text","text":"y","cache_control":{"type":"ephemeral"}}]}`,
	} {
		if status, text := s.do(t, http.MethodPost, chatPath, `{"messages":[{"role":"system","content":"s"},{"role":"user","content":"Hi"},`+messages+`]}`); status != 200 {
			t.Errorf("%s: %d, %s", messages, status, text)
		}
	}
}

// TestStatuses checks the statuses that do not come from a body.
func TestStatuses(t *testing.T) {
	s := start(t, enginetest.Options{Reply: answers}, backend.Limits{Body: 1000})
	for _, c := range []struct {
		method, path, kind, timeout, body string
		status                            int
	}{
		{http.MethodPost, chatPath, "text/plain", "", `{` + hi + `}`, 415},
		{http.MethodPost, chatPath, "application/json", "", `{` + hi + strings.Repeat(" ", 1000) + `}`, 413},
		{http.MethodPost, chatPath, "application/json", "soon", `{` + hi + `}`, 400},
		{http.MethodPost, chatPath, "application/json", "60", `{` + hi + `}`, 200},
		{http.MethodGet, chatPath, "", "", "", 405},
		{http.MethodDelete, "/v1/models", "", "", "", 405},
		{http.MethodPost, "/v1/other", "", "", "", 404},
	} {
		r, err := http.NewRequest(c.method, s.URL+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", c.kind)
		r.Header.Set(backend.TimeoutHeader, c.timeout)
		reply, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		reply.Body.Close()
		if reply.StatusCode != c.status {
			t.Errorf("%s %s %q %q: %s, want %d", c.method, c.path, c.kind, c.timeout, reply.Status, c.status)
		}
	}
}

// FuzzChatRequest and the other targets send bodies to the endpoints. Whatever a body has, the reply is
// 200, or an error in the form of OpenAI with a status of the client's fault.
func FuzzChatRequest(f *testing.F)       { fuzz(f, chatPath) }
func FuzzCompletionRequest(f *testing.F) { fuzz(f, completionPath) }
func FuzzEmbeddingRequest(f *testing.F)  { fuzz(f, "/v1/embeddings") }
func FuzzRerankRequest(f *testing.F)     { fuzz(f, "/v1/rerank") }
func FuzzTokenizeRequest(f *testing.F)   { fuzz(f, "/tokenize") }
func FuzzDetokenizeRequest(f *testing.F) { fuzz(f, "/detokenize") }

// fuzz sends bodies to an endpoint. The seeds are the requests of the other tests.
func fuzz(f *testing.F, path string) {
	for _, c := range transcripts {
		if c.path == path {
			f.Add(c.body)
		}
	}
	for _, c := range refusals {
		if c.path == path && len(c.body) < 1000 {
			f.Add(c.body)
		}
	}
	s := start(f, enginetest.Options{}, backend.Limits{})
	f.Fuzz(func(t *testing.T, body string) {
		status, text := s.handle(path, body)
		switch {
		case status == 200 && strings.HasPrefix(text, "data: "):
			if !strings.HasSuffix(text, "data: [DONE]\n\n") && !strings.Contains(text, `data: {"error":`) {
				t.Errorf("%q: the stream has no end: %s", body, text)
			}
		case status == 200:
		case status == 400 || status == 404:
			checkFailure(t, text)
		default:
			t.Errorf("%q: %d, %s", body, status, text)
		}
		if s.models.acquired != 0 {
			t.Errorf("%q: the model has not been released", body)
		}
	})
}
