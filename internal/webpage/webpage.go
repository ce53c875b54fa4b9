// Package webpage assembles self-contained HTML pages: one file with its style, its script and its
// data, which loads nothing from anywhere. A strict content security policy admits the page's own
// style and script by their hashes and nothing else, so a text that reached the page as markup could
// not run. The package knows nothing about the pages' content.
package webpage

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
)

// baseStyle is the part of the style that all pages share: colours in light and dark, and form
// controls.
//
//go:embed base.css
var baseStyle string

// baseScript is the part of the script that all pages share: it makes elements without markup.
//
//go:embed base.js
var baseScript string

// Page is the source of a page. Body, Style and Script are trusted: they come from files of this
// module. Title and Data may contain any text.
type Page struct {
	Title  string
	Body   string
	Style  string
	Script string

	// Data is stored in the page as JSON, in the element with the id "data". nil stores nothing.
	Data any
	// Calls allows the script to send requests to the server that the page came from.
	Calls bool
}

// Document is an assembled page.
type Document struct {
	html   []byte
	policy string
}

// Assemble returns the page as one document.
func (p *Page) Assemble() (*Document, error) {
	style, script := baseStyle+p.Style, baseScript+p.Script
	d := &Document{policy: policy(style, script, p.Calls)}
	var b bytes.Buffer
	b.WriteString("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n")
	// A directive for frames is ignored in an element, but an HTTP header has it too.
	fmt.Fprintf(&b, "<meta http-equiv=\"Content-Security-Policy\" content=\"%s\">\n", html.EscapeString(d.policy))
	b.WriteString("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n")
	b.WriteString("<meta name=\"color-scheme\" content=\"light dark\">\n")
	b.WriteString("<link rel=\"icon\" href=\"data:,\">\n")
	fmt.Fprintf(&b, "<title>%s</title>\n<style>%s</style>\n</head>\n<body>\n%s", html.EscapeString(p.Title), style, p.Body)
	if p.Data != nil {
		data, err := json.Marshal(p.Data) // writes <, > and & as escapes, so the data cannot end its element
		if err != nil {
			return nil, fmt.Errorf("webpage: %w", err)
		}
		fmt.Fprintf(&b, "<script type=\"application/json\" id=\"data\">%s</script>\n", data)
	}
	fmt.Fprintf(&b, "<script>%s</script>\n</body>\n</html>\n", script)
	d.html = b.Bytes()
	return d, nil
}

// policy returns the content security policy of a page.
func policy(style, script string, calls bool) string {
	s := fmt.Sprintf("default-src 'none'; script-src '%s'; style-src '%s'; img-src data:", hash(script), hash(style))
	if calls {
		s += "; connect-src 'self'"
	}
	return s + "; base-uri 'none'; form-action 'none'"
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// HTML returns the document's text, which the caller must not change.
func (d *Document) HTML() []byte { return d.html }

// ServeHTTP sends the document for GET and HEAD.
func (d *Document) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", d.policy+"; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	w.Write(d.html) // the connection's error is the client's
}
