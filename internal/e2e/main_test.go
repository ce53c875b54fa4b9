// Package e2e_test has the end-to-end tests: they open models, generate text and compare
// it with references, through the public API of package pianola.
package e2e_test

import (
	"fmt"
	"os"
	"testing"
)

// TestMain runs the tests in the root of the repository, where testdata is.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
