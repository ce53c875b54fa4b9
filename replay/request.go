package replay

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pianola-engine/pianola/internal/schedule"
)

// ErrDeadline is returned if the first token of a request cannot come within RequestOptions.Within.
var ErrDeadline = errors.New("replay: the first token cannot come within the time that the request allows")

// RequestOptions are the settings of single requests to a model for many sequences. Of the fields,
// other models support Prefix.
type RequestOptions struct {
	// Priority is added to SessionOptions.Priority.
	Priority int
	// Within is the time within which the first token must come; 0 sets no limit. A request that
	// cannot meet it ends with ErrDeadline, before more of its prompt is prefilled.
	Within time.Duration
	// Prefix selects what the request shares with other prompts; "" means PrefixOn.
	Prefix PrefixCache
}

// PrefixCache selects what a request does with the KV pages that prompts with the same beginning share.
type PrefixCache string

// The uses of shared pages.
const (
	// PrefixOn takes the pages of a known beginning and leaves those of the prompt to other requests.
	PrefixOn PrefixCache = "on"
	// PrefixOff prefills the whole prompt and keeps its pages from other requests.
	PrefixOff PrefixCache = "off"
	// PrefixPinned is like PrefixOn, and the pages of the prompt are not given up for others until
	// the session pins another prompt or is closed.
	PrefixPinned PrefixCache = "pinned"
)

// SetRequest selects the settings of the following prompts and chains.
func (s *Session) SetRequest(o RequestOptions) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.done()
	if !slices.Contains([]PrefixCache{"", PrefixOn, PrefixOff, PrefixPinned}, o.Prefix) {
		return fmt.Errorf("replay: unknown use of the prefix cache %q (valid: %s, %s, %s)", o.Prefix, PrefixOn, PrefixOff, PrefixPinned)
	}
	switch {
	case o.Within < 0:
		return fmt.Errorf("replay: RequestOptions.Within is %v", o.Within)
	case s.par == nil && o.Within > 0:
		return errors.New("replay: RequestOptions.Within needs a model for many sequences")
	}
	s.settle()
	s.request = o
	return nil
}

// reuses reports whether a prompt takes tokens that the context already holds.
func (s *Session) reuses() bool { return !s.o.NoReuse && s.request.Prefix != PrefixOff }

// caching returns what the next request does with the prefix tree.
func (s *Session) caching() schedule.Caching {
	switch {
	case !s.reuses():
		return schedule.Private
	case s.request.Prefix == PrefixPinned:
		return schedule.Pinned
	}
	return schedule.Shared
}
