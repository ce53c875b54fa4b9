package cpu

import "golang.org/x/sys/unix"

// noReserve keeps the system from counting pages that nobody may ever write.
const noReserve = unix.MAP_NORESERVE

// smallPages asks for no huge pages behind b: one written byte would take 2 MiB.
func smallPages(b []byte) { _ = unix.Madvise(b, unix.MADV_NOHUGEPAGE) }
