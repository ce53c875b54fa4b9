package pianola

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/pianola-engine/pianola/table"
)

// tapsOf returns what taps of all commands of layer 1 and of the logits show for a prompt and three
// tokens, by program, label, name and position, and the K and V of layer 1.
func tapsOf(t *testing.T, m *Model) (shown map[string][]float32, keys, values [][][]float32) {
	t.Helper()
	s, err := m.NewSession(SessionOptions{IgnoreStops: true, Chain: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	shown = map[string][]float32{}
	taps := &Taps{Activations: []string{"layer.1.*", "out.logits"}, Attention: []string{"layer.1.*"}}
	taps.Show = func(a Activation) error {
		for r := range a.Shape[0] {
			values := a.Values[r*a.Shape[1]:][:a.Shape[1]]
			key := fmt.Sprintf("%s %s %s %d", a.Program, a.Label, a.Name, a.Position+r)
			if a.Name == WeightsName {
				key = fmt.Sprintf("%s %s %s %d %d", a.Program, a.Label, a.Name, a.Position, r)
			}
			if shown[key] != nil {
				return fmt.Errorf("%s is shown twice", key)
			}
			shown[key] = slices.Clone(values)
		}
		return nil
	}
	if err := s.SetTaps(taps); err != nil {
		t.Fatal(err)
	}
	for _, err := range s.GenerateIDs(context.Background(), []int32{5, 6, 7, 8, 9}, GenerateOptions{MaxTokens: 4}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	keys, err = s.Keys(1)
	values, err2 := s.Values(1)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	return shown, keys, values
}

// tapsAgree compares what taps show of a model with what they show if the CPU device replays the
// model's table.
func tapsAgree(t *testing.T, m *Model) {
	t.Helper()
	roll, err := m.Table().Encode()
	if err != nil {
		t.Fatal(err)
	}
	on, err := Open(context.Background(), m.Directory().Path(), Options{Device: DeviceCPU, Roll: roll, AnyChip: true})
	if err != nil {
		t.Fatal(err)
	}
	defer on.Close()
	got, keys, values := tapsOf(t, m)
	want, wantKeys, wantValues := tapsOf(t, on)
	if p, _, _ := m.Table().Program(table.ProgramDecode); len(got) < int(p.Count)/10 || len(got) != len(want) {
		t.Errorf("%d results, the CPU shows %d", len(got), len(want))
	}
	for key, w := range want {
		if e := distance(got[key], w); !(e < 1e-2) {
			t.Errorf("%s: relative error %v of %d values, the CPU shows %d", key, e, len(got[key]), len(w))
		}
	}
	for i, of := range [][][][]float32{keys, values} {
		for h, head := range [][][][]float32{wantKeys, wantValues}[i] {
			if e := distance(slices.Concat(of[h]...), slices.Concat(head...)); !(e < 1e-2) {
				t.Errorf("cache %d, head %d: relative error %v", i, h, e)
			}
		}
	}
}

// distance returns the norm of a-b over the norm of b.
func distance(a, b []float32) float64 {
	if len(a) != len(b) {
		return math.Inf(1)
	}
	difference, norm := 0.0, 1e-30
	for i := range b {
		d := float64(a[i]) - float64(b[i])
		difference, norm = difference+d*d, norm+float64(b[i])*float64(b[i])
	}
	return math.Sqrt(difference / norm)
}
