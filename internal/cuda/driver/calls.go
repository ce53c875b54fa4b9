package driver

import (
	"bytes"
	"fmt"
	"sync"
	"unsafe"
)

// Driver is the opened driver library. Its methods may be called from several threads.
type Driver struct {
	fns     [symbols]uintptr
	version Version
	build   string
	popped  Context   // the context that CtxPop wrote last; never read
	args    sync.Pool // of *[4]uintptr, for calls that must not allocate
}

// Open opens the driver library at path, or the system's if path is "", and initialises it. The
// error wraps ErrNoDriver, ErrTooOld or ErrNoDevice.
func Open(path string) (*Driver, error) {
	if path == "" {
		path = Library
	}
	fns, err := open(path)
	if err != nil {
		return nil, err
	}
	d := &Driver{fns: fns, build: libraryBuild(fns[cuInit]), args: sync.Pool{New: func() any { return new([4]uintptr) }}}
	if err := d.call(cuDriverGetVersion, uintptr(unsafe.Pointer(&d.version))); err != nil {
		return nil, err
	}
	if d.version < Oldest {
		return nil, fmt.Errorf("%w: it supports CUDA %v, want at least %v", ErrTooOld, d.version, Oldest)
	}
	if err := d.call(cuInit, 0); err != nil {
		return nil, initError(err)
	}
	return d, nil
}

// initError wraps the driver's error code in the error that describes a failed start.
func initError(err error) error {
	e := err.(*Error) // call returns no other type
	for _, why := range []error{ErrNoDevice, ErrNoDriver, ErrTooOld} {
		if e.Is(why) {
			return fmt.Errorf("%w: %w", why, err)
		}
	}
	return err
}

// Version returns the driver's version.
func (d *Driver) Version() Version { return d.version }

// Build identifies the build of the driver among those of the same version: the name and the size
// of the library's file. It is "" if they are unknown.
func (d *Driver) Build() string { return d.build }

// call calls a function and returns its error.
//
//go:uintptrescapes
func (d *Driver) call(s symbol, args ...uintptr) error {
	if code := invoke(d.fns[s], args...); code != 0 {
		return d.failed(s, code)
	}
	return nil
}

// hot is call for functions of up to four arguments that are used during replay. It avoids
// allocating a slice for the arguments. A function ignores the arguments that it does not have.
//
//go:uintptrescapes
func (d *Driver) hot(s symbol, a0, a1, a2, a3 uintptr) error {
	args := d.args.Get().(*[4]uintptr)
	*args = [...]uintptr{a0, a1, a2, a3}
	code := invoke(d.fns[s], args[:]...)
	d.args.Put(args)
	if code != 0 {
		return d.failed(s, code)
	}
	return nil
}

func (d *Driver) failed(s symbol, code Code) error {
	e := &Error{Call: s.String(), Code: code}
	var name *byte
	if invoke(d.fns[cuGetErrorName], uintptr(code), uintptr(unsafe.Pointer(&name))) == 0 && name != nil {
		e.Name = cString(name)
	}
	return e
}

// cString copies a short C string.
func cString(p *byte) string {
	const most = 128
	n := 0
	for n < most && *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}

// DeviceCount returns the number of GPUs.
func (d *Driver) DeviceCount() (int, error) {
	var n int32
	err := d.call(cuDeviceGetCount, uintptr(unsafe.Pointer(&n)))
	return int(n), err
}

// DeviceGet returns the GPU with the given ordinal.
func (d *Driver) DeviceGet(ordinal int) (Device, error) {
	var dev Device
	err := d.call(cuDeviceGet, uintptr(unsafe.Pointer(&dev)), uintptr(ordinal))
	return dev, err
}

// DeviceName returns a GPU's name.
func (d *Driver) DeviceName(dev Device) (string, error) {
	var name [128]byte
	err := d.call(cuDeviceGetName, uintptr(unsafe.Pointer(&name)), uintptr(len(name)), uintptr(dev))
	text, _, _ := bytes.Cut(name[:], []byte{0})
	return string(text), err
}

// DeviceTotalMem returns a GPU's memory in bytes.
func (d *Driver) DeviceTotalMem(dev Device) (uint64, error) {
	var n uint64
	err := d.call(cuDeviceTotalMem, uintptr(unsafe.Pointer(&n)), uintptr(dev))
	return n, err
}

// DeviceAttribute returns an attribute of a GPU.
func (d *Driver) DeviceAttribute(dev Device, a Attribute) (int, error) {
	var v int32
	err := d.call(cuDeviceGetAttribute, uintptr(unsafe.Pointer(&v)), uintptr(a), uintptr(dev))
	return int(v), err
}

// PrimaryCtxRetain returns the GPU's primary context, which the whole process shares. Each retain
// needs a release.
func (d *Driver) PrimaryCtxRetain(dev Device) (Context, error) {
	var c Context
	err := d.call(cuDevicePrimaryCtxRetain, uintptr(unsafe.Pointer(&c)), uintptr(dev))
	return c, err
}

// PrimaryCtxRelease releases the context.
func (d *Driver) PrimaryCtxRelease(dev Device) error {
	return d.call(cuDevicePrimaryCtxRelease, uintptr(dev))
}

// CtxPush makes a context current on the calling thread.
func (d *Driver) CtxPush(c Context) error { return d.hot(cuCtxPushCurrent, uintptr(c), 0, 0, 0) }

// CtxPop makes the previous context current again.
func (d *Driver) CtxPop() error {
	return d.hot(cuCtxPopCurrent, uintptr(unsafe.Pointer(&d.popped)), 0, 0, 0)
}

// MemGetInfo returns the free bytes of device memory.
func (d *Driver) MemGetInfo() (free uint64, err error) {
	var total uint64
	err = d.call(cuMemGetInfo, uintptr(unsafe.Pointer(&free)), uintptr(unsafe.Pointer(&total)))
	return free, err
}

// MemAlloc allocates n > 0 bytes of device memory, aligned to 256. The content is undefined.
func (d *Driver) MemAlloc(n uint64) (Ptr, error) {
	var p Ptr
	err := d.call(cuMemAlloc, uintptr(unsafe.Pointer(&p)), uintptr(n))
	return p, err
}

// MemFree frees memory that MemAlloc returned.
func (d *Driver) MemFree(p Ptr) error { return d.call(cuMemFree, uintptr(p)) }

// MemHostAlloc allocates n > 0 bytes of pinned host memory, which the device copies directly. The
// garbage collector does not manage it.
func (d *Driver) MemHostAlloc(n int) ([]byte, error) {
	var p *byte
	if err := d.call(cuMemHostAlloc, uintptr(unsafe.Pointer(&p)), uintptr(n), 0); err != nil {
		return nil, err
	}
	return unsafe.Slice(p, n), nil
}

// MemFreeHost frees memory that MemHostAlloc returned.
func (d *Driver) MemFreeHost(b []byte) error {
	return d.call(cuMemFreeHost, uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}

// MemsetD8Async sets n bytes at p to value.
func (d *Driver) MemsetD8Async(p Ptr, value byte, n uint64, s Stream) error {
	return d.hot(cuMemsetD8Async, uintptr(p), uintptr(value), uintptr(n), uintptr(s))
}

// MemcpyHtoDAsync copies src to the device. Pinned memory must not change until the stream has
// executed the copy; other memory may change once the call returns.
func (d *Driver) MemcpyHtoDAsync(dst Ptr, src []byte, s Stream) error {
	return d.hot(cuMemcpyHtoDAsync, uintptr(dst), uintptr(unsafe.Pointer(unsafe.SliceData(src))), uintptr(len(src)), uintptr(s))
}

// MemcpyDtoHAsync copies from the device to dst. dst is valid once the stream has executed the
// copy.
func (d *Driver) MemcpyDtoHAsync(dst []byte, src Ptr, s Stream) error {
	return d.hot(cuMemcpyDtoHAsync, uintptr(unsafe.Pointer(unsafe.SliceData(dst))), uintptr(src), uintptr(len(dst)), uintptr(s))
}

// MemcpyDtoDAsync copies n bytes within device memory.
func (d *Driver) MemcpyDtoDAsync(dst, src Ptr, n uint64, s Stream) error {
	return d.hot(cuMemcpyDtoDAsync, uintptr(dst), uintptr(src), uintptr(n), uintptr(s))
}

// Rows are ranges of device memory at equal distances: Count of Size bytes each.
type Rows struct {
	To, From           Ptr
	ToPitch, FromPitch uint64 // bytes from one range to the next, at least Size
	Size, Count        uint64
}

// rowsPlace is one side of a CUDA_MEMCPY2D.
type rowsPlace struct {
	x, y  uint64
	kind  uint64 // CU_MEMORYTYPE_DEVICE
	host  uintptr
	at    Ptr
	array uintptr
	pitch uint64
}

// copyRows is a CUDA_MEMCPY2D.
type copyRows struct {
	from, to      rowsPlace
	width, height uint64
}

// MemcpyRowsAsync copies rows within device memory. Neither side's rows may overlap the other's.
func (d *Driver) MemcpyRowsAsync(r *Rows, s Stream) error {
	const device = 2
	c := &copyRows{
		from:  rowsPlace{kind: device, at: r.From, pitch: r.FromPitch},
		to:    rowsPlace{kind: device, at: r.To, pitch: r.ToPitch},
		width: r.Size, height: r.Count,
	}
	return d.call(cuMemcpy2DAsync, uintptr(unsafe.Pointer(c)), uintptr(s))
}

// StreamCreate creates a stream that does not synchronize with the default stream.
func (d *Driver) StreamCreate() (Stream, error) {
	const nonBlocking = 1
	var s Stream
	err := d.call(cuStreamCreate, uintptr(unsafe.Pointer(&s)), nonBlocking)
	return s, err
}

// StreamDestroy destroys a stream.
func (d *Driver) StreamDestroy(s Stream) error { return d.call(cuStreamDestroy, uintptr(s)) }

// StreamSynchronize waits for all work submitted to a stream.
func (d *Driver) StreamSynchronize(s Stream) error {
	return d.hot(cuStreamSynchronize, uintptr(s), 0, 0, 0)
}

// StreamWaitEvent makes work submitted to s from now on wait for the last record of an event.
func (d *Driver) StreamWaitEvent(s Stream, e Event) error {
	return d.hot(cuStreamWaitEvent, uintptr(s), uintptr(e), 0, 0)
}

// EventCreate creates an event. An event without timing costs less.
func (d *Driver) EventCreate(timing bool) (Event, error) {
	flags := uintptr(2) // CU_EVENT_DISABLE_TIMING
	if timing {
		flags = 0
	}
	var e Event
	err := d.call(cuEventCreate, uintptr(unsafe.Pointer(&e)), flags)
	return e, err
}

// EventDestroy destroys an event.
func (d *Driver) EventDestroy(e Event) error { return d.call(cuEventDestroy, uintptr(e)) }

// EventRecord records an event after the work submitted to s so far.
func (d *Driver) EventRecord(e Event, s Stream) error {
	return d.hot(cuEventRecord, uintptr(e), uintptr(s), 0, 0)
}

// EventSynchronize waits for the last record of an event.
func (d *Driver) EventSynchronize(e Event) error {
	return d.hot(cuEventSynchronize, uintptr(e), 0, 0, 0)
}

// EventElapsedTime sets ms to the milliseconds between two completed events with timing. It has
// no result besides the error, so that nothing is allocated.
func (d *Driver) EventElapsedTime(ms *float32, from, to Event) error {
	return d.hot(cuEventElapsedTime, uintptr(unsafe.Pointer(ms)), uintptr(from), uintptr(to), 0)
}

// ModuleUnload unloads a module.
func (d *Driver) ModuleUnload(m Module) error { return d.call(cuModuleUnload, uintptr(m)) }

// ModuleFunction returns a kernel of a module.
func (d *Driver) ModuleFunction(m Module, name string) (Function, error) {
	var f Function
	c := append([]byte(name), 0)
	err := d.call(cuModuleGetFunction, uintptr(unsafe.Pointer(&f)), uintptr(m), uintptr(unsafe.Pointer(&c[0])))
	return f, err
}

// FunctionMaxThreads returns the largest number of threads in a block of a kernel.
func (d *Driver) FunctionMaxThreads(f Function) (int, error) {
	var n int32
	err := d.call(cuFuncGetAttribute, uintptr(unsafe.Pointer(&n)), functionMaxThreads, uintptr(f))
	return int(n), err
}

// FunctionAllowShared allows launches of a kernel up to n bytes of dynamic shared memory.
func (d *Driver) FunctionAllowShared(f Function, n uint32) error {
	return d.call(cuFuncSetAttribute, uintptr(f), functionMaxDynamicBytes, uintptr(n))
}

// FunctionBlocks returns the number of blocks of a kernel that run concurrently on a
// multiprocessor, given the number of threads and bytes of dynamic shared memory.
func (d *Driver) FunctionBlocks(f Function, threads int, shared uint32) (int, error) {
	var n int32
	err := d.call(cuOccupancyMaxActiveBlocksPerMultiprocessor, uintptr(unsafe.Pointer(&n)), uintptr(f), uintptr(threads), uintptr(shared))
	return int(n), err
}

// GraphCreate creates an empty graph.
func (d *Driver) GraphCreate() (Graph, error) {
	var g Graph
	err := d.call(cuGraphCreate, uintptr(unsafe.Pointer(&g)), 0)
	return g, err
}

// GraphDestroy destroys a graph. Executable graphs instantiated from it remain.
func (d *Driver) GraphDestroy(g Graph) error { return d.call(cuGraphDestroy, uintptr(g)) }

// GraphInstantiate creates an executable graph.
func (d *Driver) GraphInstantiate(g Graph) (GraphExec, error) {
	var e GraphExec
	err := d.call(cuGraphInstantiateWithFlags, uintptr(unsafe.Pointer(&e)), uintptr(g), 0)
	return e, err
}

// GraphExecDestroy destroys an executable graph.
func (d *Driver) GraphExecDestroy(e GraphExec) error { return d.call(cuGraphExecDestroy, uintptr(e)) }

// GraphUpload uploads a graph to the device before its first launch.
func (d *Driver) GraphUpload(e GraphExec, s Stream) error {
	return d.call(cuGraphUpload, uintptr(e), uintptr(s))
}

// GraphLaunch launches a graph after the work submitted to s so far.
func (d *Driver) GraphLaunch(e GraphExec, s Stream) error {
	return d.hot(cuGraphLaunch, uintptr(e), uintptr(s), 0, 0)
}
