package main

import (
	"archive/zip"
	"encoding/binary"
	"io"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// npyHeader matches the header of an array as writeNPZ writes it.
var npyHeader = regexp.MustCompile(`^\{'descr': '<([fi])4', 'fortran_order': False, 'shape': \(([0-9, ]*)\), \} *\n$`)

// readNPZ returns the shapes and the elements of the arrays of a file.
func readNPZ(t *testing.T, path string) (shapes map[string][]int, arrays map[string][]float64) {
	t.Helper()
	z, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	shapes, arrays = map[string][]int{}, map[string][]float64{}
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil || len(b) < 10 || string(b[:8]) != "\x93NUMPY\x01\x00" {
			t.Fatalf("%s: %q, %v", f.Name, b[:min(len(b), 10)], err)
		}
		end := 10 + int(binary.LittleEndian.Uint16(b[8:]))
		head := npyHeader.FindStringSubmatch(string(b[10:end]))
		if end%64 != 0 || head == nil || f.Method != zip.Store {
			t.Fatalf("%s: the header %q ends at %d", f.Name, b[10:end], end)
		}
		name := strings.TrimSuffix(f.Name, ".npy")
		for _, d := range strings.Split(strings.TrimSuffix(head[2], ", "), ", ") {
			n, err := strconv.Atoi(d)
			if err != nil {
				t.Fatal(err)
			}
			shapes[name] = append(shapes[name], n)
		}
		for i := end; i < len(b); i += 4 {
			v := binary.LittleEndian.Uint32(b[i:])
			if head[1] == "i" {
				arrays[name] = append(arrays[name], float64(v))
			} else {
				arrays[name] = append(arrays[name], float64(math.Float32frombits(v)))
			}
		}
	}
	return shapes, arrays
}

// TestTap writes activations and attention weights of a prompt and of decoded tokens, and checks
// their shapes, their positions and their sums.
func TestTap(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.npz")
	out := succeed(t, "tap", gopher, "--device", "cpu", "--ids", "5,6,7,8", "-n", "3", "--label", "layer.*.ffn.*", "--attention", "layer.2.*", "-o", file, "--json")
	r := decode[struct {
		IDs     []int32
		Results []tapResult
	}](t, out.stdout)
	if len(r.IDs) != 7 || len(r.Results) == 0 {
		t.Fatalf("%s", out.stdout)
	}
	shapes, arrays := readNPZ(t, file)
	if len(arrays) != 1+2*len(r.Results) || len(arrays["ids"]) != 7 {
		t.Errorf("%d arrays, %d results", len(arrays), len(r.Results))
	}
	layers := 0
	for _, d := range r.Results {
		if !slices.Equal(shapes[d.Name], d.Shape) || slices.Max(arrays[d.Name]) != d.Max || slices.Min(arrays[d.Name]) > d.Min || d.NotFinite != 0 {
			t.Errorf("%+v, in the file %v", d, shapes[d.Name])
		}
		want := []float64{0, 1, 2, 3}
		if strings.HasPrefix(d.Name, "decode/") {
			want = []float64{4, 5}
		}
		if got := arrays[d.Name+".positions"]; !slices.Equal(got, want) || d.Shape[0] != len(want) {
			t.Errorf("%s: positions %v, %v rows", d.Name, got, d.Shape)
		}
		if strings.HasSuffix(d.Name, "ffn.down/y") {
			layers++
		}
	}
	if layers != 2*8 {
		t.Errorf("%d results of ffn.down", layers)
	}
	weights := arrays["decode/layer.2.attn.attention/weights"]
	if s := shapes["decode/layer.2.attn.attention/weights"]; !slices.Equal(s, []int{2, 4, 6}) {
		t.Fatalf("weights %v: %v", s, out.stdout)
	}
	for i := range 8 {
		sum := 0.0
		for _, w := range weights[6*i:][:6] {
			sum += w
		}
		if hidden := weights[6*i+5]; math.Abs(sum-1) > 1e-5 || i < 4 && hidden != 0 {
			t.Errorf("row %d: the sum is %v, the last weight %v", i, sum, hidden)
		}
	}
	if text := succeed(t, "tap", gopher, "--device", "cpu", "-p", "func main", "--label", "out.logits").stdout; !strings.Contains(text, "head/out.logits/y  [1 4096]") {
		t.Errorf("%s", text)
	}
}

// TestTapUsage checks wrong command lines and patterns.
func TestTapUsage(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"tap", gopher, "-p", "x"}, 2, "tap needs --label or --attention"},
		{[]string{"tap", gopher, "--label", "x"}, 2, "tap needs one of -p and --ids"},
		{[]string{"tap", gopher, "--label", "x", "-p", "x"}, 1, `tap "x": matches no command of the table`},
		{[]string{"tap", gopher, "--label", "out.logits", "-p", "x", "-o", "/no/such/directory/x.npz"}, 1, "no such file"},
		{[]string{"tap", gopher, "--attention", "out.*", "-p", "x"}, 1, "it is not an attention command"},
	} {
		wantError(t, runCommand(t, append(c.args, "--device", "cpu")...), c.status, c.want)
	}
}
