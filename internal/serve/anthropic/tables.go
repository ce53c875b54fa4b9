package anthropic

import "github.com/pianola-engine/pianola/internal/serve/fields"

// Tables returns the fields of a request, for documents.
func Tables() []fields.Table {
	tables := []fields.Table{
		fields.Describe("`/v1/messages`", requestFields),
		fields.Describe("`thinking` of a message", thinkingFields),
		fields.Describe("`tool_choice` of a message", toolChoiceFields),
		fields.Describe("`output_config` of a message", outputFields),
		fields.Describe("Tools of a message", toolFields),
	}
	for _, kind := range []string{"text", "thinking", "tool_use", "tool_result"} {
		tables = append(tables, fields.Describe("Blocks of the type `"+kind+"`", blockFields[kind]))
	}
	return tables
}
