//go:build softmetal

package soft

// #include <stdlib.h>
// #include "soft.h"
import "C"

import "unsafe"

// Object is one of Metal's, as a program has it that makes some of its own.
type Object = unsafe.Pointer

// Where the registry has the GPU's cores.
const (
	EntryGPU   = C.soft_entry_gpu   // in the entry of its id
	EntryClass = C.soft_entry_class // in the one that is found by its class
	EntryText  = C.soft_entry_text  // a text stands in their place
	EntryNone  = C.soft_entry_none  // there is no entry
)

// SetGPU sets what the GPU says of itself, and where the registry has its cores.
// An empty name: all as at first, an M4 Pro of 20 cores.
func SetGPU(name string, family, cores, entry int) {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	C.soft_gpu_is(s, C.uint32_t(family), C.uint32_t(cores), C.int(entry))
}

// GPU makes a device and a queue of it, for Release.
func GPU() (device, queue Object) {
	C.soft_make_gpu(&device, &queue)
	return device, queue
}

// Buffer makes a buffer, for Release.
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

// CommandBuffer makes a command buffer, for Release. Commit commits it, Wait
// waits for it.
func CommandBuffer(queue Object) Object { return C.soft_command_buffer(queue) }
func Commit(buffer Object)              { C.soft_commit(buffer) }
func Wait(buffer Object)                { C.soft_wait(buffer) }

// Copy encodes a copy of size bytes, behind what has updated the fence and before
// what waits for it; nil: at any time.
func Copy(buffer, fence, from Object, offset uint64, to Object, toOffset, size uint64) {
	C.soft_encode_copy(buffer, fence, from, C.uint64_t(offset), to, C.uint64_t(toOffset), C.uint64_t(size))
}

// References returns an object's count.
func References(o Object) int { return int(C.soft_references(o)) }

// Release gives an object up.
func Release(o Object) { C.soft_release(o) }
