package safetensors_test

import (
	"fmt"
	"os"

	"github.com/pianola-engine/pianola/internal/safetensors"
)

func ExampleDecode() {
	r, err := os.Open("../../testdata/gopher/model.safetensors")
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
	h, err := safetensors.Decode(r, info.Size())
	if err != nil {
		fmt.Println(err)
		return
	}
	t := h.Tensors[0]
	fmt.Println(len(h.Tensors), "tensors")
	fmt.Println(t.Name, t.Type, t.Shape, t.Size)
	// Output:
	// 74 tensors
	// model.embed_tokens.weight F16 [4096 256] 2097152
}
