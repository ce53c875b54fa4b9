package arch

import (
	"encoding/json"
	"fmt"
	"strings"
)

// UnsupportedError reports that no descriptor fits a model.
type UnsupportedError struct {
	Name  string   // the architecture's name in the model; "" if it has none
	Known []string // names of the descriptors
}

func (e *UnsupportedError) Error() string {
	what := fmt.Sprintf("architecture %s is not supported", clip(e.Name))
	if e.Name == "" {
		what = "the model does not name its architecture and its tensors fit none"
	}
	return fmt.Sprintf("arch: %s (known: %s)", what, strings.Join(e.Known, ", "))
}

// UnsupportedValueError reports a setting whose value is not implemented.
type UnsupportedValueError struct {
	Key   string   // the file's own key, such as "rope_scaling.rope_type"
	Value string   // as printed
	Known []string // implemented values; empty if the setting must be absent
}

func (e *UnsupportedValueError) Error() string {
	known := ""
	if len(e.Known) > 0 {
		known = fmt.Sprintf(" (known: %s)", strings.Join(e.Known, ", "))
	}
	return fmt.Sprintf("arch: %s: %s is not supported%s", e.Key, e.Value, known)
}

// FieldError reports a missing or malformed setting.
type FieldError struct {
	Key    string // the file's own key, such as "llama.attention.head_count"
	Reason string // such as "missing" or "0 is not in 1..1024"
}

func (e *FieldError) Error() string { return fmt.Sprintf("arch: %s: %s", e.Key, e.Reason) }

// TensorError reports a tensor that is missing, has another shape than the configuration
// requires, or exists although the configuration does not use it.
type TensorError struct {
	Name string
	Got  []uint64 // nil if the tensor is missing
	Want []uint64 // nil if the tensor should not exist
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

// clip formats a value from a file for an error message: on one line, and shortened.
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
