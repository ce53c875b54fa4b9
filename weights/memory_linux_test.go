package weights

import (
	"math"
	"strings"
	"testing"
)

func TestMemAvailable(t *testing.T) {
	n, ok := memAvailable(strings.NewReader("MemTotal:       24684308 kB\nMemFree:         1 kB\nMemAvailable:   24571228 kB\nBuffers: 8 kB\n"))
	if !ok || n != 24571228<<10 {
		t.Errorf("%d, %v", n, ok)
	}
	for _, text := range []string{"", "MemTotal: 1 kB\n", "MemAvailable: x kB\n"} {
		if n, ok := memAvailable(strings.NewReader(text)); ok {
			t.Errorf("%q: %d", text, n)
		}
	}
}

func TestCgroupLimit(t *testing.T) {
	for text, want := range map[string]uint64{"1073741824\n": 1 << 30, "max\n": math.MaxUint64, "": math.MaxUint64} {
		if n := cgroupLimit(writeDir(t, map[string][]byte{"memory.max": []byte(text)})); n != want {
			t.Errorf("%q: %d, want %d", text, n, want)
		}
	}
	if n := cgroupLimit(t.TempDir()); n != math.MaxUint64 {
		t.Errorf("without the file memory.max: %d", n)
	}
}
