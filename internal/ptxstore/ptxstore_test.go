package ptxstore

import (
	"crypto/sha256"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

const text = "//\n\n.version 7.8\n.target sm_80\n.address_size 64\n\n.visible .entry a()\n{\n\tret; // .target sm_1\n}\n"

func folder(files map[string][]byte) fs.FS {
	dir := fstest.MapFS{}
	for name, b := range files {
		dir[name] = &fstest.MapFile{Data: b}
	}
	return dir
}

// TestPack checks that texts that differ only in their directives share one body, and that
// Text returns every text unchanged.
func TestPack(t *testing.T) {
	texts := map[string][]byte{
		"a.sm_70": []byte(strings.NewReplacer("7.8", "6.3", "sm_80", "sm_70").Replace(text)),
		"a.sm_80": []byte(text),
		"a.sm_90": []byte(strings.ReplaceAll(text, "sm_80", "sm_90")),
		"b.sm_80": []byte(strings.ReplaceAll(text, "ret", "exit")),
	}
	files, err := Pack(texts, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := slices.Sorted(maps.Keys(files)), []string{"a.sm_70.ptx.zst", "b.sm_80.ptx.zst", Index}; !slices.Equal(got, want) {
		t.Errorf("files %v, want %v", got, want)
	}
	s, err := Open(folder(files))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.Names(), slices.Sorted(maps.Keys(texts)); !slices.Equal(got, want) {
		t.Errorf("names %v, want %v", got, want)
	}
	for name, want := range texts {
		if got, err := s.Text(name); err != nil || string(got) != string(want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	hashes := map[[32]byte]bool{}
	for name := range texts {
		d, err := s.Describe(name)
		if want := name[2:]; err != nil || d.Target != want || d.Version != map[bool]string{true: "6.3", false: "7.8"}[want == "sm_70"] {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
		hashes[d.Hash] = true
	}
	if len(hashes) != len(texts) {
		t.Errorf("%d hashes of %d texts", len(hashes), len(texts))
	}
	packed, err := s.Packed()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Pack(texts, func(body []byte) ([]byte, error) {
		b, ok := packed[sha256.Sum256(body)]
		if !ok {
			return nil, errors.New("the body is not in the store")
		}
		return b, nil
	})
	if err != nil || !maps.EqualFunc(again, files, slices.Equal) {
		t.Errorf("packed again, %d files are not the same: %v", len(again), err)
	}
	if _, err := s.Describe("c.sm_80"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a text that does not exist: %v", err)
	}
	if _, err := s.Text("c.sm_80"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a text that does not exist: %v", err)
	}
}

// TestBad checks that invalid texts and damaged folders are refused.
func TestBad(t *testing.T) {
	for _, bad := range []string{"", "\n.version 7.8\n", "\n.target sm_80\n", text + text, "\n.version 7.8\n.target sm_80"} {
		if _, err := Pack(map[string][]byte{"x": []byte(bad)}, nil); err == nil {
			t.Errorf("Pack accepts %q", bad)
		}
	}
	files, err := Pack(map[string][]byte{"a": []byte(text)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name := range files {
		broken := maps.Clone(files)
		broken[name] = broken[name][:len(broken[name])/2]
		s, err := Open(folder(broken))
		if err == nil {
			_, err = s.Text("a")
		}
		if err == nil {
			t.Errorf("Open and Text accept half of %s", name)
		}
	}
	if _, err := Open(folder(nil)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty folder: %v", err)
	}
}
