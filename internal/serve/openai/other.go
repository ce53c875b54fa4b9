package openai

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/pianola-engine/pianola/internal/serve/backend"
	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/fields"
	"github.com/pianola-engine/pianola/internal/serve/observe"
)

// embeddingRequest is a request for embeddings.
type embeddingRequest struct {
	model, encoding string
	input           []engine.Text
	dimensions      int
}

var embeddingFields = []fields.Field[embeddingRequest]{
	{Name: "model", Doc: "an ID or alias of `/v1/models`; optional if the service has one model", Read: func(q *embeddingRequest, v fields.Value) error { return v.Text(&q.model) }},
	{Name: "input", Doc: "a text, tokens, or a list of up to 2,048 of either", Read: func(q *embeddingRequest, v fields.Value) (err error) {
		q.input, err = readTexts(v, maxInputs)
		return err
	}},
	{Name: "encoding_format", Doc: "`float` or `base64`: float32, little-endian", Read: func(q *embeddingRequest, v fields.Value) error { return v.Choice(&q.encoding, "float", "base64") }},
	{Name: "dimensions", Doc: "the model's width; other numbers are refused", Read: func(q *embeddingRequest, v fields.Value) error { return v.Int(&q.dimensions, 1, maxInt) }},
	{Name: "user", Doc: "the output does not depend on it"},
}

// embeddings serves POST /v1/embeddings.
func (c *call) embeddings() error {
	var q embeddingRequest
	if err := read(c, embeddingFields, &q); err != nil {
		return err
	}
	if q.input == nil {
		return &fields.Error{Param: "input", Why: "an input is required"}
	}
	m, id, release, err := c.acquire(q.model, "embeddings")
	if err != nil {
		return err
	}
	defer release()
	if width := m.Info().Width; q.dimensions > 0 && q.dimensions != width {
		return &fields.Error{Param: "dimensions", Why: fmt.Sprintf("the model's embeddings have %d elements; other dimensions are not supported", width)}
	}
	if !m.Info().Embeds {
		return engine.ErrUnsupported
	}
	if err := checkTokens(m, "input", q.input); err != nil {
		return err
	}
	observe.From(c.ctx).Started()
	vectors, tokens, err := m.Embed(c.ctx, q.input, engine.EmbedOptions{Normalize: true})
	if err != nil {
		return err
	}
	type embedding struct {
		Object    string `json:"object"`
		Index     int    `json:"index"`
		Embedding any    `json:"embedding"`
	}
	list := make([]embedding, len(vectors))
	for i, v := range vectors {
		if list[i] = (embedding{"embedding", i, v}); q.encoding == "base64" {
			list[i].Embedding = base64Of(v)
		}
	}
	c.computed(tokens)
	return c.reply(map[string]any{"object": "list", "model": id, "data": list, "usage": tokenUsage{tokens, tokens}})
}

// base64Of returns the bytes of a vector in base64.
func base64Of(v []float32) string {
	b := make([]byte, 0, 4*len(v))
	for _, f := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	return base64.StdEncoding.EncodeToString(b)
}

// tokenUsage is the usage of a request that generates nothing.
type tokenUsage struct {
	Prompt int `json:"prompt_tokens"`
	Total  int `json:"total_tokens"`
}

// rerankRequest is a request to rank documents.
type rerankRequest struct {
	model, query string
	documents    []string
	top          int
	texts        bool // documents are part of the reply
}

// document is a document that is an object.
type document struct{ text string }

var rerankFields = []fields.Field[rerankRequest]{
	{Name: "model", Doc: "an ID or alias of `/v1/models`; optional if the service has one model", Read: func(q *rerankRequest, v fields.Value) error { return v.Text(&q.model) }},
	{Name: "query", Doc: "a text", Read: func(q *rerankRequest, v fields.Value) error { return v.Text(&q.query) }},
	{Name: "documents", Doc: "up to 2,048 texts, or objects with a `text`", Read: func(q *rerankRequest, v fields.Value) error {
		list, err := v.List(maxInputs)
		for _, one := range list {
			var d document
			if one.Kind() == "an object" {
				err = fields.Read(one, []fields.Field[document]{{Name: "text", Read: func(d *document, v fields.Value) error { return v.Text(&d.text) }}}, &d)
			} else {
				err = one.Text(&d.text)
			}
			if err != nil {
				return err
			}
			q.documents = append(q.documents, d.text)
		}
		return err
	}},
	{Name: "top_n", Doc: "the number of results, default all", Read: func(q *rerankRequest, v fields.Value) error { return v.Int(&q.top, 1, maxInt) }},
	{Name: "return_documents", Doc: "whether results have the documents, default false", Read: func(q *rerankRequest, v fields.Value) error { return v.Bool(&q.texts) }},
	{Name: "user", Doc: "the output does not depend on it"},
}

// rerank serves POST /v1/rerank.
func (c *call) rerank() error {
	var q rerankRequest
	if err := read(c, rerankFields, &q); err != nil {
		return err
	}
	if q.query == "" {
		return &fields.Error{Param: "query", Why: "a query is required"}
	}
	if len(q.documents) == 0 {
		return &fields.Error{Param: "documents", Why: "there are no documents"}
	}
	m, id, release, err := c.acquire(q.model, "rerank")
	if err != nil {
		return err
	}
	defer release()
	if !m.Info().Reranks {
		return engine.ErrUnsupported
	}
	observe.From(c.ctx).Started()
	scores, tokens, err := m.Rerank(c.ctx, q.query, q.documents)
	if err != nil {
		return err
	}
	type text struct {
		Text string `json:"text"`
	}
	type result struct {
		Index    int     `json:"index"`
		Score    float64 `json:"relevance_score"`
		Document *text   `json:"document,omitempty"`
	}
	results := make([]result, len(scores))
	for i, score := range scores {
		if results[i] = (result{Index: i, Score: score}); q.texts {
			results[i].Document = &text{q.documents[i]}
		}
	}
	slices.SortStableFunc(results, func(a, b result) int { return cmp.Compare(b.Score, a.Score) })
	if q.top > 0 {
		results = results[:min(q.top, len(results))]
	}
	c.computed(tokens)
	return c.reply(map[string]any{"object": "list", "id": "rerank-" + c.o.NewID(), "model": id, "results": results, "usage": tokenUsage{tokens, tokens}})
}

// tokenizeRequest is a request for tokens of a text.
type tokenizeRequest struct {
	model, text              string
	given, names, pieces     bool
	addSpecial, parseSpecial bool
	chat                     chatRequest
}

// textField returns the field of a text under one of its names.
func textField(name, doc string) fields.Field[tokenizeRequest] {
	return fields.Field[tokenizeRequest]{Name: name, Doc: doc, Read: func(q *tokenizeRequest, v fields.Value) error {
		q.given = true
		return v.Text(&q.text)
	}}
}

// flagField returns the field of a boolean.
func flagField(name, doc string, at func(*tokenizeRequest) *bool) fields.Field[tokenizeRequest] {
	return fields.Field[tokenizeRequest]{Name: name, Doc: doc, Read: func(q *tokenizeRequest, v fields.Value) error { return v.Bool(at(q)) }}
}

func addSpecial(q *tokenizeRequest) *bool { return &q.addSpecial }

var tokenizeFields = []fields.Field[tokenizeRequest]{
	{Name: "model", Doc: "an ID or alias of `/v1/models`; optional if the service has one model", Read: func(q *tokenizeRequest, v fields.Value) error { return v.Text(&q.model) }},
	textField("prompt", "a text"),
	textField("content", "as `prompt`"),
	{Name: "messages", Doc: "a conversation, in place of a text", Read: func(q *tokenizeRequest, v fields.Value) error { return readMessages(&q.chat, v) }},
	{Name: "tools", Doc: "as for chat completions", Read: func(q *tokenizeRequest, v fields.Value) error { return readTools(&q.chat, v) }},
	{Name: "chat_template_kwargs", Doc: "as for chat completions", Read: func(q *tokenizeRequest, v fields.Value) error { return readVars(&q.chat, v) }},
	flagField("add_special_tokens", "whether tokens such as BOS are added, default true", addSpecial),
	flagField("add_special", "as `add_special_tokens`", addSpecial),
	flagField("parse_special", "whether names of special tokens are these tokens, default false", func(q *tokenizeRequest) *bool { return &q.parseSpecial }),
	flagField("return_token_strs", "whether the reply has `token_strs`", func(q *tokenizeRequest) *bool { return &q.names }),
	flagField("with_pieces", "whether tokens are objects with `id` and `piece`", func(q *tokenizeRequest) *bool { return &q.pieces }),
}

// tokenize serves POST /tokenize.
func (c *call) tokenize() error {
	q := tokenizeRequest{addSpecial: true}
	if err := read(c, tokenizeFields, &q); err != nil {
		return err
	}
	if q.given == (len(q.chat.c.Messages) > 0) {
		return &fields.Error{Param: "prompt", Why: "either a prompt or messages are required"}
	}
	m, _, release, err := c.acquire(q.model, "tokenize")
	if err != nil {
		return err
	}
	defer release()
	var ids []int32
	if q.given {
		ids, err = m.Encode(q.text, engine.EncodeOptions{AddSpecial: q.addSpecial, ParseSpecial: q.parseSpecial})
	} else {
		var p *engine.Prompt
		if p, err = m.Chat(c.ctx, q.chat.c); err == nil {
			ids = p.IDs
		}
	}
	if err != nil {
		return err
	}
	reply := map[string]any{"count": len(ids), "max_model_len": m.Info().Context, "tokens": slices.Concat([]int32{}, ids)}
	type piece struct {
		ID    int32  `json:"id"`
		Piece string `json:"piece"`
	}
	names, pieces := make([]string, len(ids)), make([]piece, len(ids))
	for i, id := range ids {
		names[i], _ = backend.Piece(m, id)
		pieces[i] = piece{id, names[i]}
	}
	if q.names {
		reply["token_strs"] = names
	}
	if q.pieces {
		reply["tokens"] = pieces
	}
	c.computed(0)
	return c.reply(reply)
}

// detokenizeRequest is a request for the text of tokens.
type detokenizeRequest struct {
	model string
	ids   []int32
}

var detokenizeFields = []fields.Field[detokenizeRequest]{
	{Name: "model", Doc: "an ID or alias of `/v1/models`; optional if the service has one model", Read: func(q *detokenizeRequest, v fields.Value) error { return v.Text(&q.model) }},
	{Name: "tokens", Doc: "a list of tokens", Read: func(q *detokenizeRequest, v fields.Value) (err error) {
		q.ids, err = v.Tokens(maxTokens)
		return err
	}},
}

// detokenize serves POST /detokenize.
func (c *call) detokenize() error {
	var q detokenizeRequest
	if err := read(c, detokenizeFields, &q); err != nil {
		return err
	}
	if q.ids == nil {
		return &fields.Error{Param: "tokens", Why: "tokens are required"}
	}
	m, _, release, err := c.acquire(q.model, "detokenize")
	if err != nil {
		return err
	}
	defer release()
	if err := checkTokens(m, "tokens", []engine.Text{{IDs: q.ids}}); err != nil {
		return err
	}
	var text []byte
	for _, id := range q.ids {
		text = append(text, m.Piece(id)...)
	}
	c.computed(0)
	// encode replaces bytes that are not UTF-8
	return c.reply(map[string]string{"prompt": string(text), "content": string(text)})
}
