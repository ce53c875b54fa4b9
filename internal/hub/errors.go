package hub

import "errors"

// Errors that callers test for with errors.Is.
var (
	ErrNotFound = errors.New("hub: not found")        // the repository, revision, file or quantization does not exist
	ErrGated    = errors.New("hub: access denied")    // the repository is gated or private, and the token does not open it
	ErrOffline  = errors.New("hub: offline")          // the cache lacks the model and the hub cannot be reached
	ErrNoSpace  = errors.New("hub: no space")         // the disk has not enough space
	ErrContent  = errors.New("hub: unexpected bytes") // a file has not the size or the hash that the hub announced
)

// failure is an error of one of the kinds above, with a text of its own.
type failure struct {
	kinds []error
	text  string
}

func fail(text string, kinds ...error) error { return &failure{kinds, text} }

func (f *failure) Error() string   { return f.text }
func (f *failure) Unwrap() []error { return f.kinds }
