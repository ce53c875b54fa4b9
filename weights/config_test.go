package weights

import (
	"encoding/json"
	"reflect"
	"testing"
)

// TestNumbersOfPython checks that numbers that only Python writes are read, and that texts are kept.
func TestNumbersOfPython(t *testing.T) {
	for text, want := range map[string]map[string]any{
		`{"a": [0.0, Infinity], "b": -Infinity}`: {"a": []any{json.Number("0.0"), json.Number("1.7976931348623157e308")}, "b": json.Number("-1.7976931348623157e308")},
		`{"a": NaN, "NaN": "\"Infinity\\"}`:      {"a": nil, "NaN": `"Infinity\`},
	} {
		if got, err := decodeObject([]byte(text)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{`{"a": Infinit}`, `{"a": 1Infinity}`, `{"a": "Infinity`, `Infinity`} {
		if got, err := decodeObject([]byte(text)); err == nil {
			t.Errorf("%s: %v, want an error", text, got)
		}
	}
}
