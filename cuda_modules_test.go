package pianola

import "testing"

// TestModules makes sure that every embedded kernel reaches the device, for
// each architecture.
func TestModules(t *testing.T) {
	m, err := makeModules()
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Instances) < 10 || m.BindingAlign == 0 {
		t.Errorf("%d instances, aligned to %d", len(m.Instances), m.BindingAlign)
	}
	for _, in := range m.Instances {
		archs := map[int]bool{}
		for _, text := range m.Texts {
			if text.Name == in.Text {
				archs[text.Arch] = true
				if n := len(text.PTX); n == 0 || text.PTX[n-1] != 0 {
					t.Errorf("%s for %d does not end in a zero byte", text.Name, text.Arch)
				}
			}
		}
		if len(archs) != 3 {
			t.Errorf("%s is there for %v", in.Entry, archs)
		}
	}
}
