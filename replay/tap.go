package replay

import (
	"errors"
)

// ErrNoTaps is returned by a device that does not support taps.
var ErrNoTaps = errors.New("replay: the device does not support taps")

// SetTap makes all following submissions show what their commands write; nil ends that. The
// error is ErrNoTaps if the device does not support taps.
func (s *Session) SetTap(tap *Tap) error {
	if err := s.single(noTap); tap != nil && err != nil {
		return err
	}
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
