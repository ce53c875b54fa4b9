package cpu

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// canPin reports whether threads can be bound to processors on this system.
const canPin = true

// allowedCPUs returns the processors that this process may run on.
func allowedCPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("cpu: asking for the thread's processors: %w", err)
	}
	var cpus []int
	for i := range 64 * len(set) {
		if set.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	return cpus, nil
}

// pinThread binds the calling thread to a processor. The goroutine must be locked to the thread.
func pinThread(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("cpu: binding a thread to processor %d: %w", cpu, err)
	}
	return nil
}
