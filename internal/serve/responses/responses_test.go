package responses

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pianola-engine/pianola/internal/serve/backend"
	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/enginetest"
	"github.com/pianola-engine/pianola/internal/serve/keys"
	"github.com/pianola-engine/pianola/internal/serve/transcript"
)

// patient are limits with which an error before the first event has its own status, however long it takes.
var patient = backend.Limits{Grace: time.Hour}

// handler returns the endpoints over models.
func handler(m backend.Models) *http.ServeMux {
	mux := http.NewServeMux()
	New(Options{Models: m, Limits: patient, Keep: Bound{Responses: 100, Bytes: 1 << 20}}).Register(mux)
	return mux
}

// serve returns the endpoints over a model that answers by a script.
func serve(t testing.TB, reply func(enginetest.Input) enginetest.Script) *http.ServeMux {
	t.Helper()
	return handler(transcript.Scripted(t, reply))
}

// create asks for a response of the model.
func create(h http.Handler, fields string) *httptest.ResponseRecorder {
	return transcript.Ask(h, "POST", "/v1/responses", `{"model":"m",`+fields+`}`)
}

const tools = `"tools":[{"type":"function","name":"get_weather","description":"Weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}]`

// paris and rome call the tool twice.
const twice = `Let me see.<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>` +
	`<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>`

// TestTranscripts compares whole replies and streams with golden files.
func TestTranscripts(t *testing.T) {
	broken := func(enginetest.Input) enginetest.Script {
		return enginetest.Script{Steps: append(enginetest.Words("Half an"), enginetest.Step{Err: errors.New("secret of the device")})}
	}
	for name, c := range map[string]struct {
		reply func(enginetest.Input) enginetest.Script
		body  string
	}{
		"text":      {enginetest.Say("Hello <b>, wörld!"), `"input":"Hi","instructions":"Be brief.","metadata":{"a":"b"},"user":"me"`},
		"reasoning": {enginetest.Say("<think>Two and two.</think>4"), `"input":"2+2?","reasoning":{"effort":"low","summary":"auto"}`},
		"logprobs":  {enginetest.Say("A b"), `"input":"Hi","top_logprobs":2`},
		"calls":     {enginetest.Say(twice), `"input":"Weather?",` + tools},
		"one-call":  {enginetest.Say(twice), `"input":"Weather?","parallel_tool_calls":false,` + tools},
		"length":    {enginetest.Say("one two three four"), `"input":"Hi","max_output_tokens":2`},
		"empty":     {enginetest.Say(""), `"input":"Hi","store":false`},
		"broken":    {broken, `"input":"Hi"`},
		"busy": {func(enginetest.Input) enginetest.Script {
			return enginetest.Script{Steps: []enginetest.Step{{Err: &engine.BusyError{}}}}
		}, `"input":"Hi"`},
	} {
		t.Run(name, func(t *testing.T) {
			transcript.Golden(t, name, transcript.Both(serve(t, c.reply), "/v1/responses", c.body))
		})
	}
}

// TestConversation checks what the model sees of a conversation.
func TestConversation(t *testing.T) {
	var prompt string
	mux := serve(t, func(in enginetest.Input) enginetest.Script {
		prompt = in.Prompt
		return enginetest.Say("Fine.")(in)
	})
	send := func(body string) string {
		t.Helper()
		w := create(mux, body)
		if w.Code != http.StatusOK {
			t.Fatalf("%s: %d %s", body, w.Code, w.Body)
		}
		return regexp.MustCompile(`resp_\w+`).FindString(w.Body.String())
	}
	see := func(want string) {
		t.Helper()
		want = strings.NewReplacer("[", "<|im_start|>", "|", "\n", "]", "<|im_end|>\n").Replace(want) + "<|im_start|>assistant\n"
		if diff := cmp.Diff(want, prompt); diff != "" {
			t.Errorf("the prompt differs (-want +got):\n%s", diff)
		}
	}
	first := send(`"instructions":"A","input":[{"role":"developer","content":"B"},{"type":"message","role":"user","content":[{"type":"input_text","text":"C"},{"type":"input_text","text":"D"}]}]`)
	see("[system|A\n\nB][user|CD]")
	second := send(`"instructions":"E","previous_response_id":"` + first + `","input":"F"`)
	see("[system|E\n\nB][user|CD][assistant|Fine.][user|F]")
	send(`"previous_response_id":"` + second + `","input":"G"`)
	see("[system|B][user|CD][assistant|Fine.][user|F][assistant|Fine.][user|G]")
	call := `{"type":"function_call","call_id":"c1","name":"f","arguments":"{\"x\":1}"}`
	send(`"input":[{"role":"user","content":"H"},{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},` + call +
		`,{"type":"function_call_output","call_id":"c1","output":[{"type":"input_text","text":"one"}]}]`)
	see(`[user|H][assistant|<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>][tool|one]`)
	if w := transcript.Ask(mux, "DELETE", "/v1/responses/"+first, ""); w.Code != http.StatusOK {
		t.Errorf("deleting: %d %s", w.Code, w.Body)
	}
	if w := create(mux, `"input":"H","previous_response_id":"`+second+`"`); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), first) {
		t.Errorf("after its beginning is deleted, a conversation continues: %d %s", w.Code, w.Body)
	}
}

// TestRefusals checks that what is not supported is refused by its name.
func TestRefusals(t *testing.T) {
	mux := serve(t, nil)
	for _, c := range []struct{ body, param string }{
		{`"input":"x","background":true`, "background"},
		{`"input":"x","conversation":"c"`, "conversation"},
		{`"input":"x","prompt":{"id":"p"}`, "prompt"},
		{`"input":"x","frobnicate":1`, "frobnicate"},
		{`"input":"x","truncation":"auto"`, "truncation"},
		{`"input":"x","temperature":2.5`, "temperature"},
		{`"input":"x","temperature":"hot"`, "temperature"},
		{`"input":"x","top_logprobs":21`, "top_logprobs"},
		{`"input":"x","max_output_tokens":0`, "max_output_tokens"},
		{`"input":"x","include":["file_search_call.results"]`, "include[0]"},
		{`"input":"x","text":{"format":{"type":"json_object"}}`, "text.format"},
		{`"input":"x","text":{"verbosity":"low"}`, "text.verbosity"},
		{`"input":"x","reasoning":{"effort":"huge"}`, "reasoning.effort"},
		{`"input":"x","reasoning":{"summary":"detailed"}`, "reasoning.summary"},
		{`"input":"x","metadata":{"a":1}`, "metadata.a"},
		{`"input":"x","service_tier":"flex"`, "service_tier"},
		{`"input":"x","tools":[{"type":"web_search"}]`, "tools[0].type"},
		{`"input":"x","tools":[{"type":"function"}]`, "tools[0].name"},
		{`"input":"x","tools":[{"type":"function","name":"f","strict":true}]`, "tools[0].strict"},
		{`"input":"x","tools":[{"type":"function","name":"f","parameters":[]}]`, "tools[0].parameters"},
		{`"input":"x","tool_choice":"required"`, "tool_choice"},
		{`"input":"x","tool_choice":{"type":"function","name":"f"}`, "tool_choice"},
		{`"input":"x","previous_response_id":"resp_x"`, "previous_response_id"},
		{`"temperature":1`, "input"},
		{`"input":[]`, "input"},
		{`"input":{}`, "input"},
		{`"input":[{"type":"image_generation_call"}]`, "input[0].type"},
		{`"input":[{"role":"critic","content":"x"}]`, "input[0].role"},
		{`"input":[{"content":"x"}]`, "input[0].role"},
		{`"input":[{"role":"user"}]`, "input[0].content"},
		{`"input":[{"role":"user","content":[{"type":"input_image"}]}]`, "input[0].content[0].type"},
		{`"input":[{"role":"user","content":[{"type":"input_text","text":"x","color":"red"}]}]`, "input[0].content[0].color"},
		{`"input":[{"type":"function_call","name":"f"}]`, "input[0].call_id"},
		{`"input":[{"type":"function_call","call_id":"c"}]`, "input[0].name"},
		{`"input":[{"type":"function_call_output","call_id":"c","output":"x"}]`, "input[0].call_id"},
		{`"input":[{"type":"reasoning","summary":[],"encrypted_content":"x"}]`, "input[0].encrypted_content"},
		{`"input":[{"type":"item_reference","id":"msg_x"}]`, "input[0]"},
	} {
		w := create(mux, c.body)
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), `"param":"`+c.param+`"`) {
			t.Errorf("%s: %d %s, expected a refusal of %s", c.body, w.Code, w.Body, c.param)
		}
	}
	if w := transcript.Ask(mux, "POST", "/v1/responses", `{"model":"other","input":"x"}`); w.Code != http.StatusNotFound {
		t.Errorf("an unknown model: %d %s", w.Code, w.Body)
	}
	for _, body := range []string{``, `{`, `[]`, `{"model":"m","input":"x"} {}`, `{"model":"m","model":"m","input":"x"}`, "{\"model\":\"m\",\"input\":\"\xff\"}"} {
		if w := transcript.Ask(mux, "POST", "/v1/responses", body); w.Code != http.StatusBadRequest {
			t.Errorf("%q: %d %s", body, w.Code, w.Body)
		}
	}
}

// TestStored checks the endpoints of stored responses.
func TestStored(t *testing.T) {
	mux := serve(t, nil)
	created := create(mux, `"input":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]`)
	id := regexp.MustCompile(`resp_\w+`).FindString(created.Body.String())
	item := regexp.MustCompile(`msg_\w+`).FindString(created.Body.String())
	if w := transcript.Ask(mux, "GET", "/v1/responses/"+id, ""); w.Body.String() != created.Body.String() {
		t.Errorf("the stored response is %s, expected %s", w.Body, created.Body)
	}
	var text strings.Builder
	for _, query := range []string{"", "?order=asc&limit=2", "?limit=0", "?order=up", "?after=x"} {
		w := transcript.Ask(mux, "GET", "/v1/responses/"+id+"/input_items"+query, "")
		fmt.Fprintf(&text, "%s %d\n%s\n", query, w.Code, w.Body)
	}
	transcript.Golden(t, "input_items", text.String())
	for path, want := range map[string]int{id + "?stream=true": 400, "resp_x": 404, "resp_x/input_items": 404} {
		if w := transcript.Ask(mux, "GET", "/v1/responses/"+path, ""); w.Code != want {
			t.Errorf("GET %s: %d %s, expected %d", path, w.Code, w.Body, want)
		}
	}
	if w := create(mux, `"input":[{"type":"item_reference","id":"`+item+`"}]`); w.Code != http.StatusOK {
		t.Errorf("a reference to an item: %d %s", w.Code, w.Body)
	}
	hidden := create(mux, `"input":"x","store":false`)
	if w := transcript.Ask(mux, "GET", "/v1/responses/"+regexp.MustCompile(`resp_\w+`).FindString(hidden.Body.String()), ""); w.Code != http.StatusNotFound {
		t.Errorf("a response that was not to be stored: %d %s", w.Code, w.Body)
	}
}

// TestKeys checks that an API key does not reach the responses of another one.
func TestKeys(t *testing.T) {
	const alice, bob = "sk-alice-0123456789", "sk-bob-0123456789ab"
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte("alice "+alice+"\nbob "+bob+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := keys.Open(path, keys.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	h := k.Middleware(func(w http.ResponseWriter, _ *http.Request, r *keys.Refusal) { w.WriteHeader(r.Status()) })(serve(t, nil))
	ask := func(key, method, path, body string) *httptest.ResponseRecorder {
		w, q := httptest.NewRecorder(), httptest.NewRequest(method, path, strings.NewReader(body))
		q.Header.Set("Authorization", "Bearer "+key)
		h.ServeHTTP(w, q)
		return w
	}
	id := regexp.MustCompile(`resp_\w+`).FindString(ask(alice, "POST", "/v1/responses", `{"model":"m","input":"x"}`).Body.String())
	for _, c := range []struct {
		method, path, body string
		bob, alice         int
	}{
		{"GET", "/v1/responses/" + id, "", 404, 200},
		{"GET", "/v1/responses/" + id + "/input_items", "", 404, 200},
		{"POST", "/v1/responses", `{"model":"m","input":"x","previous_response_id":"` + id + `"}`, 400, 200},
		{"DELETE", "/v1/responses/" + id, "", 404, 200},
	} {
		if w := ask(bob, c.method, c.path, c.body); w.Code != c.bob {
			t.Errorf("%s %s of another key: %d %s, expected %d", c.method, c.path, w.Code, w.Body, c.bob)
		}
		if w := ask(alice, c.method, c.path, c.body); w.Code != c.alice {
			t.Errorf("%s %s: %d %s, expected %d", c.method, c.path, w.Code, w.Body, c.alice)
		}
	}
}

// TestDisconnect checks that generations end when their clients go away, and that their responses are
// not kept.
func TestDisconnect(t *testing.T) {
	var h *Handler
	transcript.Disconnect(t, "/v1/responses", `"input":"x"`, func(m backend.Models) http.Handler {
		h = New(Options{Models: m, Keep: Bound{Responses: 100, Bytes: 1 << 24}})
		mux := http.NewServeMux()
		h.Register(mux)
		return mux
	})
	if len(h.store.all) != 0 {
		t.Errorf("%d cancelled responses are stored", len(h.store.all))
	}
}

// FuzzRequest checks that every request is read, or refused with a status below 500.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		`{"model":"m","input":"x"}`,
		`{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"x"}]},{"type":"reasoning","summary":[{"type":"summary_text","text":"y"}]}]}`,
		`{"model":"m","input":[{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"z"}],` + tools + `}`,
		`{"model":"m","input":"x","stream":true,"top_logprobs":3,"include":["message.output_text.logprobs"],"reasoning":{"effort":"none"},"text":{"format":{"type":"text"}}}`,
		`{"model":"m","input":[{"type":"item_reference","id":"msg_1"}],"previous_response_id":"resp_1","tool_choice":"none","metadata":{"a":"b"}}`,
		`{"model":"m","input":[{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}],"background":true,"store":false}`,
	} {
		f.Add(seed)
	}
	h := New(Options{Models: transcript.Scripted(f, nil), Keep: Bound{Responses: 1, Bytes: 1 << 20}})
	f.Fuzz(func(t *testing.T, body string) {
		job, err := h.read(httptest.NewRecorder(), httptest.NewRequest("POST", "/v1/responses", strings.NewReader(body)))
		if err != nil {
			if e := backend.ErrorOf(err); e.Status >= 500 {
				t.Errorf("%q: %v", body, err)
			}
			return
		}
		if len(job.turn.Conversation.Messages) == 0 {
			t.Errorf("%q is read as %+v", body, job.request)
		}
	})
}
