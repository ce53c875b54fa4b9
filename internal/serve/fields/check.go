package fields

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// maxDepth bounds the nesting of a request's JSON.
const maxDepth = 64

// Parse checks a JSON text and returns its value. The text must be one valid JSON value in UTF-8,
// without a key that occurs twice in an object, and nested at most 64 deep.
func Parse(text []byte) (Value, error) {
	if !utf8.Valid(text) {
		return Value{}, &Error{Why: "the body is not valid UTF-8"}
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	if err := check(dec); err != nil {
		return Value{}, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Value{}, &Error{Why: fmt.Sprintf("the body has more than one JSON value: byte %d", dec.InputOffset())}
	}
	return Value{Raw: bytes.TrimSpace(text)}, nil
}

// scope is an object or a list that the checker is in.
type scope struct {
	keys map[string]bool // nil for a list
	key  bool            // the next token is a key
}

// check reads one value.
func check(dec *json.Decoder) error {
	var open []scope
	for {
		t, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return &Error{Why: "the body ends within a JSON value, or is empty"}
		} else if err != nil {
			return &Error{Why: fmt.Sprintf("the body is not JSON: byte %d: %v", dec.InputOffset(), err)}
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			if len(open) == maxDepth {
				return &Error{Why: fmt.Sprintf("the body is nested more than %d deep", maxDepth)}
			}
			s := scope{}
			if t == json.Delim('{') {
				s = scope{map[string]bool{}, true}
			}
			open = append(open, s)
			continue
		case json.Delim('}'), json.Delim(']'):
			open = open[:len(open)-1]
		default:
			if n := len(open) - 1; n >= 0 && open[n].key {
				key, _ := t.(string) // a key is a string
				if open[n].keys[key] {
					return &Error{Why: fmt.Sprintf("the key %.80q occurs twice in an object: byte %d", key, dec.InputOffset())}
				}
				open[n].keys[key], open[n].key = true, false
				continue
			}
		}
		n := len(open) - 1
		if n < 0 {
			return nil
		}
		open[n].key = open[n].keys != nil
	}
}
