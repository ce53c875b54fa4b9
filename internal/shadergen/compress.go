package main

import (
	"bytes"
	"os"
	"os/exec"

	"github.com/pianola-engine/pianola/internal/ptxstore"
)

// compress compresses the body of a PTX text. The program zstd, if it is installed, makes files that are a
// quarter smaller than those of package ptxstore.
func (p *project) compress(body []byte) ([]byte, error) {
	program, err := exec.LookPath("zstd")
	if err != nil {
		return ptxstore.Compress(body)
	}
	c := exec.Command(program, "-q", "-19", "--long=25", "-c")
	c.Stdin, c.Stderr = bytes.NewReader(body), os.Stderr
	return c.Output()
}
