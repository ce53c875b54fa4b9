//go:build darwin || dragonfly || freebsd || netbsd || openbsd || solaris

package cpu

// noReserve is nothing: these systems count a page when it is written.
const noReserve = 0

// smallPages does nothing: there is no such advice here.
func smallPages([]byte) {}
