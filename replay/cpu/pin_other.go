//go:build !linux

package cpu

import (
	"errors"
	"runtime"
)

// canPin says that threads cannot be bound to processors here.
const canPin = false

var errPin = errors.New("cpu: binding threads to processors is not supported on " + runtime.GOOS)

func allowedCPUs() ([]int, error) { return nil, errPin }

func pinThread(int) error { return errPin }
