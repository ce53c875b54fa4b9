package keys

import (
	"context"
	"errors"
	"net/http"
	"strings"
)

// Presented returns the API key of a request: the bearer token of the field Authorization, which
// OpenAI's clients send, or the field X-Api-Key, which Anthropic's clients send. A request with
// several different keys has none.
func Presented(h http.Header) string {
	key := ""
	for i, value := range append(h.Values("Authorization"), h.Values("X-Api-Key")...) {
		if i < len(h.Values("Authorization")) {
			scheme, token, _ := strings.Cut(value, " ")
			if !strings.EqualFold(scheme, "Bearer") {
				return ""
			}
			value = token
		}
		value = strings.TrimSpace(value)
		if key != "" && value != key {
			return ""
		}
		key = value
	}
	return key
}

// Middleware admits requests before they reach a handler, and releases them after it. The request's
// context has the name of its key. refuse answers the others; the header fields of the refusal are set
// before it is called.
func (k *Keys) Middleware(refuse func(http.ResponseWriter, *http.Request, *Refusal)) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			a, err := k.Admit(Presented(r.Header))
			if refusal := (*Refusal)(nil); errors.As(err, &refusal) {
				refusal.SetHeader(w.Header())
				refuse(w, r, refusal)
				return
			}
			defer a.Release()
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), nameKey{}, a.Name())))
		})
	}
}

// nameKey is the context key of the name.
type nameKey struct{}

// Name returns the name of the key with which a request was admitted, or "".
func Name(ctx context.Context) string {
	name, _ := ctx.Value(nameKey{}).(string)
	return name
}

// Check returns a *Refusal unless a key is known. It counts nothing in the key's limits.
func (k *Keys) Check(presented string) *Refusal {
	_, err := k.find(presented)
	refusal := (*Refusal)(nil)
	errors.As(err, &refusal)
	return refusal
}
