package clienttest

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"

	"github.com/pianola-engine/pianola/internal/serve/fields"
	server "github.com/pianola-engine/pianola/internal/serve/openai"
)

// TestOpenAIFields checks that the service's tables have every field that openai-go can send.
func TestOpenAIFields(t *testing.T) {
	tables := server.Tables()
	for title, params := range map[string]any{
		"`/v1/chat/completions`": openai.ChatCompletionNewParams{}, "`/v1/completions`": openai.CompletionNewParams{}, "`/v1/embeddings`": openai.EmbeddingNewParams{},
	} {
		i := slices.IndexFunc(tables, func(table fields.Table) bool { return table.Title == title })
		if i < 0 {
			t.Fatalf("there is no table %s", title)
		}
		n := 0
		for _, f := range reflect.VisibleFields(reflect.TypeOf(params)) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" || name == "-" {
				continue
			}
			n++
			if !slices.ContainsFunc(tables[i].Rows, func(r fields.Row) bool { return r.Name == name }) {
				t.Errorf("the table %s lacks %s", title, name)
			}
		}
		if n < 4 {
			t.Errorf("%s: openai-go has %d fields", title, n)
		}
	}
}
