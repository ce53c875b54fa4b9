package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDrawLoads compares the drawings of measurements by clients and by rate with golden files.
func TestDrawLoads(t *testing.T) {
	load := func(clients int, rate, slow float64) *serveLoad {
		p := func(ms float64) percentiles {
			return percentiles{ms * slow, 2 * ms * slow, 3 * ms * slow, 5 * ms * slow}
		}
		return &serveLoad{
			Model: `a<b>"&".gguf`, Parallel: 32, Clients: clients, Rate: rate, Requests: 64, Seconds: 8 / slow, Goodput: 7 / slow,
			First: p(40), Inter: p(5), Whole: p(700),
		}
	}
	for name, all := range map[string][]*serveLoad{
		"clients": {load(1, 0, 1), load(8, 0, 1.5), load(32, 0, 4)},
		"rate":    {load(0, 2.5, 1), load(0, 20, 3)},
		"empty":   {{Model: "m", Parallel: 1, Clients: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := drawLoads(&b, all); err != nil {
				t.Fatal(err)
			}
			checkXML(t, b.String())
			file := filepath.Join("testdata", "serveload", name+".svg")
			if *update {
				if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), b.String()); d != "" {
				t.Errorf("the drawing differs from %s (-golden +got); -update rewrites it:\n%s", file, d)
			}
		})
	}
}

// checkXML checks that text is well-formed XML, names no other file and has no coordinate that is
// not a number.
func checkXML(t *testing.T, text string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(text))
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []string{"NaN", "Inf", "href=\"", "url(", "-9223372036854775808"} {
		if strings.Contains(text, bad) {
			t.Errorf("the drawing contains %q", bad)
		}
	}
}

// TestServeLoadSVG draws measurements of two rates.
func TestServeLoadSVG(t *testing.T) {
	file := filepath.Join(t.TempDir(), "load.svg")
	succeed(t, "bench", gopher, "--serve-load", "--parallel", "2", "-p", "8", "-n", "4", "--rate", "100,250", "--load-requests", "3", "--svg", file)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	checkXML(t, string(b))
	for _, part := range []string{">100<", ">250<", "goodput", "gopher-q8_0.gguf"} {
		if !strings.Contains(string(b), part) {
			t.Errorf("the drawing does not contain %q", part)
		}
	}
}
