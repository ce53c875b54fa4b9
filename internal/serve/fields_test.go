package server

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/serve/anthropic"
	"github.com/pianola-engine/pianola/internal/serve/fields"
	"github.com/pianola-engine/pianola/internal/serve/openai"
	"github.com/pianola-engine/pianola/internal/serve/responses"
)

var update = flag.Bool("update", false, "rewrite the tables of fields in docs/SERVE.md")

// TestFields compares the tables of fields in docs/SERVE.md with those that read requests.
func TestFields(t *testing.T) {
	const path, begin, end = "../../docs/SERVE.md", "<!-- Tables of fields: go test ./internal/serve -run TestFields -update -->\n\n", "<!-- End of the tables of fields. -->\n"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	tables, after, ended := strings.Cut(rest, end)
	if !ok || !ended {
		t.Fatalf("%s has no place for the tables of fields", path)
	}
	want := fields.Markdown(slices.Concat(openai.Tables(), responses.Tables(), anthropic.Tables()))
	if *update {
		if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if tables != want {
		t.Errorf("%s does not have the tables of fields that the service has", path)
	}
}
