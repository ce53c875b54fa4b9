package responses

import "github.com/pianola-engine/pianola/internal/serve/fields"

// Tables returns the fields of a request, for documents.
func Tables() []fields.Table {
	tables := []fields.Table{
		fields.Describe("`/v1/responses`", requestFields),
		fields.Describe("`reasoning` of a response", reasoningFields),
		fields.Describe("`text` of a response", textFields),
		fields.Describe("Functions of a response", functionFields),
	}
	for _, kind := range []string{messageItem, reasoningItem, callItem, outputItem, referenceItem} {
		tables = append(tables, fields.Describe("Items of the type `"+kind+"`", itemFields[kind]))
	}
	return append(tables, fields.Describe("Parts of an item", partFields))
}
