package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ErrNoTemplate reports that a model has no chat template, or none with the given name.
var ErrNoTemplate = errors.New("chat: the model has no such chat template")

// Names of templates in models with several templates.
const (
	Default = "default"
	ToolUse = "tool_use" // template for conversations with tools
)

// Sources holds the sources of a model's templates by name.
type Sources map[string]string

// Meta gives access to the metadata of a GGUF file.
type Meta interface {
	Meta(key string) (any, bool)
}

// FromGGUF returns the templates in GGUF metadata: tokenizer.chat_template, and the templates
// that tokenizer.chat_templates lists.
func FromGGUF(m Meta) Sources {
	s := Sources{}
	add := func(name, key string) {
		if v, ok := m.Meta(key); ok {
			if text, ok := v.(string); ok {
				s[name] = text
			}
		}
	}
	add(Default, "tokenizer.chat_template")
	if v, ok := m.Meta("tokenizer.chat_templates"); ok {
		names, _ := v.([]string)
		for _, n := range names[:min(len(names), maxTemplates)] {
			add(n, "tokenizer.chat_template."+n)
		}
	}
	return s
}

// maxTemplates is the largest number of templates that a model may have.
const maxTemplates = 32

// FromConfig returns the templates of a Hugging Face tokenizer_config.json. Its chat_template
// is a string or a list of named templates.
func FromConfig(config []byte) (Sources, error) {
	var c struct {
		Template json.RawMessage `json:"chat_template"`
	}
	s := Sources{}
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, fmt.Errorf("chat: tokenizer_config.json: %w", err)
	}
	var text string
	var list []struct{ Name, Template string }
	switch {
	case len(c.Template) == 0 || string(c.Template) == "null":
	case json.Unmarshal(c.Template, &text) == nil:
		s[Default] = text
	case json.Unmarshal(c.Template, &list) == nil && len(list) <= maxTemplates:
		for _, t := range list {
			s[t.Name] = t.Template
		}
	default:
		return nil, errors.New("chat: tokenizer_config.json: chat_template is neither a string nor a list of named templates")
	}
	return s, nil
}

// FromDirectory returns the templates in a Hugging Face directory. It reads
// chat_template.jinja, additional_chat_templates, chat_template.json and
// tokenizer_config.json. read returns the content of a file.
func FromDirectory(root string, read func(path string) ([]byte, error)) (Sources, error) {
	all := Sources{}
	for _, name := range []string{"tokenizer_config.json", "chat_template.json"} { // later files take precedence
		config, err := read(filepath.Join(root, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		sources, err := FromConfig(config)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, sources)
	}
	more, err := os.ReadDir(filepath.Join(root, "additional_chat_templates"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var files []string
	for _, f := range more {
		if strings.HasSuffix(f.Name(), ".jinja") {
			files = append(files, filepath.Join(root, "additional_chat_templates", f.Name()))
		}
	}
	for _, path := range append(files, filepath.Join(root, "chat_template.jinja")) {
		source, err := read(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		name := strings.TrimSuffix(filepath.Base(path), ".jinja")
		if name == "chat_template" {
			name = Default
		}
		all[name] = string(source)
	}
	return all, nil
}

// Parse parses the template with the given name. If name is "", it selects the template for
// tools if tools is true and the model has one, and the default template otherwise. The error
// wraps ErrNoTemplate if the template does not exist.
func (s Sources) Parse(name string, tools bool) (*Template, error) {
	if name == "" {
		name = Default
		if _, ok := s[ToolUse]; ok && tools {
			name = ToolUse
		}
	}
	source, ok := s[name]
	if !ok {
		if len(s) == 0 {
			return nil, ErrNoTemplate
		}
		return nil, fmt.Errorf("%w: %q is not among %s", ErrNoTemplate, name, strings.Join(s.Names(), ", "))
	}
	t, err := Parse(source)
	if err != nil {
		return nil, fmt.Errorf("chat: template %s: %w", name, err)
	}
	return t, nil
}

// Names returns the names of the templates in ascending order.
func (s Sources) Names() []string {
	var names []string
	for n := range s {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}
