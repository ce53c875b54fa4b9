package replay

import (
	"errors"
)

// ErrNoTaps says that a device cannot look at slots between commands.
var ErrNoTaps = errors.New("replay: the device has no taps")

// SetTap makes all submissions from the next call on show what commands write, or no
// more if tap is nil. The error is ErrNoTaps where the device cannot.
func (s *Session) SetTap(tap *Tap) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.done()
	if d, ok := s.m.dev.(Tapper); tap != nil && (!ok || !d.Taps()) {
		return ErrNoTaps
	}
	s.sub.Tap = tap
	return nil
}
