//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd || solaris || windows)

package cpu

// reserve returns n zeroed bytes. The garbage collector takes them back.
func reserve(n int) (b []byte, release func() error, err error) {
	b, err = allocate(uint64(n))
	return b, func() error { return nil }, err
}

// discard does nothing: the pages of b stay.
func discard([]byte) {}
