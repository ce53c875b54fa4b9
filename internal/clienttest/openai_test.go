package clienttest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

// weather is the schema of the function of the tests.
var weather = shared.FunctionParameters{
	"type":       "object",
	"properties": map[string]any{"city": map[string]any{"type": "string"}},
	"required":   []string{"city"},
}

// client returns a client of a service. Requests are not tried again.
func (s *service) client(options ...option.RequestOption) openai.Client {
	all := []option.RequestOption{option.WithBaseURL(s.url + "/v1/"), option.WithAPIKey(key), option.WithMaxRetries(0)}
	return openai.NewClient(append(all, options...)...)
}

func chatParams(text string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{Model: model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)}}
}

func responseParams(text string) responses.ResponseNewParams {
	return responses.ResponseNewParams{Model: model, Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(text)}}
}

// must returns v, and ends the test if err is not nil.
func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// formed fails the test if JSON does not have the form that openai-go declares for v's type.
func formed(t *testing.T, raw string, v any, known ...string) {
	t.Helper()
	for _, fault := range form([]byte(raw), v, known...) {
		t.Errorf("%T: %s", v, fault)
	}
}

// The fields that OpenAI's specification does not have: reasoning of chat completions in the form of
// other services, and what Open Responses requires.
var (
	extraChat     = []string{"choices.message.reasoning_content", "choices.delta.reasoning_content"}
	extraResponse = []string{"access_programs", "presence_penalty", "frequency_penalty", "store"}
)

// streamed returns the items of a stream.
func streamed[T any](t *testing.T, s *ssestream.Stream[T]) []T {
	t.Helper()
	var all []T
	for s.Next() {
		all = append(all, s.Current())
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// refused fails the test unless err is a reply with a status, about a parameter.
func refused(t *testing.T, what string, err error, status int, parameter string) {
	t.Helper()
	var reply *openai.Error
	if !errors.As(err, &reply) || reply.StatusCode != status || reply.Param != parameter {
		t.Errorf("%s: %v, expected the status %d about %q", what, err, status, parameter)
	}
}

func TestOpenAIModels(t *testing.T) {
	c := start(t).client()
	page, err := c.Models.List(t.Context())
	if err != nil || len(page.Data) != 1 || page.Data[0].ID != model {
		t.Fatalf("models: %v, %v", page, err)
	}
	one := must[*openai.Model](t)(c.Models.Get(t.Context(), model))
	formed(t, one.RawJSON(), new(openai.Model), "loaded", "aliases", "context")
}

func TestOpenAIChat(t *testing.T) {
	c := start(t).client()
	p := chatParams("Say hello.")
	p.N, p.Logprobs, p.TopLogprobs = openai.Int(2), openai.Bool(true), openai.Int(2)
	whole := must[*openai.ChatCompletion](t)(c.Chat.Completions.New(t.Context(), p))
	formed(t, whole.RawJSON(), new(openai.ChatCompletion), extraChat...)
	p.StreamOptions.IncludeUsage = openai.Bool(true)
	var sum openai.ChatCompletionAccumulator
	for _, chunk := range streamed(t, c.Chat.Completions.NewStreaming(t.Context(), p)) {
		formed(t, chunk.RawJSON(), new(openai.ChatCompletionChunk), extraChat...)
		if !sum.AddChunk(chunk) {
			t.Fatalf("the chunk %s does not fit", chunk.RawJSON())
		}
	}
	for i := range 2 {
		if a, b := whole.Choices[i].Message.Content, sum.Choices[i].Message.Content; a != "Hello, world!" || b != a {
			t.Errorf("choice %d: whole %q, streamed %q", i, a, b)
		}
	}
	if whole.Usage.CompletionTokens != sum.Usage.CompletionTokens || sum.Usage.CompletionTokens == 0 {
		t.Errorf("usage: whole %d tokens, streamed %d", whole.Usage.CompletionTokens, sum.Usage.CompletionTokens)
	}
}

func TestOpenAIChatTools(t *testing.T) {
	c := start(t).client()
	p := chatParams("What is the weather in Paris?")
	p.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: "get_weather", Parameters: weather})}
	first := must[*openai.ChatCompletion](t)(c.Chat.Completions.New(t.Context(), p))
	formed(t, first.RawJSON(), new(openai.ChatCompletion), extraChat...)
	m := first.Choices[0].Message
	if len(m.ToolCalls) != 1 || first.Choices[0].FinishReason != "tool_calls" {
		t.Fatalf("the first turn is %s", first.RawJSON())
	}
	p.Messages = append(p.Messages, m.ToParam(), openai.ToolMessage("18 degrees", m.ToolCalls[0].ID))
	var sum openai.ChatCompletionAccumulator
	for _, chunk := range streamed(t, c.Chat.Completions.NewStreaming(t.Context(), p)) {
		sum.AddChunk(chunk)
	}
	if text := sum.Choices[0].Message.Content; text != "It says: 18 degrees" {
		t.Errorf("the second turn is %q", text)
	}
}

func TestOpenAICompletions(t *testing.T) {
	c := start(t).client()
	p := openai.CompletionNewParams{Model: model, Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("Say hello.")}, Logprobs: openai.Int(1)}
	whole := must[*openai.Completion](t)(c.Completions.New(t.Context(), p))
	formed(t, whole.RawJSON(), new(openai.Completion))
	text := ""
	for _, chunk := range streamed(t, c.Completions.NewStreaming(t.Context(), p)) {
		for _, choice := range chunk.Choices {
			text += choice.Text
		}
	}
	if whole.Choices[0].Text != "Hello, world!" || text != "Hello, world!" {
		t.Errorf("whole %q, streamed %q", whole.Choices[0].Text, text)
	}
}

func TestOpenAIEmbeddings(t *testing.T) {
	c := start(t).client()
	p := openai.EmbeddingNewParams{Model: model, Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"one", "two"}}}
	reply := must[*openai.CreateEmbeddingResponse](t)(c.Embeddings.New(t.Context(), p))
	formed(t, reply.RawJSON(), new(openai.CreateEmbeddingResponse))
	if len(reply.Data) != 2 || slices.Equal(reply.Data[0].Embedding, reply.Data[1].Embedding) {
		t.Errorf("the embeddings are %s", reply.RawJSON())
	}
}

func TestOpenAIResponses(t *testing.T) {
	c := start(t).client()
	p := responseParams("What is 2 + 2?")
	p.Instructions = openai.String("Be brief.")
	p.Include = []responses.ResponseIncludable{responses.ResponseIncludableMessageOutputTextLogprobs}
	p.TopLogprobs = openai.Int(1)
	p.Metadata = shared.Metadata{"a": "b"}
	whole := must[*responses.Response](t)(c.Responses.New(t.Context(), p))
	formed(t, whole.RawJSON(), new(responses.Response), extraResponse...)
	if whole.OutputText() != "4" || len(whole.Output) != 2 || whole.Output[0].Type != "reasoning" {
		t.Fatalf("the response is %s", whole.RawJSON())
	}
	again := must[*responses.Response](t)(c.Responses.Get(t.Context(), whole.ID, responses.ResponseGetParams{}))
	if again.RawJSON() != whole.RawJSON() {
		t.Errorf("the stored response is %s, expected %s", again.RawJSON(), whole.RawJSON())
	}
	items, err := c.Responses.InputItems.List(t.Context(), whole.ID, responses.InputItemListParams{})
	if err != nil || len(items.Data) != 1 {
		t.Fatalf("input items: %v, %v", items, err)
	}
	// openai-go takes all messages of a list for the assistant's, so the item is decoded by itself.
	formed(t, items.RawJSON(), new(responses.ResponseItemList), "data.content", "data.role")
	formed(t, items.Data[0].RawJSON(), new(responses.ResponseInputMessageItem))
	if err := c.Responses.Delete(t.Context(), whole.ID); err != nil {
		t.Fatal(err)
	}
	_, err = c.Responses.Get(t.Context(), whole.ID, responses.ResponseGetParams{})
	refused(t, "a deleted response", err, http.StatusNotFound, "")

	text := ""
	events := streamed(t, c.Responses.NewStreaming(t.Context(), p))
	for i, e := range events {
		eventFormed(t, e.RawJSON())
		if e.SequenceNumber != int64(i) {
			t.Errorf("event %d has the number %d", i, e.SequenceNumber)
		}
		if e.Type == "response.output_text.delta" {
			text += e.Delta
		}
	}
	last := events[len(events)-1]
	if last.Type != "response.completed" || text != "4" || last.Response.OutputText() != "4" {
		t.Errorf("the stream has %q, and ends with %s", text, last.RawJSON())
	}
}

// eventFormed checks the form of an event of a response's stream. Known differences: see extraResponse,
// Open Responses requires the bytes of log-probabilities, and the npm package openai declares the name
// of a call that is done.
func eventFormed(t *testing.T, raw string) {
	t.Helper()
	known := []string{"logprobs.bytes", "logprobs.top_logprobs.bytes", "name"}
	for _, name := range extraResponse {
		known = append(known, "response."+name)
	}
	formed(t, raw, new(responses.ResponseStreamEventUnion), known...)
}

func TestOpenAIResponsesTools(t *testing.T) {
	c := start(t).client()
	p := responseParams("What is the weather in Paris and Rome?")
	p.Tools = []responses.ToolUnionParam{{OfFunction: &responses.FunctionToolParam{Name: "get_weather", Parameters: weather, Strict: param.NewOpt(false)}}}
	var first responses.Response
	for _, e := range streamed(t, c.Responses.NewStreaming(t.Context(), p)) {
		eventFormed(t, e.RawJSON())
		first = e.Response
	}
	var outputs responses.ResponseInputParam
	var cities []string
	for _, i := range first.Output {
		var in struct{ City string }
		if err := json.Unmarshal([]byte(i.AsFunctionCall().Arguments), &in); err != nil {
			t.Fatalf("%s: %v", i.RawJSON(), err)
		}
		cities = append(cities, in.City)
		outputs = append(outputs, responses.ResponseInputItemUnionParam{OfFunctionCallOutput: &responses.ResponseInputItemFunctionCallOutputParam{
			CallID: openai.String(i.CallID), Output: responses.ResponseInputItemFunctionCallOutputOutputUnionParam{OfString: openai.String("18 degrees")},
		}})
	}
	if !slices.Equal(cities, []string{"Paris", "Rome"}) {
		t.Fatalf("the calls are about %q", cities)
	}
	second := responses.ResponseNewParams{Model: model, PreviousResponseID: openai.String(first.ID), Tools: p.Tools,
		Input: responses.ResponseNewParamsInputUnion{OfInputItemList: outputs}}
	reply := must[*responses.Response](t)(c.Responses.New(t.Context(), second))
	formed(t, reply.RawJSON(), new(responses.Response), extraResponse...)
	if reply.OutputText() != "It says: 18 degrees" {
		t.Errorf("the second turn is %s", reply.RawJSON())
	}
	p.ParallelToolCalls = openai.Bool(false)
	one := must[*responses.Response](t)(c.Responses.New(t.Context(), p))
	if len(one.Output) != 1 {
		t.Errorf("without parallel calls the response is %s", one.RawJSON())
	}
}

func TestOpenAIErrors(t *testing.T) {
	c := start(t).client()
	create := map[string]func(o ...option.RequestOption) error{
		"chat": func(o ...option.RequestOption) error {
			_, err := c.Chat.Completions.New(t.Context(), chatParams("Say hello."), o...)
			return err
		},
		"responses": func(o ...option.RequestOption) error {
			_, err := c.Responses.New(t.Context(), responseParams("Say hello."), o...)
			return err
		},
	}
	for name, create := range create {
		refused(t, name+": unknown model", create(option.WithJSONSet("model", "missing")), http.StatusNotFound, "model")
		refused(t, name+": temperature", create(option.WithJSONSet("temperature", 3)), http.StatusBadRequest, "temperature")
		refused(t, name+": type", create(option.WithJSONSet("temperature", "hot")), http.StatusBadRequest, "temperature")
		refused(t, name+": unknown field", create(option.WithJSONSet("frobnicate", true)), http.StatusBadRequest, "frobnicate")
		refused(t, name+": key", create(option.WithAPIKey("sk-wrong-0123456789")), http.StatusUnauthorized, "")
		refused(t, name+": syntax", create(option.WithRequestBody("application/json", strings.NewReader("{"))), http.StatusBadRequest, "")
	}
	refused(t, "background", create["responses"](option.WithJSONSet("background", true)), http.StatusBadRequest, "background")
	refused(t, "previous", create["responses"](option.WithJSONSet("previous_response_id", "resp_x")), http.StatusBadRequest, "previous_response_id")
}

func TestOpenAIRetry(t *testing.T) {
	c := start(t).client()
	_, err := c.Responses.New(t.Context(), responseParams("Be busy once: go 1"))
	refused(t, "a busy model", err, http.StatusTooManyRequests, "")
	reply := must[*responses.Response](t)(c.Responses.New(t.Context(), responseParams("Be busy once: go 2"), option.WithMaxRetries(2)))
	if reply.OutputText() != "Hello, world!" {
		t.Errorf("after a retry: %s", reply.RawJSON())
	}
	chat := must[*openai.ChatCompletion](t)(c.Chat.Completions.New(t.Context(), chatParams("Be busy once: go 3"), option.WithMaxRetries(2)))
	if chat.Choices[0].Message.Content != "Hello, world!" {
		t.Errorf("after a retry: %s", chat.RawJSON())
	}
}

func TestOpenAICancel(t *testing.T) {
	s := start(t)
	c := s.client()
	ctx, cancel := context.WithCancel(t.Context())
	stream := c.Responses.NewStreaming(ctx, responseParams("Talk on."))
	for range 5 {
		if !stream.Next() {
			t.Fatal(stream.Err())
		}
	}
	cancel()
	s.saw(t, "cancelled", 1)
	chat := c.Chat.Completions.NewStreaming(t.Context(), chatParams("Talk on."))
	for range 5 {
		if !chat.Next() {
			t.Fatal(chat.Err())
		}
	}
	chat.Close()
	s.saw(t, "cancelled", 2)
}

func TestOpenAIBrokenStream(t *testing.T) {
	s := start(t)
	c := s.client()
	chat := c.Chat.Completions.NewStreaming(t.Context(), chatParams("Break."))
	for chat.Next() {
	}
	if chat.Err() == nil {
		t.Error("a broken chat ends without an error")
	}
	r, err := s.post("/v1/responses", `{"model":"scripted","input":"Break.","stream":true}`)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b := must[[]byte](t)(io.ReadAll(r.Body))
	var kinds []string
	for line := range bytes.Lines(b) {
		if data, ok := bytes.CutPrefix(line, []byte("data: {")); ok {
			eventFormed(t, "{"+string(data))
			var e struct{ Type string }
			if err := json.Unmarshal([]byte("{"+string(data)), &e); err != nil {
				t.Fatal(err)
			}
			kinds = append(kinds, e.Type)
		}
	}
	if n := len(kinds); n < 4 || kinds[n-2] != "error" || kinds[n-1] != "response.failed" {
		t.Errorf("a broken response ends with %q", kinds)
	}
}
