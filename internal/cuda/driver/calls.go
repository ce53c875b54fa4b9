package driver

import (
	"bytes"
	"fmt"
	"runtime"
	"sync"
	"unsafe"
)

// Driver is the opened library. Its methods may be called from several
// threads.
type Driver struct {
	fns     [symbols]uintptr
	version Version
	popped  Context   // what CtxPop wrote last; nobody reads it
	args    sync.Pool // of *[4]uintptr, for calls that must not allocate
}

// Open opens the driver's library, "" for the system's, and initialises it.
// The error is ErrNoDriver, ErrTooOld or ErrNoDevice, with the reason.
func Open(path string) (*Driver, error) {
	if path == "" {
		path = Library
	}
	fns, err := open(path)
	if err != nil {
		return nil, err
	}
	d := &Driver{fns: fns, args: sync.Pool{New: func() any { return new([4]uintptr) }}}
	if err := d.call(cuDriverGetVersion, uintptr(unsafe.Pointer(&d.version))); err != nil {
		return nil, err
	}
	if d.version < Oldest {
		return nil, fmt.Errorf("%w: it is made for CUDA %v, at least %v is needed", ErrTooOld, d.version, Oldest)
	}
	if err := d.call(cuInit, 0); err != nil {
		return nil, initError(err)
	}
	return d, nil
}

// initError puts what is known about a failed start before the driver's code.
func initError(err error) error {
	e := err.(*Error) // call gives no other
	for _, why := range []error{ErrNoDevice, ErrNoDriver, ErrTooOld} {
		if e.Is(why) {
			return fmt.Errorf("%w: %w", why, err)
		}
	}
	return err
}

// Version returns the driver's version.
func (d *Driver) Version() Version { return d.version }

// call calls a function and makes an error of its code.
//
//go:uintptrescapes
func (d *Driver) call(s symbol, args ...uintptr) error {
	if code := invoke(d.fns[s], args...); code != 0 {
		return d.failed(s, code)
	}
	return nil
}

// hot is call for functions of up to four arguments that replaying uses: its
// arguments are not put in a slice of their own, which would be allocated.
// Arguments that a function does not have, it does not read.
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

// cString copies a string of C that is not long.
func cString(p *byte) string {
	const most = 128
	n := 0
	for n < most && *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}

// DeviceCount returns how many GPUs there are.
func (d *Driver) DeviceCount() (int, error) {
	var n int32
	err := d.call(cuDeviceGetCount, uintptr(unsafe.Pointer(&n)))
	return int(n), err
}

// DeviceGet returns the GPU of an ordinal.
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

// PrimaryCtxRetain returns the GPU's context that the whole process shares.
// Each retain needs a release.
func (d *Driver) PrimaryCtxRetain(dev Device) (Context, error) {
	var c Context
	err := d.call(cuDevicePrimaryCtxRetain, uintptr(unsafe.Pointer(&c)), uintptr(dev))
	return c, err
}

// PrimaryCtxRelease gives the context back.
func (d *Driver) PrimaryCtxRelease(dev Device) error {
	return d.call(cuDevicePrimaryCtxRelease, uintptr(dev))
}

// CtxPush makes a context current on the calling thread.
func (d *Driver) CtxPush(c Context) error { return d.hot(cuCtxPushCurrent, uintptr(c), 0, 0, 0) }

// CtxPop makes the context current that was so before.
func (d *Driver) CtxPop() error {
	return d.hot(cuCtxPopCurrent, uintptr(unsafe.Pointer(&d.popped)), 0, 0, 0)
}

// MemGetInfo returns the bytes of the device's memory that are free.
func (d *Driver) MemGetInfo() (free uint64, err error) {
	var total uint64
	err = d.call(cuMemGetInfo, uintptr(unsafe.Pointer(&free)), uintptr(unsafe.Pointer(&total)))
	return free, err
}

// MemAlloc allocates n > 0 bytes of device memory, aligned to 256 and with any
// contents.
func (d *Driver) MemAlloc(n uint64) (Ptr, error) {
	var p Ptr
	err := d.call(cuMemAlloc, uintptr(unsafe.Pointer(&p)), uintptr(n))
	return p, err
}

// MemFree frees what MemAlloc gave.
func (d *Driver) MemFree(p Ptr) error { return d.call(cuMemFree, uintptr(p)) }

// MemHostAlloc allocates n > 0 bytes of host memory that the device copies
// from and to by itself. The bytes are not the garbage collector's.
func (d *Driver) MemHostAlloc(n int) ([]byte, error) {
	var p *byte
	if err := d.call(cuMemHostAlloc, uintptr(unsafe.Pointer(&p)), uintptr(n), 0); err != nil {
		return nil, err
	}
	return unsafe.Slice(p, n), nil
}

// MemFreeHost frees what MemHostAlloc gave.
func (d *Driver) MemFreeHost(b []byte) error {
	return d.call(cuMemFreeHost, uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}

// MemsetD8Async sets n bytes at p.
func (d *Driver) MemsetD8Async(p Ptr, value byte, n uint64, s Stream) error {
	return d.hot(cuMemsetD8Async, uintptr(p), uintptr(value), uintptr(n), uintptr(s))
}

// MemcpyHtoDAsync copies src to the device. Pinned bytes must stay as they are
// until the stream has done it; others only until the call returns.
func (d *Driver) MemcpyHtoDAsync(dst Ptr, src []byte, s Stream) error {
	return d.hot(cuMemcpyHtoDAsync, uintptr(dst), uintptr(unsafe.Pointer(unsafe.SliceData(src))), uintptr(len(src)), uintptr(s))
}

// MemcpyDtoHAsync copies from the device to dst, which holds the bytes when
// the stream has done it.
func (d *Driver) MemcpyDtoHAsync(dst []byte, src Ptr, s Stream) error {
	return d.hot(cuMemcpyDtoHAsync, uintptr(unsafe.Pointer(unsafe.SliceData(dst))), uintptr(src), uintptr(len(dst)), uintptr(s))
}

// MemcpyDtoDAsync copies n bytes of the device to others of it.
func (d *Driver) MemcpyDtoDAsync(dst, src Ptr, n uint64, s Stream) error {
	return d.hot(cuMemcpyDtoDAsync, uintptr(dst), uintptr(src), uintptr(n), uintptr(s))
}

// StreamCreate makes a stream that does not wait for the default one.
func (d *Driver) StreamCreate() (Stream, error) {
	const nonBlocking = 1
	var s Stream
	err := d.call(cuStreamCreate, uintptr(unsafe.Pointer(&s)), nonBlocking)
	return s, err
}

// StreamDestroy destroys a stream.
func (d *Driver) StreamDestroy(s Stream) error { return d.call(cuStreamDestroy, uintptr(s)) }

// StreamSynchronize waits for all that a stream has been given.
func (d *Driver) StreamSynchronize(s Stream) error {
	return d.hot(cuStreamSynchronize, uintptr(s), 0, 0, 0)
}

// StreamWaitEvent makes what s is given from now on wait for an event's last
// record.
func (d *Driver) StreamWaitEvent(s Stream, e Event) error {
	return d.hot(cuStreamWaitEvent, uintptr(s), uintptr(e), 0, 0)
}

// EventCreate makes an event; one without timing costs less.
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

// EventRecord records an event behind what s has been given.
func (d *Driver) EventRecord(e Event, s Stream) error {
	return d.hot(cuEventRecord, uintptr(e), uintptr(s), 0, 0)
}

// EventSynchronize waits for an event's last record.
func (d *Driver) EventSynchronize(e Event) error {
	return d.hot(cuEventSynchronize, uintptr(e), 0, 0, 0)
}

// EventElapsedTime sets ms to the milliseconds between two events with timing
// that have happened. It does not return them, so that nothing is allocated.
func (d *Driver) EventElapsedTime(ms *float32, from, to Event) error {
	return d.hot(cuEventElapsedTime, uintptr(unsafe.Pointer(ms)), uintptr(from), uintptr(to), 0)
}

// ModuleLoad assembles PTX text, which must end in a zero byte, for the device.
// The error has the assembler's log.
func (d *Driver) ModuleLoad(ptx []byte) (Module, error) {
	const logBuffer, logBytes = 5, 6 // CU_JIT_ERROR_LOG_BUFFER and its size
	if len(ptx) == 0 || ptx[len(ptx)-1] != 0 {
		return 0, fmt.Errorf("%v: the text does not end in a zero byte", cuModuleLoadDataEx)
	}
	var pin runtime.Pinner // values has the log's address as a number
	defer pin.Unpin()
	log := new([4096]byte)
	pin.Pin(log)
	options := new([2]int32)
	options[0], options[1] = logBuffer, logBytes
	values := new([2]uintptr)
	values[0], values[1] = uintptr(unsafe.Pointer(log)), uintptr(len(log))
	var m Module
	err := d.call(cuModuleLoadDataEx, uintptr(unsafe.Pointer(&m)), uintptr(unsafe.Pointer(&ptx[0])),
		uintptr(len(options)), uintptr(unsafe.Pointer(options)), uintptr(unsafe.Pointer(values)))
	if e, ok := err.(*Error); ok {
		text, _, _ := bytes.Cut(log[:], []byte{0})
		e.Log = string(bytes.TrimSpace(text))
	}
	return m, err
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

// FunctionMaxThreads returns how many threads a block of a kernel may have.
func (d *Driver) FunctionMaxThreads(f Function) (int, error) {
	var n int32
	err := d.call(cuFuncGetAttribute, uintptr(unsafe.Pointer(&n)), functionMaxThreads, uintptr(f))
	return int(n), err
}

// FunctionAllowShared lets launches of a kernel ask for up to n bytes of
// dynamic shared memory.
func (d *Driver) FunctionAllowShared(f Function, n uint32) error {
	return d.call(cuFuncSetAttribute, uintptr(f), functionMaxDynamicBytes, uintptr(n))
}

// FunctionBlocks returns how many blocks of a kernel a multiprocessor runs at
// once, with so many threads and bytes of dynamic shared memory.
func (d *Driver) FunctionBlocks(f Function, threads int, shared uint32) (int, error) {
	var n int32
	err := d.call(cuOccupancyMaxActiveBlocksPerMultiprocessor, uintptr(unsafe.Pointer(&n)), uintptr(f), uintptr(threads), uintptr(shared))
	return int(n), err
}

// GraphCreate makes an empty graph.
func (d *Driver) GraphCreate() (Graph, error) {
	var g Graph
	err := d.call(cuGraphCreate, uintptr(unsafe.Pointer(&g)), 0)
	return g, err
}

// GraphDestroy destroys a graph; what was instantiated from it stays.
func (d *Driver) GraphDestroy(g Graph) error { return d.call(cuGraphDestroy, uintptr(g)) }

// GraphInstantiate makes a graph ready to launch.
func (d *Driver) GraphInstantiate(g Graph) (GraphExec, error) {
	var e GraphExec
	err := d.call(cuGraphInstantiateWithFlags, uintptr(unsafe.Pointer(&e)), uintptr(g), 0)
	return e, err
}

// GraphExecDestroy destroys what GraphInstantiate made.
func (d *Driver) GraphExecDestroy(e GraphExec) error { return d.call(cuGraphExecDestroy, uintptr(e)) }

// GraphUpload gives a graph to the device ahead of its first launch.
func (d *Driver) GraphUpload(e GraphExec, s Stream) error {
	return d.call(cuGraphUpload, uintptr(e), uintptr(s))
}

// GraphLaunch launches a graph behind what s has been given.
func (d *Driver) GraphLaunch(e GraphExec, s Stream) error {
	return d.hot(cuGraphLaunch, uintptr(e), uintptr(s), 0, 0)
}
