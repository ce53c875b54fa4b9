package device_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pianola-engine/pianola/internal/device"
	"github.com/pianola-engine/pianola/internal/dtype"
	"github.com/pianola-engine/pianola/replay"
	"github.com/pianola-engine/pianola/table"
)

// source holds tensors in memory. It records the bytes that were released.
type source struct {
	tensors map[string][]byte
	mu      sync.Mutex
	forgot  int
	panics  bool
}

func (s *source) Tensor(name string) ([]byte, error) {
	if b, ok := s.tensors[name]; ok {
		return b, nil
	}
	return nil, fmt.Errorf("no tensor %s", name)
}

func (s *source) Release(b []byte) {
	if s.panics {
		panic("the file has shrunk")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgot += len(b)
}

// Rows and columns of the tiled matrix: several pieces and a tail.
const (
	upCols = 4096
	upRows = 16 * 71
)

// uploads returns a table with every kind of upload: slot 0 is copied, slot 1 is converted from
// three tensors and constants, slot 2 is tiled.
func uploads(tb testing.TB) (*table.Table, *source) {
	tb.Helper()
	const n = 3 << 19
	src := &source{tensors: map[string][]byte{
		"plain": bytes.Repeat([]byte{1, 2, 3, 4}, n), "half": bytes.Repeat([]byte{0, 0x3c, 0, 0xc0}, n/2), "brain": bytes.Repeat([]byte{0x80, 0x3f}, n),
	}}
	size, _ := dtype.Q8_0.Bytes(upRows * upCols)
	src.tensors["q8"] = make([]byte, size)
	if err := dtype.RandomBlocks(dtype.Q8_0, src.tensors["q8"], 7, 1); err != nil {
		tb.Fatal(err)
	}
	tiles, _ := dtype.Tiled16.Bytes(dtype.Q8_0, upRows, upCols)
	t := &table.Table{Const: []byte{9, 8, 7, 6, 5, 4, 3, 2}}
	for i, size := range []uint64{4 * n, 8*n + 4, tiles} {
		t.Slots = append(t.Slots, table.Slot{Name: fmt.Sprint("w", i), Kind: table.SlotWeight, Scope: table.ScopeModel, Size: size})
	}
	t.Slots = append(t.Slots, table.Slot{Name: "tokens", Kind: table.SlotTokens, Scope: table.ScopeSession, Size: 1 << 20})
	t.Uploads = []table.Upload{
		{Op: table.UploadCopy, Type: dtype.F32, Slot: 0, Tensor: "plain", SrcSize: 4 * n},
		{Op: table.UploadToF32, Type: dtype.F16, Slot: 1, Tensor: "half", SrcSize: 2 * n},
		{Op: table.UploadToF32, Type: dtype.BF16, Slot: 1, Tensor: "brain", SrcSize: 2 * n, DstOffset: 4 * n},
		{Op: table.UploadConst, Type: dtype.F32, Slot: 1, SrcOffset: 2, SrcSize: 4, DstOffset: 8 * n},
		{Op: table.UploadTile, Type: dtype.Q8_0, Slot: 2, Tensor: "q8", Cols: upCols, SrcSize: size},
	}
	return t, src
}

// memory returns the expected content of the slots.
func memory(tb testing.TB, t *table.Table, src *source) [][]byte {
	tb.Helper()
	var made []byte
	for _, pair := range [][2]float32{{1, -2}, {1, 1}} {
		one := binary.LittleEndian.AppendUint32(nil, math.Float32bits(pair[0]))
		one = binary.LittleEndian.AppendUint32(one, math.Float32bits(pair[1]))
		made = append(made, bytes.Repeat(one, len(src.tensors["brain"])/4)...)
	}
	tiled := make([]byte, t.Slots[2].Size)
	if err := dtype.Tile(dtype.Q8_0, tiled, src.tensors["q8"], upRows, upCols); err != nil {
		tb.Fatal(err)
	}
	return [][]byte{src.tensors["plain"], append(made, t.Const[2:6]...), tiled}
}

// TestUpload converts everything, both with uploads in place and without.
func TestUpload(t *testing.T) {
	for _, stays := range []bool{false, true} {
		tab, src := uploads(t)
		var seen []uint64
		var total, sum uint64
		u, err := device.NewUpload(bg, "fake", tab, src, replay.LoadOptions{Progress: func(done, all uint64) { seen, total = append(seen, done), all }})
		if err != nil {
			t.Fatal(err)
		}
		mem := make([][]byte, 3)
		for i := range mem {
			mem[i] = make([]byte, tab.Slots[i].Size)
		}
		offered := 0
		if err := u.InPlace(func(up *table.Upload, b []byte) (bool, error) {
			if offered++; up.Tensor != "plain" || &b[0] != &src.tensors["plain"][0] || len(b) != len(src.tensors["plain"]) {
				t.Errorf("%s is offered", up.Tensor)
			}
			if stays {
				mem[up.Slot] = b
			}
			return stays, nil
		}); err != nil || offered != 1 {
			t.Errorf("%v, %d offered", err, offered)
		}
		if err := u.Fill(bg, func(slot uint32) []byte { return mem[slot] }); err != nil {
			t.Fatal(err)
		}
		for i, want := range memory(t, tab, src) {
			if !bytes.Equal(mem[i], want) {
				t.Errorf("slot %d has other bytes", i)
			}
		}
		for _, up := range tab.Uploads {
			sum += up.SrcSize
		}
		first, read := uint64(0), int(sum)-4
		if stays {
			first, read = tab.Uploads[0].SrcSize, read-int(tab.Uploads[0].SrcSize)
		}
		if total != sum || seen[0] != first || seen[len(seen)-1] != total || !slices.IsSorted(seen) || src.forgot != read {
			t.Errorf("progress %v of %d, want %d to %d; %d bytes were released, want %d", seen, total, first, sum, src.forgot, read)
		}
	}
}

// TestCut checks that pieces cover the slots without overlap.
func TestCut(t *testing.T) {
	tab, src := uploads(t)
	u, err := device.NewUpload(bg, "fake", tab, src, replay.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	count, largest := u.Cut()
	filled, most := make([]uint64, 3), 0
	for range count {
		p := u.Next()
		if p.Offset != filled[p.Slot] {
			t.Errorf("slot %d: a piece at %d, want %d", p.Slot, p.Offset, filled[p.Slot])
		}
		filled[p.Slot] += uint64(p.Size)
		most = max(most, p.Size)
	}
	if u.Next() != nil || most != largest || largest > 16<<20 || count != 2+1+1+1+2 {
		t.Errorf("%d pieces of up to %d bytes, but Cut returned %d", count, most, largest)
	}
	for i, n := range filled {
		if n != tab.Slots[i].Size {
			t.Errorf("slot %d: %d bytes of %d", i, n, tab.Slots[i].Size)
		}
	}
}

// TestUploadErrors uses sources and tables that do not match.
func TestUploadErrors(t *testing.T) {
	over, cancel := context.WithCancel(bg)
	cancel()
	for want, change := range map[string]func(tab *table.Table, src *source){
		"upload 1 (half): no tensor half": func(_ *table.Table, src *source) { delete(src.tensors, "half") },
		"upload 2 (brain): offset 0 + 3145728 bytes exceeds the source's 8 bytes": func(_ *table.Table, src *source) {
			src.tensors["brain"] = src.tensors["brain"][:8]
		},
		"upload 0 (plain): offset 18446744073709551615 + ":             func(tab *table.Table, _ *source) { tab.Uploads[0].SrcOffset = 1<<64 - 1 },
		"upload 3 (): offset 6 + 4 bytes exceeds the source's 8 bytes": func(tab *table.Table, _ *source) { tab.Uploads[3].SrcOffset = 6 },
		"upload 1 (half): type I16 cannot be converted to float32":     func(tab *table.Table, _ *source) { tab.Uploads[1].Type = dtype.I16 },
		"upload 1 (half): float32 at offset 2 is not aligned":          func(tab *table.Table, _ *source) { tab.Uploads[1].DstOffset = 2 },
		"upload 0 (plain): slot 2147483648 does not have model scope":  func(tab *table.Table, _ *source) { tab.Uploads[0].Slot = 1 << 31 },
		"upload 0 (plain): slot 3 does not have model scope":           func(tab *table.Table, _ *source) { tab.Uploads[0].Slot = 3 },
		"upload 0 (plain): offset 1 + 6291456 bytes exceeds the slot's 6291456 bytes": func(tab *table.Table, _ *source) {
			tab.Uploads[0].DstOffset = 1
		},
		"upload 4 (q8): 4943872 bytes of Q8_0 are not rows of 0 elements that can be tiled": func(tab *table.Table, _ *source) { tab.Uploads[4].Cols = 0 },
	} {
		tab, src := uploads(t)
		change(tab, src)
		if _, err := device.NewUpload(bg, "fake", tab, src, replay.LoadOptions{}); err == nil || !strings.HasPrefix(err.Error(), "fake: "+want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	tab, src := uploads(t)
	if _, err := device.NewUpload(over, "fake", tab, src, replay.LoadOptions{}); !errors.Is(err, context.Canceled) || err.Error() != "fake: load: context canceled" {
		t.Errorf("%v", err)
	}
	if _, err := device.NewUpload(bg, "fake", tab, nil, replay.LoadOptions{}); err == nil || err.Error() != "fake: upload 0 (plain): there is no source" {
		t.Errorf("%v", err)
	}
	u, err := device.NewUpload(bg, "fake", tab, src, replay.LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := u.InPlace(func(*table.Upload, []byte) (bool, error) { return false, io.ErrUnexpectedEOF }); !errors.Is(err, io.ErrUnexpectedEOF) || !strings.HasPrefix(err.Error(), "fake: upload 0 (plain): ") {
		t.Errorf("%v", err)
	}
}

// TestFillEnds cancels an upload, and uses a source that panics like a mapped file that has
// shrunk.
func TestFillEnds(t *testing.T) {
	// With more threads all pieces may be in work before the first one reports progress.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	for _, what := range []string{"panic", "cancel"} {
		tab, src := uploads(t)
		src.panics = what == "panic"
		var last, total uint64
		u, err := device.NewUpload(ctx, "fake", tab, src, replay.LoadOptions{Progress: func(done, all uint64) {
			if last, total = done, all; done > all/4 && what == "cancel" {
				cancel()
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		err = u.Fill(ctx, func(slot uint32) []byte { return make([]byte, tab.Slots[slot].Size) })
		var p *device.PanicError
		if what == "panic" && (!errors.As(err, &p) || err.Error() != "fake: load: panic: the file has shrunk") {
			t.Errorf("%v", err)
		}
		if what == "cancel" && (!errors.Is(err, context.Canceled) || err.Error() != "fake: load: context canceled") {
			t.Errorf("%v", err)
		}
		if last == total {
			t.Errorf("%s: everything was converted", what)
		}
	}
}
