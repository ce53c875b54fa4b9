package fields

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
)

// Error reports a request that is not what the service expects.
type Error struct {
	Param string // the place of the fault, such as "messages[2].content", or ""
	Why   string
}

// Error implements error.
func (e *Error) Error() string {
	if e.Param == "" {
		return e.Why
	}
	return fmt.Sprintf("%s: %s", e.Param, e.Why)
}

// Value is a value in a request.
type Value struct {
	Path string          // its place, such as "messages[2].content"
	Raw  json.RawMessage // valid JSON, without space around it
}

// Errorf returns an *Error at the value's place.
func (v Value) Errorf(format string, args ...any) error {
	return &Error{v.Path, fmt.Sprintf(format, args...)}
}

// Kind returns the kind of a value, as it appears in errors.
func (v Value) Kind() string {
	if len(v.Raw) == 0 {
		return "nothing"
	}
	switch v.Raw[0] {
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '[':
		return "a list"
	case '{':
		return "an object"
	}
	return "a number"
}

// Null reports whether the value is null or missing.
func (v Value) Null() bool { return len(v.Raw) == 0 || v.Raw[0] == 'n' }

// want returns an error if the value has another kind.
func (v Value) want(kind string) error {
	if v.Kind() != kind {
		return v.Errorf("want %s, not %s", kind, v.Kind())
	}
	return nil
}

// decode decodes the value into a Go value of the same kind.
func (v Value) decode(into any) error {
	if err := json.Unmarshal(v.Raw, into); err != nil {
		return v.Errorf("the value cannot be read") // Parse has checked it
	}
	return nil
}

// Bool sets a boolean.
func (v Value) Bool(into *bool) error {
	if err := v.want("a boolean"); err != nil {
		return err
	}
	return v.decode(into)
}

// Text sets a string.
func (v Value) Text(into *string) error {
	if err := v.want("a string"); err != nil {
		return err
	}
	return v.decode(into)
}

// Choice sets a string that is one of those given.
func (v Value) Choice(into *string, of ...string) error {
	var s string
	if err := v.Text(&s); err != nil {
		return err
	}
	for _, known := range of {
		if s == known {
			*into = s
			return nil
		}
	}
	return v.Errorf("%.80q is not one of %s", s, strings.Join(of, ", "))
}

// Number sets a number between two bounds, which are included.
func (v Value) Number(into *float64, least, most float64) error {
	if err := v.want("a number"); err != nil {
		return err
	}
	var f float64
	if json.Unmarshal(v.Raw, &f) != nil || f < least || f > most { // an error is a number beyond float64
		return v.Errorf("%.40s is not between %v and %v", v.Raw, least, most)
	}
	*into = f
	return nil
}

// Int sets an integer between two bounds, which are included.
func (v Value) Int(into *int, least, most int) error {
	if err := v.want("a number"); err != nil {
		return err
	}
	var n int64
	if json.Unmarshal(v.Raw, &n) != nil {
		var f float64 // such as 1.0 or 1e3
		if json.Unmarshal(v.Raw, &f) != nil || f != math.Trunc(f) {
			return v.Errorf("%.40s is not an integer between %d and %d", v.Raw, least, most)
		}
		n = int64(max(-1<<53, min(f, 1<<53)))
	}
	if n < int64(least) || n > int64(most) {
		return v.Errorf("%.40s is not between %d and %d", v.Raw, least, most)
	}
	*into = int(n)
	return nil
}

// List returns the elements of a list of at most n.
func (v Value) List(n int) ([]Value, error) {
	if err := v.want("a list"); err != nil {
		return nil, err
	}
	var raw []json.RawMessage
	if err := v.decode(&raw); err != nil {
		return nil, err
	}
	if len(raw) > n {
		return nil, v.Errorf("the list has %d elements; at most %d are allowed", len(raw), n)
	}
	list := make([]Value, len(raw))
	for i := range raw {
		list[i] = Value{fmt.Sprintf("%s[%d]", v.Path, i), raw[i]}
	}
	return list, nil
}

// Tokens returns the tokens of a list of at most n.
func (v Value) Tokens(n int) ([]int32, error) {
	if err := v.want("a list"); err != nil {
		return nil, err
	}
	if commas := bytes.Count(v.Raw, []byte(",")); commas >= n {
		return nil, v.Errorf("the list has %d elements; at most %d are allowed", commas+1, n)
	}
	ids := []int32{}
	if json.Unmarshal(v.Raw, &ids) != nil {
		return nil, v.Errorf("want a list of tokens, which are integers")
	}
	for i, id := range ids {
		if id < 0 {
			return nil, Value{Path: fmt.Sprintf("%s[%d]", v.Path, i)}.Errorf("%d is not a token", id)
		}
	}
	return ids, nil
}

// maxName bounds the length of a field's name in errors.
const maxName = 80

// Members returns the members of an object.
func (v Value) Members() (map[string]Value, error) {
	if err := v.want("an object"); err != nil {
		return nil, err
	}
	var raw map[string]json.RawMessage
	if err := v.decode(&raw); err != nil {
		return nil, err
	}
	members := make(map[string]Value, len(raw))
	for name, text := range raw {
		path := strings.ToValidUTF8(name[:min(len(name), maxName)], "") // errors repeat it
		if v.Path != "" {
			path = v.Path + "." + path
		}
		members[name] = Value{path, text}
	}
	return members, nil
}
