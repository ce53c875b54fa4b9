//go:build softmetal

package soft

import (
	"strings"
	"testing"
)

// TestRules breaks each rule. The violation must name the rule, and no object may stay alive.
func TestRules(t *testing.T) {
	if err := Start("../../.."); err != nil {
		t.Fatal(err)
	}
	objects, bytes := Live()
	rules := 0
	for i := 0; ; i++ {
		name := Misuse(i)
		if name == "" {
			break
		}
		rules++
		err := Violation()
		if (err != nil) == strings.HasPrefix(name, "nothing_wrong") {
			t.Errorf("%s: %v", name, err)
		}
		t.Logf("%s: %v", name, err)
		if o, b := Live(); o != objects || b != bytes {
			t.Errorf("%s: %d objects and %d bytes are left", name, o-objects, b-bytes)
			objects, bytes = o, b
		}
	}
	if rules < 30 {
		t.Errorf("%d rules", rules)
	}
}
