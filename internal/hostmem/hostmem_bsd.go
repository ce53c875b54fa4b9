//go:build darwin || dragonfly || freebsd || netbsd || openbsd || solaris

package hostmem

// noReserve is 0: these systems count a page when it is written.
const noReserve = 0

// smallPages does nothing: these systems have no such request.
func smallPages([]byte) {}
