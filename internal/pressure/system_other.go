//go:build !linux && !darwin

package pressure

// System returns ErrUnsupported.
func System() (Source, error) { return nil, ErrUnsupported }
