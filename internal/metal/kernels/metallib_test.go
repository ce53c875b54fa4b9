package kernels

import (
	"bytes"
	"encoding/json"
	"testing"
	"testing/fstest"
)

// TestCompiled checks that only a library compiled from the given source is used.
func TestCompiled(t *testing.T) {
	source, library := []byte("kernel void a("), []byte("MTLB")
	record := func(c Compiled) []byte {
		b, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	good := record(Compiled{Source: Hash(source), Library: Hash(library), Compiler: "metal"})
	for name, c := range map[string]struct {
		record, library []byte
		ok              bool
	}{
		"of this source":    {good, library, true},
		"of another source": {record(Compiled{Source: Hash([]byte("b")), Library: Hash(library)}), library, false},
		"another library":   {good, []byte("MTL"), false},
		"no library":        {good, nil, false},
		"no record":         {nil, library, false},
		"no JSON":           {[]byte("{"), library, false},
		"nothing":           {nil, nil, false},
	} {
		folder := fstest.MapFS{"README.md": {}}
		if c.record != nil {
			folder[Floor+".json"] = &fstest.MapFile{Data: c.record}
		}
		if c.library != nil {
			folder[Floor+".metallib"] = &fstest.MapFile{Data: c.library}
		}
		got := compiled(folder, source)
		if bytes.Equal(got, library) != c.ok || !c.ok && got != nil {
			t.Errorf("%s: %q", name, got)
		}
	}
	if _, err := made.ReadFile("metallib/README.md"); err != nil {
		t.Error(err)
	}
}
