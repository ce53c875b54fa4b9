package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"
)

// report is the text that is written: a table of the steps, and their output.
type report struct {
	steps   []step
	results []result
	start   time.Time
	private *strings.Replacer
}

func newReport(steps []step) *report {
	r := &report{steps: steps, results: make([]result, len(steps)), start: time.Now(), private: strings.NewReplacer()}
	var hide []string
	if dir, err := os.Getwd(); err == nil && len(dir) > 1 {
		hide = append(hide, dir, ".")
	}
	if home, err := os.UserHomeDir(); err == nil && len(home) > 1 {
		hide = append(hide, home, "~")
	}
	r.private = strings.NewReplacer(hide...)
	return r
}

// failed returns the names among needs of the steps that have failed.
func (r *report) failed(needs []string) (names []string) {
	for _, n := range needs {
		for i := range r.steps {
			if r.steps[i].name == n && r.results[i].fault != "" {
				names = append(names, n)
			}
		}
	}
	return names
}

// escape matches the codes by which programs colour their output, and the other characters that
// Markdown should not contain.
var escape = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")

// clean returns output without names of the user's folders and without control characters. Of a
// line that a progress bar has rewritten, the last state remains.
func (r *report) clean(output string) string {
	var b strings.Builder
	for line := range strings.Lines(strings.ToValidUTF8(output, "\uFFFD")) {
		line = strings.TrimRight(line, "\r\n")
		if i := strings.LastIndexByte(line, '\r'); i >= 0 {
			line = line[i+1:]
		}
		b.WriteString(r.private.Replace(escape.ReplaceAllString(line, "")))
		b.WriteByte('\n')
	}
	return b.String()
}

// text returns the report in Markdown.
func (r *report) text() string {
	var b strings.Builder
	bad, done := 0, 0
	for _, res := range r.results {
		if res.done {
			done++
		}
		if res.fault != "" {
			bad++
		}
	}
	fmt.Fprintf(&b, "# Pianola on a Mac\n\n%s: %d of %d steps have run, %d failed.\n\n", r.start.UTC().Format(time.DateTime+" UTC"), done, len(r.steps), bad)
	b.WriteString("| step | result | seconds |\n|---|---|---|\n")
	for i, res := range r.results {
		outcome := "passed"
		switch {
		case !res.done:
			outcome = "not run"
		case res.fault != "":
			outcome = "**failed**: " + strings.ReplaceAll(r.private.Replace(res.fault), "|", "\\|")
		}
		fmt.Fprintf(&b, "| %s | %s | %.1f |\n", r.steps[i].name, outcome, res.took.Seconds())
	}
	for i, res := range r.results {
		if !res.done {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n", r.steps[i].name, r.steps[i].about)
		output := r.clean(res.output)
		fence := "```"
		for strings.Contains(output, fence) {
			fence += "`"
		}
		fmt.Fprintf(&b, "%stext\n$ %s\n%s", fence, r.private.Replace(r.steps[i].String()), output)
		if res.fault != "" {
			fmt.Fprintf(&b, "failed: %s\n", r.private.Replace(res.fault))
		}
		b.WriteString(fence + "\n")
	}
	return b.String()
}
