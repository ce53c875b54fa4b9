package openai

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/serve/backend"
	"github.com/pianola-engine/pianola/internal/serve/enginetest"
)

// post sends a request that succeeds, and decodes the reply.
func post[T any](t *testing.T, s *service, path, body string) (reply T) {
	t.Helper()
	status, text := s.do(t, http.MethodPost, path, body)
	if err := json.Unmarshal([]byte(text), &reply); status != 200 || err != nil {
		t.Fatalf("%s %s: %d, %s, %v", path, body, status, text, err)
	}
	return reply
}

// chunks returns the chunks of a stream, which must end with [DONE].
func chunks[T any](t *testing.T, s *service, path, body string) (list []T) {
	t.Helper()
	status, text := s.do(t, http.MethodPost, path, body)
	events := strings.Split(strings.TrimSuffix(text, "\n\n"), "\n\n")
	if status != 200 || events[len(events)-1] != "data: [DONE]" {
		t.Fatalf("%s %s: %d, %s", path, body, status, text)
	}
	for _, event := range events[:len(events)-1] {
		var chunk T
		if err := json.Unmarshal([]byte(strings.TrimPrefix(event, "data: ")), &chunk); err != nil {
			t.Fatalf("%s: %v", event, err)
		}
		list = append(list, chunk)
	}
	return list
}

// TestStreamIsWhole compares streams with whole replies: the text, the reasoning, the calls, the reasons,
// the log-probabilities and the usage must be the same.
func TestStreamIsWhole(t *testing.T) {
	s := start(t, enginetest.Options{Reply: answers}, backend.Limits{})
	for _, text := range []string{"Hi", "think", "What is the weather?", "bytes"} {
		for _, extra := range []string{``, `,"n":3,"seed":7`, `,"max_tokens":2`, `,"max_tokens":9`, `,"stop":["end","see"]`, `,"parallel_tool_calls":false`, `,"logprobs":true,"top_logprobs":2`} {
			body := fmt.Sprintf(`{"messages":[{"role":"user","content":%q}],%s%s`, text, weatherTool, extra)
			whole := post[chatReply](t, s, chatPath, body+`}`)
			list := chunks[chatReply](t, s, chatPath, body+`,"stream":true,"stream_options":{"include_usage":true}}`)
			joined := chatReply{Object: "chat.completion", Created: whole.Created, Model: whole.Model, Choices: make([]chatChoice, len(whole.Choices)), Usage: list[len(list)-1].Usage}
			for i, chunk := range list[:len(list)-1] {
				if chunk.ID != list[0].ID || chunk.Usage != nil || len(chunk.Choices) != 1 {
					t.Errorf("%s: chunk %d is %+v", body, i, chunk)
				}
				joinChunk(t, &joined.Choices[chunk.Choices[0].Index], chunk.Choices[0])
			}
			for i := range whole.Choices {
				for j := range whole.Choices[i].Message.ToolCalls { // every reply has its own
					whole.Choices[i].Message.ToolCalls[j].ID = joined.Choices[i].Message.ToolCalls[j].ID
				}
			}
			whole.ID = ""
			if !reflect.DeepEqual(joined, whole) {
				a, _ := json.Marshal(joined)
				b, _ := json.Marshal(whole)
				t.Errorf("%s: the stream is\n%s, the whole reply\n%s", body, a, b)
			}
		}
	}
}

// joinChunk adds a chunk to a choice.
func joinChunk(t *testing.T, of *chatChoice, chunk chatChoice) {
	t.Helper()
	d := chunk.Delta
	if first := of.Message == nil; first != (d.Role != "") {
		t.Errorf("the role %q is not in the first chunk alone", d.Role)
	} else if first {
		of.Index, of.Message = chunk.Index, &chatMessage{Role: d.Role}
		return
	}
	m := of.Message
	m.Reasoning += d.Reasoning
	if d.Content != nil {
		if m.Content == nil {
			m.Content = new(string)
		}
		*m.Content += *d.Content
	}
	for _, call := range d.ToolCalls {
		if i := *call.Index; i == len(m.ToolCalls) {
			call.Index = nil
			m.ToolCalls = append(m.ToolCalls, call)
		} else {
			m.ToolCalls[i].Function.Arguments += call.Function.Arguments
		}
	}
	if p := chunk.LogProbs; p != nil {
		if of.LogProbs == nil {
			of.LogProbs = &chatLogProbs{}
		}
		of.LogProbs.Content = append(of.LogProbs.Content, p.Content...)
	}
	if of.FinishReason = chunk.FinishReason; of.FinishReason != nil && m.Content == nil && len(m.ToolCalls) == 0 {
		m.Content = new(string)
	}
}

// TestLogProbs checks that the tokens with log-probabilities are those of the text.
func TestLogProbs(t *testing.T) {
	s := start(t, enginetest.Options{Reply: answers}, backend.Limits{})
	for _, extra := range []string{``, `,"stop":["riend"]`, `,"max_tokens":2`} {
		choice := post[chatReply](t, s, chatPath, `{`+hi+`,"logprobs":true,"top_logprobs":5`+extra+`}`).Choices[0]
		text := ""
		for _, p := range choice.LogProbs.Content {
			text += p.Token
			if p.LogProb > 0 || len(p.Top) != 5 || p.Top[0].Token != p.Token || len(p.Bytes) != len(p.Token) {
				t.Errorf("%+v", p)
			}
		}
		if !strings.HasPrefix(text, *choice.Message.Content) || extra != `,"stop":["riend"]` && text != *choice.Message.Content {
			t.Errorf("%s: the tokens are %q, the text is %q", extra, text, *choice.Message.Content)
		}
	}
	p := post[completionReply](t, s, completionPath, `{"prompt":"Hi","logprobs":0}`).Choices[0].LogProbs
	if want := []int{0, 5, 12}; !reflect.DeepEqual(p.Offsets, want) || len(p.Tokens) != 3 || len(p.Top[0]) != 0 {
		t.Errorf("%+v", p)
	}
}

// TestTokensAsPrompt completes a text and its tokens, alone and in lists of both.
func TestTokensAsPrompt(t *testing.T) {
	s := start(t, enginetest.Options{Reply: func(in enginetest.Input) enginetest.Script {
		return enginetest.Script{Steps: enginetest.Words(in.Prompt)}
	}}, backend.Limits{})
	const text = "This has 日本語 and 🤗"
	type tokens struct {
		Tokens json.RawMessage
		Count  int
	}
	of := post[tokens](t, s, "/tokenize", fmt.Sprintf(`{"content":%q,"add_special":true}`, text))
	for prompt, want := range map[string]int{
		string(of.Tokens): 1, `[` + string(of.Tokens) + `]`: 1, fmt.Sprintf(`[%s,%q,%s]`, of.Tokens, text, of.Tokens): 3, fmt.Sprintf("%q", text): 1,
	} {
		reply := post[completionReply](t, s, completionPath, `{"prompt":`+prompt+`,"max_tokens":100}`)
		if len(reply.Choices) != want {
			t.Fatalf("%s: %d choices", prompt, len(reply.Choices))
		}
		for i, choice := range reply.Choices {
			if choice.Text != text || choice.Index != i {
				t.Errorf("%s: choice %d is %+v", prompt, i, choice)
			}
		}
	}
	type detokenized struct{ Prompt, Content string }
	if back := post[detokenized](t, s, "/detokenize", `{"tokens":`+string(of.Tokens)+`}`); back.Prompt != text || back.Content != text {
		t.Errorf("the text of the tokens is %+v", back)
	}
	type pieces struct {
		Tokens []struct {
			ID    int
			Piece string
		}
	}
	if with := post[pieces](t, s, "/tokenize", fmt.Sprintf(`{"prompt":%q,"with_pieces":true}`, text)); len(with.Tokens) != of.Count || with.Tokens[0].Piece != "T" {
		t.Errorf("%+v", with)
	}
}

// TestEmbeddings checks that embeddings have length 1, that equal inputs have equal ones, and that both
// encodings have the same numbers.
func TestEmbeddings(t *testing.T) {
	s := start(t, enginetest.Options{}, backend.Limits{})
	type reply[T any] struct {
		Data []struct {
			Index     int
			Embedding T
		}
		Usage tokenUsage
	}
	floats := post[reply[[]float32]](t, s, "/v1/embeddings", `{"input":["ab",[97,98],"ab","c"],"dimensions":8,"user":"u"}`)
	if len(floats.Data) != 4 || floats.Usage != (tokenUsage{7, 7}) {
		t.Fatalf("%+v", floats)
	}
	for i, d := range floats.Data {
		sum := 0.0
		for _, x := range d.Embedding {
			sum += float64(x) * float64(x)
		}
		if same := reflect.DeepEqual(d.Embedding, floats.Data[0].Embedding); d.Index != i || math.Abs(sum-1) > 1e-5 || same != (i < 3) {
			t.Errorf("%d: %+v has the square %f", i, d, sum)
		}
	}
	coded := post[reply[string]](t, s, "/v1/embeddings", `{"input":"ab","encoding_format":"base64"}`)
	b, err := base64.StdEncoding.DecodeString(coded.Data[0].Embedding)
	if err != nil || len(b) != 4*8 {
		t.Fatal(len(b), err)
	}
	for i, x := range floats.Data[0].Embedding {
		if y := math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])); x != y {
			t.Errorf("element %d is %v and %v", i, x, y)
		}
	}
}

// TestRerank checks the order and the number of results.
func TestRerank(t *testing.T) {
	s := start(t, enginetest.Options{}, backend.Limits{})
	type reply struct {
		Results []struct {
			Index    int
			Score    float64 `json:"relevance_score"`
			Document *struct{ Text string }
		}
		Usage tokenUsage
	}
	for extra, want := range map[string]int{``: 3, `,"top_n":2`: 2, `,"top_n":99`: 3, `,"return_documents":false,"top_n":null`: 3} {
		r := post[reply](t, s, "/rerank", `{"query":"x y","documents":["y","x y","z"]`+extra+`}`)
		if len(r.Results) != want || r.Results[0].Index != 1 || r.Results[1].Index != 0 || r.Results[0].Score <= r.Results[1].Score || r.Results[0].Document != nil {
			t.Errorf("%s: %+v", extra, r)
		}
		if r.Usage != (tokenUsage{14, 14}) {
			t.Errorf("%s: %+v", extra, r.Usage)
		}
	}
}
