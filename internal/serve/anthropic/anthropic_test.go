package anthropic

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pianola-engine/pianola/internal/serve/backend"
	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/enginetest"
	"github.com/pianola-engine/pianola/internal/serve/transcript"
)

// handler returns the endpoints over models.
func handler(m backend.Models) http.Handler {
	mux := http.NewServeMux()
	// An error before the first event has its own status, however long it takes.
	New(Options{Models: m, Limits: backend.Limits{Grace: time.Hour}}).Register(mux)
	return mux
}

// serve returns the endpoints over a model that answers by a script.
func serve(t testing.TB, reply func(enginetest.Input) enginetest.Script) http.Handler {
	t.Helper()
	return handler(transcript.Scripted(t, reply))
}

const (
	hi    = `"max_tokens":100,"messages":[{"role":"user","content":"Hi"}]`
	tools = `"tools":[{"name":"get_weather","description":"Weather","input_schema":{"type":"object","properties":{"city":{"type":"string"}}}}]`
	// twice calls the tool twice.
	twice = `Let me see.<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>` +
		`<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>`
)

// steps returns a script of steps.
func steps(s ...enginetest.Step) func(enginetest.Input) enginetest.Script {
	return func(enginetest.Input) enginetest.Script { return enginetest.Script{Steps: s, Cached: 16} }
}

// TestTranscripts compares whole replies and streams with golden files.
func TestTranscripts(t *testing.T) {
	for name, c := range map[string]struct {
		reply func(enginetest.Input) enginetest.Script
		body  string
	}{
		"text":         {enginetest.Say("Hello <b>, wörld!"), hi + `,"system":"Be brief.","metadata":{"user_id":"me"}`},
		"cached":       {steps(enginetest.Words("Hello.")...), hi},
		"thinking":     {enginetest.Say("<think>Two and two.</think>4"), hi + `,"thinking":{"type":"enabled","budget_tokens":1024}`},
		"not-thinking": {enginetest.Say("<think>Two and two.</think>4"), hi},
		"calls":        {enginetest.Say(twice), hi + `,` + tools},
		"one-call":     {enginetest.Say(twice), hi + `,"tool_choice":{"type":"auto","disable_parallel_tool_use":true},` + tools},
		"length":       {enginetest.Say("one two three"), `"max_tokens":2,"messages":[{"role":"user","content":"Hi"}]`},
		"stop":         {enginetest.Say("one, two, three"), hi + `,"stop_sequences":[" two"]`},
		"empty":        {enginetest.Say(""), hi},
		"broken":       {steps(enginetest.Step{Text: "Half"}, enginetest.Step{Err: errors.New("secret of the device")}), hi},
		"busy":         {steps(enginetest.Step{Err: &engine.BusyError{}}), hi},
	} {
		t.Run(name, func(t *testing.T) {
			transcript.Golden(t, name, transcript.Both(serve(t, c.reply), "/v1/messages", c.body))
		})
	}
}

// TestConversation checks what the model sees of a conversation.
func TestConversation(t *testing.T) {
	var prompt string
	h := serve(t, func(in enginetest.Input) enginetest.Script {
		prompt = in.Prompt
		return enginetest.Say("Fine.")(in)
	})
	for _, c := range []struct{ body, want string }{
		{`"system":[{"type":"text","text":"A"},{"type":"text","text":"B"}],"messages":[{"role":"user","content":"C"}],"thinking":{"type":"adaptive"}`,
			"[system|A\n\nB][user|C][assistant|"},
		{`"messages":[{"role":"user","content":"C"}]`,
			"[user|C][assistant|<think>\n\n</think>\n\n"},
		{`"messages":[{"role":"user","content":"C"},{"role":"assistant","content":"I s"}]`,
			"[user|C][assistant|I s]"}, // the template of the test ends every message
		{`"thinking":{"type":"enabled","budget_tokens":1},"messages":[{"role":"user","content":"C"},
			{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"x"},{"type":"text","text":"D"},{"type":"tool_use","id":"t1","name":"f","input":{"x":1}}]},
			{"role":"user","content":[{"type":"text","text":"E"},{"type":"tool_result","tool_use_id":"t1","is_error":true,"content":[{"type":"text","text":"one"}]}]}]`,
			`[user|C][assistant|D<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>][tool|one][user|E][assistant|`},
	} {
		w := transcript.Ask(h, "POST", "/v1/messages", `{"model":"m","max_tokens":9,`+c.body+`}`)
		if w.Code != http.StatusOK {
			t.Errorf("%s: %d %s", c.body, w.Code, w.Body)
			continue
		}
		want := strings.NewReplacer("[", "<|im_start|>", "|", "\n", "]", "<|im_end|>\n").Replace(c.want)
		if diff := cmp.Diff(want, prompt); diff != "" {
			t.Errorf("%s: the prompt differs (-want +got):\n%s", c.body, diff)
		}
	}
}

// TestCountTokens checks that the number of tokens is that of the prompt.
func TestCountTokens(t *testing.T) {
	var prompt string
	h := serve(t, func(in enginetest.Input) enginetest.Script {
		prompt = in.Prompt
		return enginetest.Say("Fine.")(in)
	})
	w := transcript.Ask(h, "POST", "/v1/messages/count_tokens", `{"model":"m","system":"S","messages":[{"role":"user","content":"Hi"}]}`)
	if prompt != "" {
		t.Error("to count tokens, the model generates")
	}
	message := transcript.Ask(h, "POST", "/v1/messages", `{"model":"m","system":"S",`+hi+`}`)
	got := strings.TrimSuffix(strings.TrimPrefix(w.Body.String(), `{`), `}`)
	if w.Code != http.StatusOK || !strings.HasPrefix(got, `"input_tokens":`) || !strings.Contains(message.Body.String(), got+",") {
		t.Errorf("%d %s, expected the number of %s", w.Code, w.Body, message.Body)
	}
}

// TestRefusals checks that what is not supported is refused by its name.
func TestRefusals(t *testing.T) {
	h := serve(t, nil)
	message := func(content string) string {
		return `"max_tokens":9,"messages":[{"role":"user","content":` + content + `}]`
	}
	for _, c := range []struct{ body, param string }{
		{hi + `,"frobnicate":1`, "frobnicate"},
		{hi + `,"container":"c"`, "container"},
		{hi + `,"mcp_servers":[]`, "mcp_servers"},
		{hi + `,"context_management":{}`, "context_management"},
		{hi + `,"temperature":1.5`, "temperature"},
		{hi + `,"top_k":0`, "top_k"},
		{hi + `,"stop_sequences":[""]`, "stop_sequences[0]"},
		{hi + `,"thinking":{"type":"often"}`, "thinking.type"},
		{hi + `,"thinking":{"type":"enabled","display":"omitted"}`, "thinking.display"},
		{hi + `,"output_config":{"format":{"type":"json_schema"}}`, "output_config.format"},
		{hi + `,"tools":[{"type":"bash_20250124","name":"bash"}]`, "tools[0].type"},
		{hi + `,"tools":[{"name":"f"}]`, "tools[0]"},
		{hi + `,"tools":[{"name":"f","input_schema":{},"strict":true}]`, "tools[0].strict"},
		{hi + `,"tool_choice":{"type":"any"}`, "tool_choice.type"},
		{hi + `,"tool_choice":{"type":"tool","name":"f"}`, "tool_choice.type"},
		{`"max_tokens":9,"messages":[]`, "messages"},
		{`"max_tokens":9`, "messages"},
		{`"messages":[{"role":"user","content":"Hi"}]`, "max_tokens"},
		{`"max_tokens":0,"messages":[{"role":"user","content":"Hi"}]`, "max_tokens"},
		{`"max_tokens":9,"messages":[{"role":"tool","content":"Hi"}]`, "messages[0].role"},
		{`"max_tokens":9,"messages":[{"role":"user"}]`, "messages[0]"},
		{message(`[{"type":"image","source":{"type":"url","url":"http://127.0.0.1/"}}]`), "messages[0].content[0].type"},
		{message(`[{"text":"x"}]`), "messages[0].content[0]"},
		{message(`[{"type":"text","text":"x","color":"red"}]`), "messages[0].content[0].color"},
		{message(`[{"type":"tool_result","tool_use_id":"t"}]`), "messages[0].content[0].tool_use_id"},
		{message(`[{"type":"tool_use","id":"t","name":"f","input":{}}]`), "messages[0].content[0]"},
	} {
		w := transcript.Ask(h, "POST", "/v1/messages", `{"model":"m",`+c.body+`}`)
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), `"invalid_request_error","message":"`+c.param+`: `) {
			t.Errorf("%s: %d %s, expected a refusal of %s", c.body, w.Code, w.Body, c.param)
		}
	}
	if w := transcript.Ask(h, "POST", "/v1/messages", `{"model":"other",`+hi+`}`); w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), "not_found_error") {
		t.Errorf("an unknown model: %d %s", w.Code, w.Body)
	}
}

func TestDisconnect(t *testing.T) { transcript.Disconnect(t, "/v1/messages", hi, handler) }

// FuzzRequest checks that every request is read, or refused with a status below 500.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		`{"model":"m",` + hi + `}`,
		`{"model":"m","stream":true,"system":[{"type":"text","text":"S"}],"temperature":0.5,"top_p":0.9,"top_k":5,"stop_sequences":["x"],` + tools + `,` + hi + `}`,
		`{"model":"m","max_tokens":9,"thinking":{"type":"enabled","budget_tokens":1},"messages":[{"role":"user","content":"C"},{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"x"},{"type":"tool_use","id":"t1","name":"f","input":{"x":1}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","is_error":true,"content":[{"type":"text","text":"one"}]}]}]}`,
	} {
		f.Add(seed)
	}
	h := New(Options{Models: transcript.Scripted(f, nil)})
	f.Fuzz(func(t *testing.T, body string) {
		for _, count := range []bool{false, true} {
			r, c, err := h.read(httptest.NewRecorder(), httptest.NewRequest("POST", "/v1/messages", strings.NewReader(body)), count)
			if err != nil {
				if e := backend.ErrorOf(err); e.Status >= 500 {
					t.Errorf("%q: %v", body, err)
				}
				continue
			}
			if len(c.Messages) == 0 {
				t.Errorf("%q is read as %+v", body, r)
			}
		}
	})
}
