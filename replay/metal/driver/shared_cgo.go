//go:build (darwin && cgo) || softmetal

package driver

// #include "metal.h"
import "C"

import (
	"errors"
	"fmt"
	"unsafe"
)

// OpenWith takes a device and a queue of it that the program has already, an
// id<MTLDevice> and an id<MTLCommandQueue>. It retains both until Close and
// leaves the program's own references alone.
func OpenWith(native, queue unsafe.Pointer) (Device, error) {
	e := new(C.pm_error)
	d := new(device)
	if C.pm_open_with(native, queue, &d.d, e) == 0 {
		return nil, fmt.Errorf("a program's own GPU: %w", errors.New(C.GoString(&e.text[0])))
	}
	return d, nil
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
