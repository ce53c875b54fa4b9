package pianola_test

import (
	"fmt"
	"log"
	"os"

	"github.com/pianola-engine/pianola"
)

// A header has the tokenizer and the configuration of a model, without its weights.
func ExampleTokenizer() {
	h, err := pianola.OpenHeader("testdata/gopher-q8_0.gguf", nil)
	if err != nil {
		log.Fatal(err)
	}
	var t *pianola.Tokenizer
	if t, err = h.Tokenizer(); err != nil {
		log.Fatal(err)
	}
	ids, err := t.Encode("func main() {", pianola.EncodeOptions{ParseSpecial: false}) // as in text of a user
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(ids), "tokens:", t.Decode(ids))
	fmt.Println("vocabulary:", t.Size() <= h.Config().Vocab)

	bos, ok := t.BOS()
	name, _ := t.Token(bos)
	again, _ := t.ID(name)
	fmt.Println("BOS:", ok, again == bos, t.Special(bos), t.AddBOS())
	eos, ok := t.EOS()
	fmt.Println("EOS:", ok, len(h.StopIDs()) > 0 && eos >= 0)
	// Output:
	// 4 tokens: func main() {
	// vocabulary: true
	// BOS: true true true true
	// EOS: true true
}

// A Decoder converts tokens to text one at a time.
func ExampleDecoder() {
	h, err := pianola.OpenHeader("testdata/gopher-q8_0.gguf", nil)
	if err != nil {
		log.Fatal(err)
	}
	t, err := pianola.LoadTokenizer(h.Directory()) // reads no other part of the model
	if err != nil {
		log.Fatal(err)
	}
	ids, err := t.Encode("naïve", pianola.EncodeOptions{})
	if err != nil {
		log.Fatal(err)
	}
	var d *pianola.Decoder = t.NewDecoder()
	for _, id := range ids {
		text, err := d.Next(id)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(text)
	}
	fmt.Println(d.Flush())
	// Output: naïve
}

// The intermediate representation after a pass of the compiler.
func ExampleHeader_DumpAfter() {
	h, err := pianola.OpenHeader("testdata/gopher-q8_0.gguf", nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := h.DumpAfter("cpu", pianola.TableOptions{Context: 64}, "graph", os.Stdout); err != nil {
		log.Fatal(err)
	}
}
