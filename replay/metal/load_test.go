//go:build softmetal

package metal_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pianola-engine/pianola/internal/metal/soft"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/replay/metal"
	"github.com/pianola-engine/pianola/table"
)

// TestLoadErrors loads invalid tables and kernels. Load must return an error that names the
// place, must leave nothing allocated on the GPU, and must afterwards accept another table.
func TestLoadErrors(t *testing.T) {
	checked(t)
	cancelled, cancel := context.WithCancel(bg)
	cancel()
	for name, c := range map[string]struct {
		change func(tab *table.Table, k *metal.Kernels)
		ctx    context.Context
		want   string
	}{
		"invalid":     {func(tab *table.Table, _ *metal.Kernels) { tab.Cmds[0].Grid[1] = 7 }, bg, "metal: the table is not valid: "},
		"chip":        {func(tab *table.Table, _ *metal.Kernels) { tab.Header.Device, tab.Header.Chip = "cpu", "cpu" }, bg, "metal: the table was compiled for chip cpu of device cpu"},
		"threads":     {func(tab *table.Table, _ *metal.Kernels) { tab.Cmds[0].Threadgroup[0] = 2048 }, bg, ""},
		"odd threads": {func(tab *table.Table, _ *metal.Kernels) { tab.Cmds[0].Threadgroup[0] = 33 }, bg, "metal: command 0 (the.norm): threadgroup of 33 threads: want a multiple of 32"},
		"memory":      {func(tab *table.Table, _ *metal.Kernels) { tab.Cmds[0].TGMem = 1 << 20 }, bg, "metal: command 0 (the.norm): 1048576 bytes of threadgroup memory exceed the GPU's 32768"},
		"alignment":   {func(_ *table.Table, k *metal.Kernels) { k.BindingAlign = 512 }, bg, ""},
		"no kernel": {func(_ *table.Table, k *metal.Kernels) {
			k.List = slices.DeleteFunc(slices.Clone(k.List), func(k metal.Kernel) bool { return k.Name == "rmsnorm" })
		}, bg, "metal: command 0 (the.norm): there is no kernel rmsnorm"},
		"no patch": {func(_ *table.Table, k *metal.Kernels) {
			k.List = slices.DeleteFunc(slices.Clone(k.List), func(k metal.Kernel) bool { return k.Name == "patch" })
		}, bg, "metal: there is no kernel patch"},
		"no function": {func(_ *table.Table, k *metal.Kernels) {
			k.Source = func() ([]byte, error) { return []byte("kernel void patch("), nil }
		}, bg, "metal: command 0 (the.norm): pipeline rmsnorm: error 2: the library has no function rmsnorm"},
		"unread": {func(_ *table.Table, k *metal.Kernels) {
			k.Source = func() ([]byte, error) { return nil, errors.New("gone") }
		}, bg, "metal: kernels: gone"},
		"source": {func(tab *table.Table, _ *metal.Kernels) {
			tab.Uploads[0].Op, tab.Uploads[0].Tensor = table.UploadCopy, "w"
		}, bg, "metal: upload 0 (w): there is no source"},
		"cancelled": {func(*table.Table, *metal.Kernels) {}, cancelled, "metal: load: context canceled"},
	} {
		m, o := norm(t), options(t, "record")
		k := *o.Kernels
		o.Kernels = &k
		c.change(m.t, &k)
		objects, bytes := soft.Live()
		d, err := metal.New(o)
		if err != nil {
			t.Fatal(err)
		}
		err = d.Load(c.ctx, m.t, nil, replay.LoadOptions{})
		if c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("%s: error %v, want %s", name, err, c.want)
		}
		if c.want == "" && err == nil && name == "threads" {
			t.Errorf("%s: no error", name)
		}
		if name == "cancelled" {
			if err := d.Load(bg, m.t, nil, replay.LoadOptions{}); err != nil {
				t.Errorf("a second time: %v", err)
			}
		}
		if err := d.Close(); err != nil {
			t.Errorf("%s: Close: %v", name, err)
		}
		if o, b := soft.Live(); o != objects || b != bytes {
			t.Errorf("%s: %d objects and %d bytes are left", name, o-objects, b-bytes)
		}
	}
}

// copied is a source without mapped files.
type copied struct{ src replay.Source }

func (c copied) Tensor(name string) ([]byte, error) { return c.src.Tensor(name) }

// TestInPlace uses weights in place in the mapped file and as copies.
func TestInPlace(t *testing.T) {
	checked(t)
	m := tiny(t, "llama/model.gguf")
	var want string
	for _, src := range []replay.Source{m.src, copied{m.src}} {
		d, err := metal.New(options(t, "record"))
		if err != nil {
			t.Fatal(err)
		}
		var seen []uint64
		o := replay.LoadOptions{Progress: func(done, total uint64) {
			if done > total {
				t.Errorf("%d of %d bytes", done, total)
			}
			seen = append(seen, done)
		}}
		if err := d.Load(bg, m.t, src, o); err != nil {
			t.Fatal(err)
		}
		mem := d.Memory()
		if _, mapped := src.(replay.Pager); mapped != (mem.Mapped > 0) || mem.Mapped+mem.Weights == 0 {
			t.Errorf("mapped %t: %+v", mapped, mem)
		}
		if len(seen) == 0 || !slices.IsSorted(seen) {
			t.Errorf("progress %v", seen)
		}
		got := fmt.Sprint(chains(t, d, m.t, begun(t, d), 10, 5))
		if want == "" {
			want = got
		}
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestOverlap checks that a command buffer is encoded while the GPU runs the one before, and
// that at most two are in flight.
func TestOverlap(t *testing.T) {
	checked(t)
	m := single(t, false)
	for _, mode := range metal.Modes() {
		d := load(t, options(t, mode).ForTest(2, false, true), m)
		id := begun(t, d)
		chains(t, d, m.t, id, 2, 1)
		soft.InFlight()
		if res, err := submit(d, decode(m.t, id, 2, 12)); err != nil || res.Count != 12 {
			t.Fatalf("%+v, %v", res, err)
		}
		if n := soft.InFlight(); n != 2 {
			t.Errorf("%s: %d command buffers were in flight", mode, n)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestBound checks that command buffers are limited by the measured time per token.
func TestBound(t *testing.T) {
	checked(t)
	m := single(t, false)
	for _, mode := range metal.Modes() {
		o := options(t, mode)
		o.ChainTime = 100 * time.Millisecond
		d := load(t, o, m)
		id := begun(t, d)
		soft.SetDelay(800) // about 20 ms per token: two fit in half of the limit
		chains(t, d, m.t, id, 4, 1)
		before := soft.Calls()["commit"]
		if res, err := submit(d, decode(m.t, id, 4, 12)); err != nil || res.Count != 12 {
			t.Fatalf("%+v, %v", res, err)
		}
		if n := soft.Calls()["commit"] - before; n < 4 || n > 36 { // on a busy machine a token takes longer than the bound, and several buffers
			t.Errorf("%s: %d command buffers for 12 tokens", mode, n)
		}
		soft.SetDelay(0)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}
