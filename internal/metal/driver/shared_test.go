//go:build softmetal

package driver

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/pianola-engine/pianola/internal/metal/soft"
)

func TestMain(m *testing.M) {
	if err := soft.Start("../../.."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// clean fails the test at its end if an object is still alive or a rule of Metal was broken.
func clean(t *testing.T) {
	t.Helper()
	soft.Violation()
	objects, bytes := soft.Live()
	t.Cleanup(func() {
		soft.SetGPU("", 0, 0, 0)
		soft.FailAt(0, 0)
		if err := soft.Violation(); err != nil {
			t.Error(err)
		}
		if o, b := soft.Live(); o != objects || b != bytes {
			t.Errorf("%d objects and %d bytes are left", o-objects, b-bytes)
		}
	})
}

// TestOpenWith opens a device on the program's own device and queue. Their reference counts
// must be unchanged afterwards, even if opening fails.
func TestOpenWith(t *testing.T) {
	clean(t)
	native, queue := soft.GPU()
	defer soft.Release(native)
	defer soft.Release(queue)
	of, q := soft.References(native), soft.References(queue)
	same := func(when string) {
		t.Helper()
		if a, b := soft.References(native), soft.References(queue); a != of || b != q {
			t.Errorf("%s: %d and %d references, were %d and %d", when, a, b, of, q)
		}
	}
	d, err := OpenWith(native, queue)
	if err != nil {
		t.Fatal(err)
	}
	o := d.Objects()
	if o.Device != native || o.Queue != queue || o.Fence == nil {
		t.Errorf("%+v", o)
	}
	if soft.References(native) != of+1 || soft.References(queue) != q+1 {
		t.Error("the driver does not keep what it uses")
	}
	d.Close()
	same("closed")
	soft.FailAt(1, 0)
	if _, err := OpenWith(native, queue); err == nil || !strings.Contains(err.Error(), "no fence") {
		t.Errorf("without a fence: %v", err)
	}
	same("failed")

	other, theirs := soft.GPU()
	if _, err := OpenWith(native, theirs); err == nil || !strings.Contains(err.Error(), "another device's") {
		t.Errorf("a queue of another device: %v", err)
	}
	soft.Release(theirs)
	soft.Release(other)
	for _, p := range [][2]unsafe.Pointer{{nil, queue}, {native, nil}} {
		if _, err := OpenWith(p[0], p[1]); err == nil || errors.Is(err, ErrNoMetal) {
			t.Errorf("%v: %v", p, err)
		}
	}
	same("refused")
}

// TestDrop drops a command buffer that was begun.
func TestDrop(t *testing.T) {
	clean(t)
	d, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	chains, err := Slice[Chain](d, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Free(unsafe.Pointer(&chains[0]))
	c := &chains[0]
	if err := d.Begin(c); err != nil || c.CommandBuffer == 0 {
		t.Fatal(err)
	}
	d.Drop(c)
	if c.CommandBuffer != 0 {
		t.Error("there is still a command buffer")
	}
	soft.FailAt(1, 0)
	if err := d.Begin(c); err == nil || c.CommandBuffer != 0 {
		t.Error("Begin succeeded in spite of a fault")
	}
}

// TestProbe reads the family from GPUs and the number of cores from the registry.
func TestProbe(t *testing.T) {
	clean(t)
	for _, c := range []struct {
		name                 string
		family, cores, entry int
		want                 int
	}{
		{"Apple M1", 7, 7, soft.EntryGPU, 7}, {"Apple M4 Max", 9, 32, soft.EntryGPU, 32}, {"Apple M5", 10, 10, soft.EntryClass, 10},
		{"Apple M9", 14, 12, soft.EntryText, 0}, {"Apple M9", 14, 12, soft.EntryNone, 0}, {"Apple M2", 8, 0, soft.EntryGPU, 0},
	} {
		soft.SetGPU(c.name, c.family, c.cores, c.entry)
		d, err := Open()
		if err != nil {
			t.Fatal(err)
		}
		p := d.Properties()
		again, err := Describe(d.Objects().Device)
		if again.Residency = p.Residency; err != nil || again != p {
			t.Errorf("%+v, %v by its device, %+v", again, err, p)
		}
		d.Close()
		if p.Name != c.name || p.Family != c.family || p.Cores != c.want {
			t.Errorf("%+v: %s, family %d, %d cores", c, p.Name, p.Family, p.Cores)
		}
	}
}

// TestSystemDevice retains and releases the system's device.
func TestSystemDevice(t *testing.T) {
	clean(t)
	native, err := SystemDevice()
	if err != nil || soft.References(native) != 1 {
		t.Fatal(err)
	}
	soft.Release(native)
	soft.FailAt(1, 0)
	if _, err := SystemDevice(); !errors.Is(err, ErrNoMetal) {
		t.Error(err)
	}
	if _, err := Describe(nil); !errors.Is(err, ErrNoMetal) {
		t.Error(err)
	}
}
