package responses

import "github.com/pianola-engine/pianola/internal/serve/fields"

// Tables returns the fields of a request, for documents.
func Tables() []fields.Table {
	return []fields.Table{fields.Describe("`/v1/responses`", requestFields)}
}
