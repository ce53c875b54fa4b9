//go:build (darwin && cgo) || softmetal

package driver

/*
#cgo CFLAGS: -O2
#cgo softmetal CFLAGS: -fblocks -Wall -Wextra -Werror -isystem ${SRCDIR}/../soft/stub
#cgo softmetal LDFLAGS: -lobjc
#cgo darwin LDFLAGS: -framework Foundation -framework Metal -framework CoreGraphics -framework CoreFoundation
#cgo darwin,!ios LDFLAGS: -framework IOKit
#include <stdlib.h>
#include "metal.h"
*/
import "C"

import (
	"bytes"
	"fmt"
	"sync"
	"unsafe"
)

// Here reports whether this build can use Metal.
const Here = true

// device implements Device.
type device struct {
	d *C.pm_device

	mu       sync.Mutex          // guards the residency set
	resident map[Buffer]struct{} // the buffers in it
}

// Open returns the system's default device, or ErrNoMetal with the reason.
func Open() (Device, error) {
	e := new(C.pm_error)
	d := new(device)
	if C.pm_open(&d.d, e) == 0 {
		return nil, fmt.Errorf("%w: %s", ErrNoMetal, C.GoString(&e.text[0]))
	}
	return d, nil
}

func failure(call string, e *C.pm_error) error {
	return &Error{Call: call, Code: int64(e.code), Text: C.GoString(&e.text[0])}
}

// failed returns a chain's fault as an error.
func (c *Chain) failed() error {
	text, _, _ := bytes.Cut(c.Fault.Text[:], []byte{0})
	return &Error{Call: callCommandBuffer, Code: c.Fault.Code, Text: string(text)}
}

func (d *device) Close() {
	C.pm_close(d.d)
	d.d = nil
}

func (d *device) Properties() Properties {
	p := new(C.pm_properties)
	C.pm_describe(d.d, p)
	return properties(p)
}

func properties(p *C.pm_properties) Properties {
	return Properties{
		MaxBuffer: uint64(p.max_buffer), WorkingSet: uint64(p.working_set), Allocated: uint64(p.allocated), MaxThreads: int(p.max_threads),
		ThreadgroupMemory: uint64(p.threadgroup_memory), Page: int(p.page), Family: int(p.family), Cores: int(p.cores),
		Timestamps: Timestamps(p.timestamps), Residency: p.residency != 0, Registry: uint64(p.registry),
		Name: C.GoString(&p.name[0]), OS: C.GoString(&p.os[0]),
	}
}

// first returns the address of b's first byte, or of some byte if b is empty.
func first(b []byte) unsafe.Pointer {
	if len(b) == 0 {
		b = []byte{0}
	}
	return unsafe.Pointer(unsafe.SliceData(b))
}

func (d *device) LibrarySource(source []byte) (Library, error) {
	e := new(C.pm_error)
	l := C.pm_library_source(d.d, (*C.char)(first(source)), C.uint64_t(len(source)), e)
	if l == nil {
		return 0, failure("newLibraryWithSource:options:error:", e)
	}
	return Object(uintptr(l)), nil
}

func (d *device) LibraryData(data []byte) (Library, error) {
	e := new(C.pm_error)
	l := C.pm_library_data(d.d, first(data), C.uint64_t(len(data)), e)
	if l == nil {
		return 0, failure("newLibraryWithData:error:", e)
	}
	return Object(uintptr(l)), nil
}

func (d *device) Archive(file string) (Archive, error) {
	e := new(C.pm_error)
	var path *C.char
	if file != "" {
		path = C.CString(file)
		defer C.free(unsafe.Pointer(path))
	}
	a := C.pm_open_archive(d.d, path, e)
	if a == nil {
		return 0, failure("newBinaryArchiveWithDescriptor:error:", e)
	}
	return Object(uintptr(a)), nil
}

func (d *device) SaveArchive(a Archive, file string) error {
	e, path := new(C.pm_error), C.CString(file)
	defer C.free(unsafe.Pointer(path))
	if C.pm_save_archive(a.Pointer(), path, e) == 0 {
		return failure("serializeToURL:error:", e)
	}
	return nil
}

func (d *device) Pipeline(l Library, a Archive, function string, constants []Constant, threads int, indirect bool) (Pipeline, error) {
	e, name := new(C.pm_error), C.CString(function)
	defer C.free(unsafe.Pointer(name))
	values := append([]Constant{}, constants...)
	n := len(values)
	values = append(values, Constant{}) // must not be empty
	flag := C.int(0)
	if indirect {
		flag = 1
	}
	out := new(C.pm_pipeline)
	if C.pm_make_pipeline(d.d, l.Pointer(), a.Pointer(), name, (*C.pm_constant)(unsafe.Pointer(&values[0])), C.uint32_t(n), C.uint32_t(threads), flag, out, e) == 0 {
		return Pipeline{}, failure("pipeline "+function, e)
	}
	return Pipeline{
		Handle: Object(uintptr(out.handle)), MaxThreads: int(out.max_threads), SIMDWidth: int(out.simd_width),
		ThreadgroupMemory: uint64(out.threadgroup_memory), Archived: Archived(out.archived),
	}, nil
}

func (d *device) Buffer(length uint64) (Buffer, []byte, error) {
	e := new(C.pm_error)
	var contents unsafe.Pointer
	b := C.pm_make_buffer(d.d, C.uint64_t(length), &contents, e)
	if b == nil {
		return 0, nil, failure(callBuffer, e)
	}
	return d.reside(b), unsafe.Slice((*byte)(contents), length), nil
}

func (d *device) Wrap(mem []byte) (Buffer, error) {
	e := new(C.pm_error)
	b := C.pm_wrap_buffer(d.d, first(mem), C.uint64_t(len(mem)), e)
	if b == nil {
		return 0, failure("newBufferWithBytesNoCopy:length:options:deallocator:", e)
	}
	return d.reside(b), nil
}

// reside adds a buffer to the residency set. Release removes it.
func (d *device) reside(b unsafe.Pointer) Buffer {
	d.mu.Lock()
	defer d.mu.Unlock()
	C.pm_reside(d.d, b)
	if d.resident == nil {
		d.resident = map[Buffer]struct{}{}
	}
	d.resident[Object(uintptr(b))] = struct{}{}
	return Object(uintptr(b))
}

func (d *device) Recording(commands int) (Recording, error) {
	e := new(C.pm_error)
	r := C.pm_make_recording(d.d, C.uint32_t(commands), e)
	if r == nil {
		return 0, failure(callRecording, e)
	}
	return Object(uintptr(r)), nil
}

func (d *device) Record(r Recording, at int, c []Command, b *Bound) error {
	e := new(C.pm_error)
	if C.pm_record(r.Pointer(), C.uint32_t(at), (*C.pm_command)(unsafe.Pointer(unsafe.SliceData(c))), C.uint32_t(len(c)), (*C.pm_bound)(unsafe.Pointer(b)), e) == 0 {
		return failure("indirect command buffer", e)
	}
	return nil
}

func (d *device) Commit(c *Chain) error {
	if C.pm_commit(d.d, (*C.pm_chain)(unsafe.Pointer(c))) == 0 {
		return c.failed()
	}
	return nil
}

func (d *device) Wait(c *Chain) error {
	if C.pm_wait((*C.pm_chain)(unsafe.Pointer(c))) == 0 {
		return c.failed()
	}
	return nil
}

func (d *device) Timed(c *Chain, seconds []float64) (failed int, err error) {
	at := new(C.uint32_t)
	if C.pm_timed(d.d, (*C.pm_chain)(unsafe.Pointer(c)), (*C.double)(unsafe.Pointer(unsafe.SliceData(seconds))), at) == 0 {
		return int(int32(*at)), c.failed()
	}
	return -1, nil
}

func (d *device) Touch(buffers []Buffer, into Buffer) error {
	e := new(C.pm_error)
	if C.pm_touch(d.d, (*unsafe.Pointer)(unsafe.Pointer(unsafe.SliceData(buffers))), C.uint32_t(len(buffers)), into.Pointer(), e) == 0 {
		return failure(callCommandBuffer, e)
	}
	return nil
}

func (d *device) Label(text string) (Label, error) {
	s := C.CString(text)
	defer C.free(unsafe.Pointer(s))
	l := C.pm_label(s)
	if l == nil {
		return 0, fmt.Errorf("label %q: %w", text, ErrOutOfMemory)
	}
	return Object(uintptr(l)), nil
}

func (d *device) Release(o Object) {
	d.mu.Lock()
	if _, in := d.resident[o]; in {
		delete(d.resident, o)
		C.pm_evict(d.d, o.Pointer())
	}
	d.mu.Unlock()
	C.pm_release(o.Pointer())
}

func (d *device) Alloc(size uintptr) (unsafe.Pointer, error) {
	p := C.calloc(1, C.size_t(size))
	if p == nil {
		return nil, fmt.Errorf("%d bytes: %w", size, ErrOutOfMemory)
	}
	return p, nil
}

func (d *device) Free(p unsafe.Pointer) { C.free(p) }

// Compile-time checks that both languages use the same struct layout.
var (
	_ = [1]int{}[unsafe.Sizeof(Command{})-C.sizeof_pm_command]
	_ = [1]int{}[unsafe.Sizeof(Run{})-C.sizeof_pm_run]
	_ = [1]int{}[unsafe.Sizeof(Chain{})-C.sizeof_pm_chain]
	_ = [1]int{}[unsafe.Sizeof(Bound{})-C.sizeof_pm_bound]
	_ = [1]int{}[unsafe.Sizeof(Constant{})-C.sizeof_pm_constant]
)
