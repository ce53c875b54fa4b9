//go:build (darwin && cgo) || softmetal

package driver

// #include "metal.h"
import "C"

import (
	"errors"
	"fmt"
	"unsafe"
)

// OpenWith opens a device on the program's own id<MTLDevice> and id<MTLCommandQueue>. It
// retains both until Close.
func OpenWith(native, queue unsafe.Pointer) (Device, error) {
	e := new(C.pm_error)
	d := &device{resident: map[Buffer]struct{}{}}
	if C.pm_open_with(native, queue, &d.d, e) == 0 {
		return nil, fmt.Errorf("a program's own GPU: %w", errors.New(C.GoString(&e.text[0])))
	}
	return d, nil
}

// SystemDevice returns the system's id<MTLDevice>, retained for the caller, or ErrNoMetal.
func SystemDevice() (unsafe.Pointer, error) {
	d := C.pm_system_device()
	if d == nil {
		return nil, fmt.Errorf("%w: there is no Metal device", ErrNoMetal)
	}
	return d, nil
}

// Release releases a device that SystemDevice returned.
func Release(native unsafe.Pointer) { C.pm_release(native) }

// Describe returns the properties of an id<MTLDevice>. It does not use a queue.
func Describe(native unsafe.Pointer) (Properties, error) {
	if native == nil {
		return Properties{}, fmt.Errorf("%w: no device", ErrNoMetal)
	}
	p := new(C.pm_properties)
	C.pm_describe_native(native, p)
	return properties(p), nil
}

func (d *device) Objects() Objects {
	var o C.pm_objects
	C.pm_describe_objects(d.d, &o)
	return Objects{Device: o.device, Queue: o.queue, Fence: o.fence}
}

func (d *device) Begin(c *Chain) error {
	if C.pm_begin(d.d, (*C.pm_chain)(unsafe.Pointer(c))) == 0 {
		return c.failed()
	}
	return nil
}

func (d *device) Encode(c *Chain) error {
	if C.pm_encode(d.d, (*C.pm_chain)(unsafe.Pointer(c))) == 0 {
		return c.failed()
	}
	return nil
}

func (d *device) Send(c *Chain) { C.pm_send((*C.pm_chain)(unsafe.Pointer(c))) }

func (d *device) Drop(c *Chain) { C.pm_drop((*C.pm_chain)(unsafe.Pointer(c))) }
