//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd || solaris || windows)

package hostmem

// Reserve returns n zeroed bytes. The garbage collector takes them back.
func Reserve(n int) (b []byte, release func() error, err error) {
	return make([]byte, n), func() error { return nil }, nil
}

// Discard does nothing: the pages of b stay.
func Discard([]byte) {}
