package driver

import (
	"bytes"
	"fmt"
	"runtime"
	"unsafe"
)

// Options of the driver's assembler and linker (CUjit_option).
const (
	jitErrorLog      = 5
	jitErrorLogBytes = 6
	jitTarget        = 9
)

// acceleratedTarget is added to a compute capability to select the instructions that only GPUs of
// that capability have, such as those of sm_90a (CU_COMPUTE_ACCELERATED_TARGET_BASE).
const acceleratedTarget = 0x10000

// jitLog receives the assembler's error log. The driver keeps its address, so it is pinned.
type jitLog struct {
	pin    runtime.Pinner
	text   [4096]byte
	keys   [3]int32
	values [3]uintptr
	n      int
}

// newJITLog returns a log and options that make the driver write to it. The caller must call
// release when the driver no longer uses it.
func newJITLog() *jitLog {
	l := new(jitLog)
	l.pin.Pin(l)
	l.option(jitErrorLog, uintptr(unsafe.Pointer(&l.text)))
	l.option(jitErrorLogBytes, uintptr(len(l.text)))
	return l
}

func (l *jitLog) option(key int32, value uintptr) {
	l.keys[l.n], l.values[l.n] = key, value
	l.n++
}

func (l *jitLog) release() { l.pin.Unpin() }

// add sets the log of a failed call's error.
func (l *jitLog) add(err error) error {
	if e, ok := err.(*Error); ok {
		text, _, _ := bytes.Cut(l.text[:], []byte{0})
		e.Log = string(bytes.TrimSpace(text))
	}
	return err
}

// checkText returns an error if PTX text does not end in a zero byte.
func checkText(s symbol, ptx []byte) error {
	if len(ptx) == 0 || ptx[len(ptx)-1] != 0 {
		return fmt.Errorf("%v: the text does not end in a zero byte", s)
	}
	return nil
}

// ModuleLoad assembles PTX text, which must end in a zero byte, for the device. The error
// includes the assembler's log.
func (d *Driver) ModuleLoad(ptx []byte) (Module, error) {
	if err := checkText(cuModuleLoadDataEx, ptx); err != nil {
		return 0, err
	}
	log := newJITLog()
	defer log.release()
	var m Module
	err := d.call(cuModuleLoadDataEx, uintptr(unsafe.Pointer(&m)), uintptr(unsafe.Pointer(&ptx[0])),
		uintptr(log.n), uintptr(unsafe.Pointer(&log.keys)), uintptr(unsafe.Pointer(&log.values)))
	return m, log.add(err)
}

// ModuleLoadImage loads the code that Assemble returned. The driver trusts it: it must be complete
// and unchanged.
func (d *Driver) ModuleLoadImage(image []byte) (Module, error) {
	if len(image) == 0 {
		return 0, fmt.Errorf("%v: the image is empty", cuModuleLoadData)
	}
	var m Module
	err := d.call(cuModuleLoadData, uintptr(unsafe.Pointer(&m)), uintptr(unsafe.Pointer(&image[0])))
	return m, err
}

// Assemble assembles PTX text, which must end in a zero byte, and returns the device's code (a
// cubin). accelerated is the compute capability of a text for GPUs of exactly that capability,
// such as 90 for sm_90a; 0 selects the device's own capability. Several threads may assemble at
// the same time. The error includes the assembler's log.
func (d *Driver) Assemble(ptx []byte, accelerated int) (image []byte, err error) {
	const inputPTX = 1 // CU_JIT_INPUT_PTX
	if err := checkText(cuLinkAddData, ptx); err != nil {
		return nil, err
	}
	log := newJITLog()
	defer log.release()
	if accelerated != 0 {
		log.option(jitTarget, acceleratedTarget+uintptr(accelerated))
	}
	var state uintptr
	err = d.call(cuLinkCreate, uintptr(log.n), uintptr(unsafe.Pointer(&log.keys)), uintptr(unsafe.Pointer(&log.values)), uintptr(unsafe.Pointer(&state)))
	if err != nil {
		return nil, log.add(err)
	}
	defer func() {
		if e := d.call(cuLinkDestroy, state); err == nil && e != nil {
			image, err = nil, e
		}
	}()
	err = d.call(cuLinkAddData, state, inputPTX, uintptr(unsafe.Pointer(&ptx[0])), uintptr(len(ptx)), 0, 0, 0, 0)
	if err != nil {
		return nil, log.add(err)
	}
	var code *byte // belongs to the link
	var size uintptr
	if err = d.call(cuLinkComplete, state, uintptr(unsafe.Pointer(&code)), uintptr(unsafe.Pointer(&size))); err != nil {
		return nil, log.add(err)
	}
	if code == nil || size == 0 {
		return nil, fmt.Errorf("%v: no code", cuLinkComplete)
	}
	return bytes.Clone(unsafe.Slice(code, size)), nil
}
