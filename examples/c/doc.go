// C is the C interface of the engine, for programs in other languages. The header pianola.h
// documents it. The package is built as a library, with cgo:
//
//	CGO_ENABLED=1 go build -buildmode=c-archive -o libpianola.a ./examples/c
//
// The directory generate has a C program that uses the library, and examples/ios an app. Without
// cgo the package is an empty program, so that "go build ./..." needs no C compiler.
package main

func main() {}
