package weights

import "golang.org/x/sys/unix"

// AvailableMemory returns the size in bytes of the pages that are free, that cache files and
// can be dropped, or that are marked as purgeable.
func AvailableMemory() (n uint64, ok bool) {
	size, err := unix.SysctlUint32("vm.pagesize")
	if err != nil {
		return 0, false
	}
	for _, name := range []string{"vm.page_free_count", "vm.page_pageable_external_count", "vm.page_purgeable_count"} {
		pages, err := unix.SysctlUint32(name)
		if err != nil {
			return 0, false
		}
		n += uint64(pages) * uint64(size)
	}
	return n, true
}
