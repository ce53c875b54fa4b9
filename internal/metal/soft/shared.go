//go:build softmetal

package soft

// #include <stdlib.h>
// #include "soft.h"
import "C"

import "unsafe"

// Object is a pointer to a Metal object, such as a program passes to the device when it shares its
// own GPU.
type Object = unsafe.Pointer

// The entries of the I/O registry in which SetGPU can place the number of GPU cores.
const (
	EntryGPU   = C.soft_entry_gpu   // the entry with the GPU's registry ID
	EntryClass = C.soft_entry_class // the entry that is found by the class AGXAccelerator
	EntryText  = C.soft_entry_text  // the entry with the GPU's registry ID, as a string instead of a number
	EntryNone  = C.soft_entry_none  // no entry
)

// SetGPU sets the GPU's properties, and the registry entry that holds its number of cores. An
// empty name restores the defaults: an M4 Pro with 20 cores.
func SetGPU(name string, family, cores, entry int) {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	C.soft_gpu_is(s, C.uint32_t(family), C.uint32_t(cores), C.int(entry))
}

// GPU creates a device and a queue of it. Free both with Release.
func GPU() (device, queue Object) {
	C.soft_make_gpu(&device, &queue)
	return device, queue
}

// Buffer creates a buffer. Free it with Release.
func Buffer(device Object, length int) (Object, []byte) {
	var contents unsafe.Pointer
	b := C.soft_make_buffer(device, C.uint64_t(length), &contents)
	return b, unsafe.Slice((*byte)(contents), length)
}

// Contents returns n bytes of a buffer.
func Contents(buffer Object, offset, n uint64) []byte {
	return unsafe.Slice((*byte)(C.soft_contents(buffer)), offset+n)[offset:]
}

// Length returns a buffer's length.
func Length(buffer Object) uint64 { return uint64(C.soft_length(buffer)) }

// CommandBuffer creates a command buffer. Free it with Release. Commit commits it, Wait waits for
// it.
func CommandBuffer(queue Object) Object { return C.soft_command_buffer(queue) }
func Commit(buffer Object)              { C.soft_commit(buffer) }
func Wait(buffer Object)                { C.soft_wait(buffer) }

// Copy encodes a copy of size bytes, after passes that have updated the fence and before those
// that wait for it. With a nil fence, its order is open.
func Copy(buffer, fence, from Object, offset uint64, to Object, toOffset, size uint64) {
	C.soft_encode_copy(buffer, fence, from, C.uint64_t(offset), to, C.uint64_t(toOffset), C.uint64_t(size))
}

// References returns an object's reference count.
func References(o Object) int { return int(C.soft_references(o)) }

// Release releases an object.
func Release(o Object) { C.soft_release(o) }
