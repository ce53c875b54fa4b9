package arch

import (
	"encoding/json"
	"fmt"
	"strings"
)

// UnsupportedError says that no descriptor fits a model.
type UnsupportedError struct {
	Name  string   // what the model calls its architecture, or "" if it does not say
	Known []string // the descriptors' names
}

func (e *UnsupportedError) Error() string {
	what := fmt.Sprintf("architecture %s is not supported", clip(e.Name))
	if e.Name == "" {
		what = "the model does not name its architecture and its tensors fit none"
	}
	return fmt.Sprintf("arch: %s (known: %s)", what, strings.Join(e.Known, ", "))
}

// UnsupportedValueError says that a setting has a value that is not implemented.
type UnsupportedValueError struct {
	Key   string   // with the file's own name, such as "rope_scaling.rope_type"
	Value string   // as it is printed
	Known []string // the values that are implemented; empty if the setting has to be absent
}

func (e *UnsupportedValueError) Error() string {
	known := ""
	if len(e.Known) > 0 {
		known = fmt.Sprintf(" (known: %s)", strings.Join(e.Known, ", "))
	}
	return fmt.Sprintf("arch: %s: %s is not supported%s", e.Key, e.Value, known)
}

// FieldError says that a setting is missing or malformed.
type FieldError struct {
	Key    string // with the file's own name, such as "llama.attention.head_count"
	Reason string // "missing", "0 is not in 1..1024"
}

func (e *FieldError) Error() string { return fmt.Sprintf("arch: %s: %s", e.Key, e.Reason) }

// TensorError says that a tensor is missing, has a shape that the configuration
// does not give it, or is there although the configuration has no use for it.
type TensorError struct {
	Name string
	Got  []uint64 // nil: missing
	Want []uint64 // nil: should not be there
}

func (e *TensorError) Error() string {
	switch {
	case e.Got == nil:
		return fmt.Sprintf("arch: tensor %s: missing", e.Name)
	case e.Want == nil:
		return fmt.Sprintf("arch: tensor %s: present, but the configuration does not call for it", e.Name)
	}
	return fmt.Sprintf("arch: tensor %s: shape %d, want %d", e.Name, e.Got, e.Want)
}

// clip returns a value from a file as an error prints it, on one line and short.
func clip(v any) string {
	const most = 40
	cut := func(s string) string {
		if len(s) > most {
			return s[:most] + "..."
		}
		return s
	}
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		return fmt.Sprintf("%q", cut(v))
	case json.Number:
		return cut(strings.ToValidUTF8(v.String(), "?"))
	case []any:
		return "a list"
	case map[string]any:
		return "an object"
	}
	if isSlice(v) {
		return "an array"
	}
	return fmt.Sprint(v)
}
