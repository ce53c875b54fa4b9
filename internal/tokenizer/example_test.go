package tokenizer_test

import (
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/pianola-engine/pianola/internal/tokenizer"
)

func load() *tokenizer.Tokenizer {
	data, err := os.ReadFile("../../testdata/gopher/tokenizer.json")
	if err != nil {
		log.Fatal(err)
	}
	config, err := os.ReadFile("../../testdata/gopher/tokenizer_config.json")
	if err != nil {
		log.Fatal(err)
	}
	t, err := tokenizer.FromJSON(data, config)
	if err != nil {
		log.Fatal(err)
	}
	return t
}

func ExampleTokenizer_Encode() {
	t := load()
	ids, err := t.Encode("if err != nil {\n", tokenizer.EncodeOptions{AddSpecial: true})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(ids)
	for _, id := range ids {
		token, _ := t.Token(id)
		fmt.Print(token, ",")
	}
	fmt.Printf("\n%q\n", t.Decode(ids))
	// Output:
	// [289 322 364 360 275]
	// if,Ġerr,Ġ!=,Ġnil,Ġ{Ċ,
	// "if err != nil {\n"
}

func ExampleEncodeOptions() {
	t := load()
	for _, parse := range []bool{false, true} {
		ids, err := t.Encode("}<|eot_id|>", tokenizer.EncodeOptions{ParseSpecial: parse})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(len(ids), t.Special(ids[len(ids)-1]))
	}
	// Output:
	// 9 false
	// 2 true
}

// Next returns a character that is spread over several tokens with the last of them.
func ExampleDecoder() {
	t := load()
	ids, err := t.Encode("é 世", tokenizer.EncodeOptions{})
	if err != nil {
		log.Fatal(err)
	}
	d := t.NewDecoder()
	for _, id := range ids {
		text, err := d.Next(id)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%q ", text)
	}
	fmt.Printf("%q\n", d.Flush())
	// Output:
	// "" "é" " " "" "" "世" ""
}

// metadata stands for the metadata of a GGUF file, which package weights reads.
type metadata map[string]any

func (m metadata) Meta(key string) (any, bool) {
	v, ok := m[key]
	return v, ok
}

func ExampleFromGGUF() {
	_, err := tokenizer.FromGGUF(metadata{"tokenizer.ggml.model": "none"})
	fmt.Println(errors.Is(err, tokenizer.ErrNone))

	_, err = tokenizer.FromGGUF(metadata{"tokenizer.ggml.model": "rwkv"})
	var unsupported *tokenizer.UnsupportedError
	fmt.Println(errors.As(err, &unsupported), err)

	t, err := tokenizer.FromGGUF(metadata{
		"tokenizer.ggml.model":        "gpt2",
		"tokenizer.ggml.pre":          "qwen2",
		"tokenizer.ggml.tokens":       []string{"o", "n", "on", "<|im_end|>"},
		"tokenizer.ggml.token_type":   []int32{1, 1, 1, 3},
		"tokenizer.ggml.merges":       []string{"o n"},
		"tokenizer.ggml.eos_token_id": uint32(3),
	})
	if err != nil {
		log.Fatal(err)
	}
	ids, err := t.Encode("on", tokenizer.EncodeOptions{})
	fmt.Println(ids, t.StopIDs(), err)
	// Output:
	// true
	// true tokenizer: model "rwkv" is not supported
	// [2] [3] <nil>
}
