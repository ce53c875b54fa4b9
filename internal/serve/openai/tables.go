package openai

import "github.com/pianola-engine/pianola/internal/serve/fields"

// Tables returns the fields of all requests, for documents.
func Tables() []fields.Table {
	return []fields.Table{
		fields.Describe("`/v1/chat/completions`", chatFields),
		fields.Describe("Messages of a chat", messageFields),
		fields.Describe("Parts of a message's content", partFields),
		fields.Describe("Tools of a chat", toolFields),
		fields.Describe("Functions of tools", functionFields),
		fields.Describe("Calls of a message", callFields),
		fields.Describe("`response_format`", formatFields),
		fields.Describe("`stream_options`", streamFields),
		fields.Describe("`/v1/completions`", completionFields),
		fields.Describe("`/v1/embeddings`", embeddingFields),
		fields.Describe("`/v1/rerank`", rerankFields),
		fields.Describe("`/tokenize`", tokenizeFields),
		fields.Describe("`/detokenize`", detokenizeFields),
	}
}
