package backend

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"strings"
)

// Marshal returns the JSON of v in one line. Characters of HTML stay as they are.
func Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// Send writes a whole reply. After an error, which is that of a value without a JSON form, nothing has
// been sent.
func Send(w http.ResponseWriter, status int, v any) error {
	b, err := Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b) // a failed write means that the client is gone
	return nil
}

// NewID returns a new id with a prefix.
func NewID(prefix string) string { return prefix + "_" + strings.ToLower(rand.Text()) }
