package server

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// anyOrigin in Options.Origins admits the pages of every site.
const anyOrigin = "*"

// checkOrigins checks Options.Origins.
func checkOrigins(origins []string) error {
	for _, o := range origins {
		u, err := url.Parse(o)
		if o != anyOrigin && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || o != u.Scheme+"://"+u.Host) {
			return fmt.Errorf("serve: %q is not an origin such as https://example.org, nor *", o)
		}
	}
	return nil
}

// browsers returns a handler that lets the pages of Options.Origins use the API (CORS), and refuses what a
// page of another site sends through the browser of somebody who visits it. With API keys there is nothing to
// refuse, because such a page has no key.
func (s *Server) browsers(next http.Handler) http.Handler {
	guard := http.NewCrossOriginProtection()
	guard.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, r, refusal(http.StatusForbidden, "", "pages of other origins may not use this service; its option --cors-origin admits them"))
	}))
	guarded := next
	if s.o.Keys == nil {
		guarded = guard.Handler(next)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin := r.Header.Get("Origin")
		h := w.Header()
		if len(s.o.Origins) > 0 {
			h.Add("Vary", "Origin")
		}
		if origin == "" || !slices.Contains(s.o.Origins, origin) && !slices.Contains(s.o.Origins, anyOrigin) {
			guarded.ServeHTTP(w, r)
			return
		}
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Expose-Headers", "X-Request-Id, Retry-After")
		if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
			h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
			h.Set("Access-Control-Allow-Headers", allowedHeaders(r))
			h.Set("Access-Control-Max-Age", "600")
			w.WriteHeader(http.StatusNoContent)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// allowedHeaders returns the header fields that a page asks for. The key among them is the page's own, and
// cookies have no meaning here.
func allowedHeaders(r *http.Request) string {
	asked := r.Header.Get("Access-Control-Request-Headers")
	if len(asked) > 2048 || strings.ContainsFunc(asked, func(c rune) bool { return c < ' ' || c > '~' }) {
		return "Authorization, Content-Type, X-Api-Key"
	}
	return asked
}
