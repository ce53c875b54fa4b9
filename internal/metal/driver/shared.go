package driver

import "unsafe"

// Objects are the objects of a device, for programs with Metal work of their
// own. They stay the device's: who keeps one behind Close must retain it.
type Objects struct {
	Device unsafe.Pointer // id<MTLDevice>
	Queue  unsafe.Pointer // id<MTLCommandQueue>
	Fence  unsafe.Pointer // id<MTLFence>, which each pass of a chain waits for and updates
}

// Pointer returns a handle as C and Objective-C have it. It is no address of
// Go's.
func (o Object) Pointer() unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&o)) }
