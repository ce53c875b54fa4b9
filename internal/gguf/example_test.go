package gguf_test

import (
	"fmt"
	"os"

	"github.com/pianola-engine/pianola/internal/gguf"
)

func ExampleDecode() {
	r, err := os.Open("../../testdata/gopher-q8_0.gguf")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer r.Close()
	info, err := r.Stat()
	if err != nil {
		fmt.Println(err)
		return
	}
	f, err := gguf.Decode(r, info.Size())
	if err != nil {
		fmt.Println(err)
		return
	}
	tokens, _ := f.Meta("tokenizer.ggml.tokens")
	fmt.Println("version", f.Version, "alignment", f.Alignment)
	fmt.Println(len(tokens.([]string)), "tokens,", len(f.Tensors), "tensors")
	// Output:
	// version 3 alignment 32
	// 4096 tokens, 74 tensors
}
