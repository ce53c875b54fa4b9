package fields

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestParse checks which texts are refused.
func TestParse(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for text, want := range map[string]string{
		`{"a": {"a": 1}, "b": [{"a": 1}, {"a": 1}]}`: "",
		` 1 `:                      "",
		deep(64):                   "",
		`"\u00e9"`:                 "",
		deep(65):                   "nested more than 64 deep",
		strings.Repeat("[", 1<<20): "nested more than 64 deep",
		``:                         "is empty",
		`{"a": `:                   "ends within",
		`{"a" 1}`:                  "not JSON",
		`[1,]`:                     "not JSON",
		`{"a": 1, "a": 2}`:         `the key "a" occurs twice`,
		`{"a": 1, "\u0061": 2}`:    `the key "a" occurs twice`,
		`[{"x": {}, "x": 1}]`:      `the key "x" occurs twice`,
		`{} {}`:                    "more than one",
		`{}x`:                      "more than one",
		"\"\xff\"":                 "UTF-8",
		`NaN`:                      "not JSON",
	} {
		_, err := Parse([]byte(text))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %q", text, err, want)
		}
	}
}

// order is a request of the tests.
type order struct {
	n     int
	x     float64
	s     string
	b     bool
	ids   []int32
	items []string
}

var orderFields = []Field[order]{
	{Name: "n", Read: func(o *order, v Value) error { return v.Int(&o.n, 1, 5) }},
	{Name: "x", Read: func(o *order, v Value) error { return v.Number(&o.x, 0, 2) }},
	{Name: "s", Read: func(o *order, v Value) error { return v.Choice(&o.s, "a", "b") }},
	{Name: "b", Read: func(o *order, v Value) error { return v.Bool(&o.b) }},
	{Name: "ids", Read: func(o *order, v Value) (err error) { o.ids, err = v.Tokens(3); return err }},
	{Name: "items", Read: func(o *order, v Value) error {
		list, err := v.List(2)
		for _, item := range list {
			var s struct{ text string }
			if err := Read(item, []Field[struct{ text string }]{{Name: "text", Read: func(s *struct{ text string }, v Value) error { return v.Text(&s.text) }}}, &s); err != nil {
				return err
			}
			o.items = append(o.items, s.text)
		}
		return err
	}},
	{Name: "user", Doc: "the output does not depend on it"},
	{Name: "audio", Refused: "the service has no speech"},
}

// TestRead reads objects by a table.
func TestRead(t *testing.T) {
	for text, want := range map[string]string{
		`{"n": 2, "x": 0.5, "s": "a", "b": true, "ids": [1, 2], "items": [{"text": "x"}], "user": {"any": 1}}`: "",
		`{"n": null, "audio": null, "other": null, "user": null}`:                                              "",
		`{"n": 3.0}`:                  "",
		`{"n": 1e0, "x": 2}`:          "",
		`{"n": 6}`:                    "n: 6 is not between 1 and 5",
		`{"n": 0.5}`:                  "n: 0.5 is not an integer between 1 and 5",
		`{"n": 1e400}`:                "n: 1e400 is not an integer",
		`{"n": 1e30}`:                 "n: 1e30 is not between",
		`{"n": 99999999999999999999}`: "not between",
		`{"n": "1"}`:                  "n: want a number, not a string",
		`{"x": 1e999}`:                "x: 1e999 is not between 0 and 2",
		`{"s": "c"}`:                  `s: "c" is not one of a, b`,
		`{"s": 1}`:                    "s: want a string, not a number",
		`{"b": 1}`:                    "b: want a boolean, not a number",
		`{"ids": [1, -1]}`:            "ids[1]: -1 is not a token",
		`{"ids": [1, 2, 3, 4]}`:       "at most 3",
		`{"ids": [1.5]}`:              "ids: want a list of tokens",
		`{"ids": [4294967296]}`:       "ids: want a list of tokens",
		`{"items": [{"text": 1}]}`:    "items[0].text: want a string",
		`{"items": [{"texts": 1}]}`:   `items[0].texts: the field "texts" is not known`,
		`{"items": [1]}`:              "items[0]: want an object, not a number",
		`{"items": [{}, {}, {}]}`:     "items: the list has 3 elements; at most 2",
		`{"audio": {}}`:               "audio: audio is not supported: the service has no speech",
		`{"N": 1}`:                    `N: the field "N" is not known`,
		`[]`:                          "want an object, not a list",
	} {
		v, err := Parse([]byte(text))
		if err != nil {
			t.Fatal(text, err)
		}
		var o order
		err = Read(v, orderFields, &o)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	v := Value{Raw: json.RawMessage(`{"n": 2, "x": 0.5, "s": "a", "b": true, "ids": [1, 2], "items": [{"text": "x"}]}`)}
	var o order
	if err := Read(v, orderFields, &o); err != nil || o.n != 2 || o.x != 0.5 || o.s != "a" || !o.b || len(o.ids) != 2 || o.items[0] != "x" {
		t.Errorf("%+v, %v", o, err)
	}
}

// FuzzParse checks that texts that are accepted are JSON.
func FuzzParse(f *testing.F) {
	for _, text := range []string{`{"n": 1}`, `[[]]`, `{"a":1,"a":2}`, `1 2`, `"\ud800"`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := Parse(text)
		if err != nil {
			return
		}
		if !json.Valid(text) {
			t.Fatalf("%q is not JSON", text)
		}
		var o order
		_ = Read(v, orderFields, &o) // must not panic
	})
}
