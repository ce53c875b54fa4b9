package jinja

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// clock returns the time that testdata/reference.py uses.
func clock() time.Time { return time.Date(2026, 3, 7, 8, 9, 5, 0, time.UTC) }

func mustJSON(t *testing.T, text string) any {
	t.Helper()
	v, err := FromJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func renderText(src string, vars map[string]any) (string, error) {
	tmpl, err := Parse(src)
	if err != nil {
		return "", err
	}
	return tmpl.Render(context.Background(), vars, Options{Now: clock, Budget: 1 << 18})
}

// TestAgainstJinja2 compares results with those of Jinja2, which testdata/reference.py writes.
func TestAgainstJinja2(t *testing.T) {
	data, err := os.ReadFile("testdata/cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct{ Src, Out, Err string }
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	vars := map[string]any{
		"m":    mustJSON(t, `{"role": "user", "c": null, "z": 1, "a": [1, 2.5, "x", null, true], "content": " Hi \n"}`),
		"list": mustJSON(t, `[{"n": 2, "t": "b"}, {"n": 1, "t": "A"}, {"n": 1, "t": "c"}]`),
		"s":    "héllo wörld", "none_": nil,
	}
	for _, c := range cases {
		got, err := renderText(c.Src, vars)
		if (err != nil) != (c.Err != "") {
			t.Errorf("%q: error %v, Jinja2's is %q (%q)", c.Src, err, c.Err, c.Out)
		} else if err == nil && got != c.Out {
			t.Errorf("%q:\n  %q, Jinja2 gives\n  %q", c.Src, got, c.Out)
		}
		var e *Error
		if err != nil && !errors.As(err, &e) {
			t.Errorf("%q: the error %v has no line number", c.Src, err)
		}
	}
}

// TestHostile renders templates that exceed a limit. Each render must fail quickly.
func TestHostile(t *testing.T) {
	deep := func(open, end string, n int) string { return strings.Repeat(open, n) + "1" + strings.Repeat(end, n) }
	for _, c := range []struct {
		name, src string
		want      error // the error that the result wraps; nil accepts any error
	}{
		{"nested loops", strings.Repeat("{% for i in range(100000) %}", 6) + strings.Repeat("{% endfor %}", 6), ErrBudget},
		{"endless text", "{% for i in range(100000) %}{% for j in range(100000) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}{% endfor %}", ErrBudget},
		{"doubling", "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}", ErrBudget},
		{"doubling a list", "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", ErrBudget},
		{"repeated text", "{{ 'x' * 9999999999999 }}", ErrBudget},
		{"repeated list", "{{ [1, 2] * 9999999999999 }}", ErrBudget},
		{"replacing", "{% set s = 'x' * 999999 %}{{ s.replace('', s) }}", ErrBudget},
		{"joining", "{% set s = 'x' * 999999 %}{{ range(99999) | join(s) }}", ErrBudget},
		{"printing a value that is shared", "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}", ErrBudget},
		{"JSON of such a value", "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = {'a': ns.s, 'b': ns.s} %}{% endfor %}{{ ns.s | tojson }}", ErrBudget},
		{"comparing such values", "{% set ns = namespace(s=[1], t=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.s == ns.t }}", ErrBudget},
		{"a huge range", "{{ range(10**15) }}", nil},
		{"a deep value", "{% set ns = namespace(s=[1]) %}{% for i in range(9999) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}", nil},
		{"JSON of a deep value", "{% set ns = namespace(s=[1]) %}{% for i in range(9999) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s | tojson }}", nil},
		{"a macro that calls itself", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", nil},
		{"macros that call one another", "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}", nil},
		{"deep parentheses", "{{ " + deep("(", ")", 200_000) + " }}", nil},
		{"deep lists", "{{ " + deep("[", "]", 200_000) + " }}", nil},
		{"deep signs", "{{ " + deep("-", "", 200_000) + " }}", nil},
		{"deep negations", "{{ " + deep("not ", "", 200_000) + " }}", nil},
		{"deep conditions", "{{ " + strings.Repeat("1 if 0 else ", 50_000) + "2 }}", nil},
		{"deep blocks", strings.Repeat("{% if 1 %}", 50_000), nil},
		{"many operators", "{{ 1" + strings.Repeat(" + 1", 100_000) + " }}", nil},
		{"many filters", "{{ 'x'" + strings.Repeat(" | upper", 50_000) + " }}", nil},
		{"many calls", "{{ x" + strings.Repeat("()", 50_000) + " }}", nil},
		{"wide JSON", "{{ [1] | tojson(indent=999999999) }}", nil},
		{"a wide indent", "{{ 'a\nb' | indent(999999999, true) }}", nil},
		{"a wide format", "{{ '%99999999999d' % 1 }}", nil},
		{"a precise format", "{{ '%.*f' % (999999999, 1.5) }}", nil},
		{"a wide format's layout", "{{ '{:>999999999}'.format(1) }}", nil},
		{"formats in a loop", "{% for i in range(99999) %}{{ '%4000d' % i }}{% endfor %}", ErrBudget},
		{"wide padding", "{{ 'x'.center(99999999999) }}", ErrBudget},
		{"wide zeros", "{{ '1'.zfill(99999999999) }}", ErrBudget},
		{"wide tabs", "{{ '\t'.expandtabs(99999999999) }}", nil},
		{"a filled batch", "{{ [1] | batch(99999999999, 0) }}", ErrBudget},
		{"many slices", "{{ [1] | slice(99999999999) }}", ErrBudget},
		{"a loop that calls itself", "{% for x in [1] recursive %}{{ loop([x]) }}{% endfor %}", nil},
		{"a call that calls itself", "{% macro f() %}{% call f() %}{% endcall %}{% endmacro %}{{ f() }}", nil},
		{"many arguments", "{% macro f() %}{{ varargs }}{% endmacro %}{% for i in range(999) %}{{ f(*range(99999)) }}{% endfor %}", ErrBudget},
		{"a list ordered by itself", "{% set ns = namespace(s=[1], t=[2]) %}{% for i in range(9999) %}{% set ns.s = [ns.s] %}{% set ns.t = [ns.t] %}{% endfor %}{{ ns.s < ns.t }}", nil},
		{"a long number", "{{ " + strings.Repeat("9", 100_000) + " }}", nil},
		{"replacing by what grows", "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s.partition('b')[0] ~ ns.s.center(ns.s | length * 2) %}{% endfor %}", ErrBudget},
		{"a large power", "{{ 10 ** 400 }}", nil},
		{"an include", "{% include '/etc/passwd' %}", nil},
		{"an import", "{% import '/etc/passwd' as x %}", nil},
		{"inheritance", "{% extends '/etc/passwd' %}", nil},
		{"Python's insides", "{{ ''.__class__.__mro__[1].__subclasses__() }}", nil},
		{"a long template", strings.Repeat("x", MaxSource+1), nil},
		{"broken UTF-8", "{{ \xff }}", nil},
	} {
		start := time.Now()
		out, err := renderText(c.src, map[string]any{})
		if err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %d bytes, error %v, want one that wraps %v", c.name, len(out), err, c.want)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("%s: took %v", c.name, took)
		}
	}
}

func TestRenderEndsWithItsContext(t *testing.T) {
	tmpl, err := Parse(strings.Repeat("{% for i in range(100000) %}", 3) + strings.Repeat("{% endfor %}", 3))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := tmpl.Render(ctx, nil, Options{Budget: 1 << 60}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestErrorsSayWhere(t *testing.T) {
	var e *Error
	var raised *RaisedError
	if _, err := renderText("a\n{% if true %}\n{{ raise_exception('no') }}{% endif %}", nil); !errors.As(err, &e) || e.Line != 3 || !errors.As(err, &raised) || raised.Message != "no" {
		t.Errorf("raised: %v", err)
	}
	if _, err := renderText("a\n\n{{ x.y.z }}", nil); !errors.As(err, &e) || e.Line != 3 {
		t.Errorf("undefined: %v", err)
	}
	if _, err := renderText("a\n{# \n #}{{ 1 + }}", nil); !errors.As(err, &e) || e.Line != 3 {
		t.Errorf("syntax: %v", err)
	}
}

func TestFromJSONKeepsOrder(t *testing.T) {
	const text = `{"z": 1, "a": {"y": [1.5, null, true], "b": "x"}, "10": 12345678901234567890}`
	got, err := renderText("{{ v | tojson }}", map[string]any{"v": mustJSON(t, text)})
	if err != nil || got != text {
		t.Errorf("%s, %v", got, err)
	}
	for _, bad := range []string{"", "{", "[1,]", "1 2", strings.Repeat("[", 1000) + strings.Repeat("]", 1000)} {
		if v, err := FromJSON([]byte(bad)); err == nil {
			t.Errorf("%.20q: %v", bad, v)
		}
	}
}

// FuzzRender looks for panics and for renders that do not terminate.
func FuzzRender(f *testing.F) {
	data, err := os.ReadFile("testdata/cases.json")
	if err != nil {
		f.Fatal(err)
	}
	var cases []struct{ Src string }
	if err := json.Unmarshal(data, &cases); err != nil {
		f.Fatal(err)
	}
	for _, c := range cases {
		f.Add(c.Src)
	}
	paths, err := filepath.Glob("../testdata/*.jinja")
	if err != nil || len(paths) == 0 {
		f.Fatal("no templates of families: ", err)
	}
	for _, path := range paths {
		src, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(src))
	}
	f.Fuzz(func(t *testing.T, src string) {
		tmpl, err := Parse(src)
		if err != nil {
			return
		}
		_, _ = tmpl.Render(context.Background(), map[string]any{
			"m": NewDict("a", 1), "s": "text", "list": &List{Items: []any{1, "b"}},
			"messages": &List{Items: []any{NewDict("role", "user", "content", "x"), NewDict("role", "assistant", "content", "y")}},
		}, Options{Budget: 1 << 16})
	})
}
