package cpu

import "golang.org/x/sys/unix"

// Arguments of arch_prctl(2): a request for the permission to use a feature of the processor whose
// registers the kernel does not save by default, and AMX's tiles as such a feature.
const (
	archReqXCompPerm = 0x1023
	xfeatureTileData = 18
)

// allowTiles asks the kernel for the permission to use AMX's tiles and reports whether all threads
// of the process have it. Asking again changes nothing. The kernel refuses if it does not save
// tiles, or if a thread's signal stack is too small for them; the Go runtime's stacks are not.
func allowTiles() bool {
	_, _, err := unix.RawSyscall(unix.SYS_ARCH_PRCTL, archReqXCompPerm, xfeatureTileData, 0)
	return err == 0
}
