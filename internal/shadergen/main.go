// Command shadergen checks the kernels in shaders/*.metal. It compiles them to the committed
// PTX texts with their manifest, and to the emulator that tests run.
//
//	go run ./internal/shadergen                     from the repository's root: checks, rewrites what has changed
//	go run ./internal/shadergen -all                rewrites everything
//	go run ./internal/shadergen -only gemm.metal    compiles one source, to try a change
//	go run ./internal/shadergen -check              fails if a committed file differs from its output
//	go run ./internal/shadergen -lint               only the checks
//	go run ./internal/shadergen -host FILE.so       builds the emulator as a shared library
//	go run ./internal/shadergen -program FILE       builds it as the program of package emu
//	go run ./internal/shadergen -sanitize -program FILE
//	go run ./internal/shadergen -types Q8_0,Q4_K -program FILE
//	go run ./internal/shadergen -count -types Q8_0,Q4_K -program FILE
//	go run ./internal/shadergen -apple -program FILE
//	go run ./internal/shadergen -apple -ptx FOLDER  assembles Apple's kernels for NVIDIA GPUs
//
// It requires clang 19 and installs nothing.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	check := flag.Bool("check", false, "compare the output with the committed files instead of writing it")
	lint := flag.Bool("lint", false, "only check the sources")
	host := flag.String("host", "", "build the emulator as a shared library in this file")
	program := flag.String("program", "", "build the emulator as a program in this file")
	sanitize := flag.Bool("sanitize", false, "build the emulator with sanitizers for addresses, alignment and bounds")
	count := flag.Bool("count", false, "build an emulator that counts the accesses and the operations of kernels")
	types := flag.String("types", "", "build an emulator that compiles fast, with less optimisation and only these quantised weight types, such as Q8_0,Q4_K")
	apple := flag.Bool("apple", false, "build the emulator, or the PTX of -ptx, in Apple's configuration")
	ptx := flag.String("ptx", "", "with -apple, write PTX of all kernels and its manifest to this folder")
	instances := flag.String("instances", "", "with -ptx, make entries only for the constants in this file, which internal/metal/pipelines -instances writes")
	root := flag.String("root", ".", "the repository's root")
	sources := flag.String("sources", "shaders", "the folder of the kernels, relative to the root")
	only := flag.String("only", "", "compile only these sources, separated by commas, such as gemm.metal, and keep the PTX of the others")
	all := flag.Bool("all", false, "compile also what has not changed since the committed files were made")
	undeclared := flag.Bool("undeclared", false, "accept kernels without a declaration, as tests use them")
	flag.Parse()
	b := hostBuild{apple: *apple, shared: *host != "", sanitize: *sanitize, count: *count, types: *types}
	if *apple && *host == "" && *program == "" && *ptx == "" || *ptx != "" && !*apple {
		fmt.Fprintln(os.Stderr, "shadergen: -apple needs -host, -program or -ptx, and -ptx needs -apple")
		os.Exit(2)
	}
	if err := run(*root, *sources, *only, !*undeclared, *check, *lint, *all, *host, *program, *ptx, *instances, b); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(root, sources, only string, declared, check, lint, all bool, host, program, ptx, instances string, b hostBuild) error {
	p, err := open(root, sources, declared)
	if err != nil {
		return err
	}
	defer os.RemoveAll(p.build)
	p.only, p.anew = only, all
	switch {
	case host != "":
		return p.host(host, b)
	case program != "":
		return p.host(program, b)
	case ptx != "":
		entries := appleEntries
		if instances != "" {
			list, err := os.ReadFile(instances)
			if err != nil {
				return err
			}
			entries = listed(string(list))
		}
		return p.applePTX(ptx, entries)
	}
	if err := p.check(); err != nil || lint {
		return err
	}
	outputs, err := p.make()
	if err != nil {
		return err
	}
	if check {
		return p.compare(outputs)
	}
	return p.write(outputs)
}
