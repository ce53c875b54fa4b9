package replay

// SetTap makes all following submissions show what their commands write; nil ends that.
func (s *Session) SetTap(tap *Tap) error {
	if err := s.single(noTap); tap != nil && err != nil {
		return err
	}
	if err := s.begin(); err != nil {
		return err
	}
	defer s.done()
	s.sub.Tap = tap
	return nil
}
