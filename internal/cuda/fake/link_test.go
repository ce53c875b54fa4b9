package fake_test

import (
	"bytes"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/pianola-engine/pianola/internal/cuda/driver"
	"github.com/pianola-engine/pianola/internal/cuda/fake"
)

// TestAssemble assembles texts on several threads and loads the images.
func TestAssemble(t *testing.T) {
	g := newGPU(t)
	exact := bytes.Replace(fake.PTX("gemv"), []byte("sm_90"), []byte("sm_90a"), 1)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			g.current(t, func() {
				text, accelerated := fake.PTX("gemv"), 0
				if i%2 == 1 {
					text, accelerated = exact, 90
				}
				image := must[[]byte](t)(g.Assemble(text, accelerated))
				runtime.GC() // the image is a copy: the link is gone
				m := must[driver.Module](t)(g.ModuleLoadImage(image))
				must[driver.Function](t)(g.ModuleFunction(m, "gemv"))
				ok(t, g.ModuleUnload(m))
			})
		})
	}
	wg.Wait()
	if g.fake.Assembled() != 4 || g.fake.JITs() != 0 {
		t.Errorf("%d assembled, %d from PTX", g.fake.Assembled(), g.fake.JITs())
	}
	if g.Build() == "" || !strings.HasPrefix(g.Build(), "libcuda.so.1 ") {
		t.Errorf("build %q", g.Build())
	}
}

// TestAssembleErrors checks the errors of texts and images that the driver rejects.
func TestAssembleErrors(t *testing.T) {
	g := newGPU(t)
	g.within(t, func() {
		_, err := g.Assemble([]byte("error;\x00"), 0)
		if err == nil || err.Error() != "cuLinkAddData: CUDA_ERROR_INVALID_PTX (218): line 1: this is no PTX" {
			t.Errorf("%v", err)
		}
		if _, err = g.Assemble(fake.PTX("gemv")[:20], 0); err == nil || err.Error() != "cuLinkAddData: the text does not end in a zero byte" {
			t.Errorf("%v", err)
		}
		if _, err = g.ModuleLoadImage(nil); err == nil || err.Error() != "cuModuleLoadData: the image is empty" {
			t.Errorf("%v", err)
		}
		image := must[[]byte](t)(g.Assemble(fake.PTX("gemv"), 0))
		g.fake.SetRevision(1)
		var e *driver.Error
		if _, err = g.ModuleLoadImage(image); !errors.As(err, &e) || e.Code != 209 {
			t.Errorf("%v", err)
		}
		g.fake.RefuseLink(801)
		if _, err = g.Assemble(fake.PTX("gemv"), 0); err == nil || err.Error() != "cuLinkCreate: error (801)" {
			t.Errorf("%v", err)
		}
	})
}
