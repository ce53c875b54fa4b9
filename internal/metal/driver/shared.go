package driver

import "unsafe"

// Objects are the Metal objects of a device, for programs with their own Metal work. The device
// owns them: retain those that must outlive Close.
type Objects struct {
	Device unsafe.Pointer // id<MTLDevice>
	Queue  unsafe.Pointer // id<MTLCommandQueue>
	Fence  unsafe.Pointer // id<MTLFence>, which each pass of a chain waits for and updates
}

// Pointer returns a handle in the form of C and Objective-C. It is not a Go address.
func (o Object) Pointer() unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&o)) }
