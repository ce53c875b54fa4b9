// Package e2e_test contains the end-to-end tests. They open models, generate text and compare
// it with references, through the public API of package pianola.
package e2e_test

import (
	"fmt"
	"os"
	"testing"
)

// TestMain runs the tests in the repository's root, because they refer to testdata by relative
// paths.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
