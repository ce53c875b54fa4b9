package hostmem

import "golang.org/x/sys/unix"

// noReserve keeps the system from counting pages that may never be written.
const noReserve = unix.MAP_NORESERVE

// smallPages asks the system not to use huge pages for b: one written byte would take 2 MiB.
func smallPages(b []byte) { _ = unix.Madvise(b, unix.MADV_NOHUGEPAGE) }
