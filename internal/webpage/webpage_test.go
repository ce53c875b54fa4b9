package webpage_test

import (
	"crypto/sha256"
	"encoding/base64"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pianola-engine/pianola/internal/webpage"
)

// TestHostileText puts markup into the title and the data. Neither may become markup of the page.
func TestHostileText(t *testing.T) {
	const evil = "</title></script><script>alert(1)</script><!--"
	p := webpage.Page{Title: evil, Body: "<main></main>", Style: "p{}", Script: "'use strict';", Data: map[string]string{evil: evil}}
	d, err := p.Assemble()
	if err != nil {
		t.Fatal(err)
	}
	text := string(d.HTML())
	if strings.Contains(text, "alert(1)</script>") || strings.Count(text, "<script") != 2 || strings.Contains(text, "<!--") {
		t.Errorf("text became markup:\n%s", text)
	}
}

// TestPolicy checks the headers, and that only a page that calls its server may connect to it.
func TestPolicy(t *testing.T) {
	for _, calls := range []bool{false, true} {
		d, err := (&webpage.Page{Script: "1", Calls: calls}).Assemble()
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		d.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		policy := w.Header().Get("Content-Security-Policy")
		// The browser hashes the text between the tags.
		_, script, _ := strings.Cut(string(d.HTML()), "<script>")
		script, _, _ = strings.Cut(script, "</script>")
		sum := sha256.Sum256([]byte(script))
		hash := "script-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
		for _, want := range []string{"default-src 'none'", hash, "frame-ancestors 'none'", "base-uri 'none'"} {
			if !strings.Contains(policy, want) {
				t.Errorf("policy %q lacks %s", policy, want)
			}
		}
		if strings.Contains(policy, "unsafe") || strings.Contains(policy, "connect-src 'self'") != calls {
			t.Errorf("policy with calls %v: %q", calls, policy)
		}
		if w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Error("no nosniff")
		}
	}
}

// TestMethods sends a method other than GET, and data that JSON cannot represent.
func TestMethods(t *testing.T) {
	d, err := (&webpage.Page{}).Assemble()
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	d.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", nil))
	if w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "GET, HEAD" {
		t.Errorf("POST: status %d, Allow %q", w.Code, w.Header().Get("Allow"))
	}
	if _, err := (&webpage.Page{Data: math.NaN()}).Assemble(); err == nil {
		t.Error("NaN was stored as JSON")
	}
}
