//go:build !linux

package cpu

import (
	"errors"
	"runtime"
)

// canPin reports whether threads can be bound to processors on this system.
const canPin = false

var errPin = errors.New("cpu: binding threads to processors is not supported on " + runtime.GOOS)

func allowedCPUs() ([]int, error) { return nil, errPin }

func pinThread(int) error { return errPin }
