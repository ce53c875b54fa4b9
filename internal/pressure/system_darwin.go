package pressure

import "golang.org/x/sys/unix"

// System returns the source for this process: the level that the kernel reports to dispatch sources
// too.
func System() (Source, error) {
	k := kernel{}
	_, err := k.Read()
	return k, err
}

type kernel struct{}

// Read implements Source.
func (kernel) Read() (r Reading, err error) {
	level, err := unix.SysctlUint32("kern.memorystatus_vm_pressure_level")
	switch level { // DISPATCH_MEMORYPRESSURE_WARN and DISPATCH_MEMORYPRESSURE_CRITICAL
	case 2:
		r.Kernel = Moderate
	case 4:
		r.Kernel = Critical
	}
	return r, err
}
