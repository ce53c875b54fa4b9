// Command cmd writes the small models of the tests to folders that transformers can load.
//
//	go run ./internal/tinymodels/cmd -o DIR [-testdata testdata] [-sums]
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pianola-engine/pianola/internal/tinymodels"
)

func main() {
	out := flag.String("o", "", "the folder to write the models to")
	testdata := flag.String("testdata", "testdata", "the folder with the models' weights.json files")
	sums := flag.Bool("sums", false, "write the checksums into the weights.json files and nothing else")
	flag.Parse()
	if err := run(*testdata, *out, *sums); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(testdata, out string, sums bool) error {
	if out == "" && !sums {
		return fmt.Errorf("no folder given: want -o DIR")
	}
	names, err := tinymodels.Names(testdata)
	if err != nil {
		return err
	}
	for _, name := range names {
		if sums {
			err = tinymodels.WriteSums(testdata, name)
		} else {
			err = tinymodels.Write(testdata, name, filepath.Join(out, filepath.FromSlash(name)))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
