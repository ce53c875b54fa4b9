package replay_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/pianola-engine/pianola/compiler"
	"github.com/pianola-engine/pianola/replay"
)

// TestParallelSnapshot saves contexts of a model for many sequences while others generate, and restores them in
// the same model and in another one. They continue with the same tokens.
func TestParallelSnapshot(t *testing.T) {
	o := compiler.Options{Context: 100, Sequences: 3, Pages: 6}
	models := []*replay.Model{parallelModel(t, "gemma3_text", o, replay.LoadOptions{}), parallelModel(t, "gemma3_text", o, replay.LoadOptions{})}
	so := replay.SessionOptions{Rollover: replay.Rollover{Sinks: 3, Window: 30}}
	continued := func(s *replay.Session, sampling replay.Sampling) (all []int32, err error) {
		if err := s.SetSampling(sampling); err != nil {
			return nil, err
		}
		for len(all) < 90 {
			tokens, _, err := s.Chain(t.Context(), 90-len(all))
			if err != nil {
				return nil, err
			}
			all = append(all, tokens...)
		}
		return append(all, int32(s.Len())), nil
	}
	save := func(i int) error {
		sampling := replay.Sampling{}
		if i%2 > 0 {
			sampling = replay.Sampling{Temperature: 0.9, Seed: uint64(i)}
		}
		s, err := models[0].NewSession(so)
		if err != nil {
			return err
		}
		defer s.Close()
		if err := s.SetSampling(sampling); err != nil {
			return err
		}
		if _, _, err := s.Prompt(t.Context(), prompt(60+i)); err != nil {
			return err
		}
		if i%3 > 0 { // rolls over
			if _, err := continued(s, sampling); err != nil {
				return err
			}
		}
		var b bytes.Buffer
		if err := s.Snapshot(&b); err != nil {
			return err
		}
		want, err := continued(s, sampling)
		if err != nil {
			return err
		}
		for _, m := range models {
			r, err := m.Restore(bytes.NewReader(b.Bytes()), so)
			if err != nil {
				return err
			}
			got, err := continued(r, sampling)
			if err = errors.Join(err, r.Close()); err != nil {
				return err
			}
			if !slices.Equal(got, want) {
				return fmt.Errorf("%v after a snapshot, want %v", got, want)
			}
		}
		return nil
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			if err := save(i); err != nil {
				t.Errorf("session %d: %v", i, err)
			}
		})
	}
	all.Wait()
	for _, m := range models {
		if o := m.Occupancy(); o.Running+o.Waiting+o.UsedPages > 0 {
			t.Errorf("%+v", o)
		}
	}
}

// TestParallelRestoreRefuses restores damaged snapshots of a model for many sequences.
func TestParallelRestoreRefuses(t *testing.T) {
	m := parallelModel(t, "llama", compiler.Options{Context: 128, Sequences: 2}, replay.LoadOptions{})
	s := session(t, m, replay.SessionOptions{})
	if _, _, err := s.Prompt(t.Context(), prompt(40)); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := s.Snapshot(&b); err != nil {
		t.Fatal(err)
	}
	good := b.Bytes()
	put := func(at int, v uint32) func(b []byte) []byte {
		return func(b []byte) []byte { binary.LittleEndian.PutUint32(b[at:], v); return summed(b) }
	}
	for name, change := range map[string]func(b []byte) []byte{
		"KV caches": put(12, 1), "other flags": put(12, 7), "positions past the context": put(84, 1<<31),
		"more positions": func(b []byte) []byte { return put(84, 128)(put(88, 128)(b)) }, "fewer positions": put(84, 39),
		"token": put(100+4*13, 512), "negative token": put(100, 1<<31), "cut": func(b []byte) []byte { return b[:len(b)-1] },
		"checksum": func(b []byte) []byte { b[len(b)-1] ^= 1; return b },
	} {
		if s, err := m.Restore(bytes.NewReader(change(slices.Clone(good))), replay.SessionOptions{}); s != nil || !errors.Is(err, replay.ErrSnapshotDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r, err := m.Restore(bytes.NewReader(good), replay.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Len() != 40 {
		t.Errorf("%d positions", r.Len())
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// FuzzParallelRestore restores any bytes in a model for many sequences, and continues what it accepts.
func FuzzParallelRestore(f *testing.F) {
	m := parallelModel(f, "llama", compiler.Options{Context: 128, Sequences: 2, Pages: 3}, replay.LoadOptions{})
	s := session(f, m, replay.SessionOptions{})
	var good []byte
	for _, n := range []int{5, 90} {
		if _, _, err := s.Reprompt(f.Context(), prompt(n)); err != nil {
			f.Fatal(err)
		}
		var b bytes.Buffer
		if err := s.Snapshot(&b); err != nil {
			f.Fatal(err)
		}
		good = b.Bytes()
		f.Add(good)
	}
	f.Add(good[:100])
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, fixed(b, good)} {
			s, err := m.Restore(bytes.NewReader(b), replay.SessionOptions{})
			if err != nil {
				continue
			}
			if _, _, err := s.Chain(t.Context(), 2); err != nil && !errors.Is(err, replay.ErrContextFull) && !errors.Is(err, replay.ErrNothingPending) {
				t.Error(err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
