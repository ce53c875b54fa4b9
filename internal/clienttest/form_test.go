package clienttest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/respjson"
	"github.com/openai/openai-go/v3/responses"
)

// form decodes JSON into a type of openai-go, which follow OpenAI's specification, and returns every
// difference between the JSON and the type: unknown fields, required fields that are absent, fields of
// another type, and variants that are not known. Paths in known are not reported.
func form(b []byte, v any, known ...string) []string {
	if err := json.Unmarshal(b, v); err != nil {
		return []string{err.Error()}
	}
	f := former{known: known}
	f.walk(reflect.ValueOf(v).Elem(), "")
	return f.faults
}

// former collects the faults of a decoded reply.
type former struct {
	known  []string
	faults []string
}

func (f *former) fault(path, format string, args ...any) {
	// The elements of lists have the same known differences.
	if plain := strings.ReplaceAll(path, "[]", ""); slices.Contains(f.known, strings.TrimPrefix(plain, ".")) {
		return
	}
	f.faults = append(f.faults, strings.TrimPrefix(path, ".")+": "+fmt.Sprintf(format, args...))
}

// walk checks a value and all that it contains.
func (f *former) walk(v reflect.Value, path string) {
	switch v.Kind() {
	case reflect.Slice:
		for i := range v.Len() {
			f.walk(v.Index(i), path+"[]")
		}
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			f.walk(v.Elem(), path)
		}
	case reflect.Struct:
		f.object(v, path)
	}
}

// object checks an object, or the variant of a union.
func (f *former) object(v reflect.Value, path string) {
	meta := v.FieldByName("JSON")
	if !meta.IsValid() {
		return
	}
	if variant := v.MethodByName("AsAny"); variant.IsValid() {
		out := variant.Call(nil)[0]
		if out.IsNil() {
			f.fault(path, "a variant that is not known: %v", v.MethodByName("RawJSON").Call(nil)[0])
			return
		}
		f.walk(out, path)
		return
	}
	extra := meta.FieldByName("ExtraFields")
	for i := range v.NumField() {
		field := v.Type().Field(i)
		raw, ok := meta.FieldByName(field.Name), field.Name != "JSON"
		if !ok || !raw.IsValid() {
			if ok && field.Anonymous {
				f.object(v.Field(i), path)
			}
			continue
		}
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		at := path + "." + name
		state := raw.Interface().(respjson.Field)
		constant := field.Tag.Get("default")
		switch {
		case state.Raw() == "":
			if extra.IsValid() && (field.Tag.Get("api") == "required" || constant != "") {
				f.fault(at, "is required and absent")
			}
		case state.Raw() == "null":
		case !state.Valid():
			f.fault(at, "has another type: %s", state.Raw())
		case constant != "" && state.Raw() != fmt.Sprintf("%q", constant):
			f.fault(at, "is %s, expected %q", state.Raw(), constant)
		default:
			f.walk(v.Field(i), at)
		}
	}
	if extra.IsValid() {
		for _, name := range extra.MapKeys() {
			f.fault(path+"."+name.String(), "is not known")
		}
	}
}

// TestForm checks that form finds each kind of difference.
func TestForm(t *testing.T) {
	const good = `{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"finish_reason":"stop","logprobs":null,"message":{"role":"assistant","content":"Hi","refusal":null}}]}`
	for _, c := range []struct{ old, new, want string }{
		{"", "", ""},
		{`"created":1,`, ``, "created: is required and absent"},
		{`"created":1`, `"created":"a"`, "created: has another type"},
		{`"created":1`, `"created":1,"made":2`, "made: is not known"},
		{`"chat.completion"`, `"completion"`, `object: is "completion"`},
		{`"refusal":null`, `"refused":null`, "choices[].message.refus"},
	} {
		faults := form([]byte(strings.Replace(good, c.old, c.new, 1)), new(openai.ChatCompletion))
		if c.want == "" && len(faults) > 0 || c.want != "" && (len(faults) == 0 || !strings.HasPrefix(faults[0], c.want)) {
			t.Errorf("%s for %s: %q, expected %q", c.new, c.old, faults, c.want)
		}
	}
	const event = `{"type":"response.function_call_arguments.delta","sequence_number":1,"item_id":"x","output_index":0,"delta":"{"}`
	if faults := form([]byte(event), new(responses.ResponseStreamEventUnion)); len(faults) > 0 {
		t.Errorf("an event: %q", faults)
	}
	if faults := form([]byte(strings.Replace(event, "delta\"", "part\"", 1)), new(responses.ResponseStreamEventUnion)); len(faults) == 0 {
		t.Error("an event that is not known has no fault")
	}
}
