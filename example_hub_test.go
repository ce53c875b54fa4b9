package pianola_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/pianola-engine/pianola"
)

// Pull downloads a model of the Hugging Face Hub, or brings the cache up to date.
func ExamplePull() {
	path, err := pianola.Pull(context.Background(), "ggml-org/gemma-3-1b-it-GGUF:Q4_K_M", pianola.HubOptions{
		Events: func(e pianola.Event) {
			if e.State == pianola.StateDownloading && e.Stage == pianola.StageDownload {
				fmt.Printf("%d of %d MB\n", e.Done/1e6, e.Total/1e6)
			}
		},
	})
	switch {
	case errors.Is(err, pianola.ErrHubGated):
		log.Fatal("accept the model's terms and set HF_TOKEN: ", err)
	case errors.Is(err, pianola.ErrHubNotFound), errors.Is(err, pianola.ErrHubContent):
		log.Fatal("choose another model: ", err)
	case errors.Is(err, pianola.ErrHubOffline), errors.Is(err, pianola.ErrHubSpace):
		log.Fatal("call Pull again later; it continues where it was: ", err)
	case err != nil:
		log.Fatal(err)
	}
	fmt.Println(path)
}

// With Options.Hub, Open accepts an id in place of a path. It uses the network only if the cache does
// not have the model.
func ExampleHubOptions() {
	m, err := pianola.Open(context.Background(), "ggml-org/gemma-3-1b-it-GGUF:Q4_K_M", pianola.Options{
		Hub: &pianola.HubOptions{CacheDir: "/srv/models", Endpoint: "https://hub.example.com", Token: "hf_..."},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
}

// Resolve returns a local path for functions without Options.Hub. A path that exists is returned as
// it is.
func ExampleResolve() {
	path, err := pianola.Resolve(context.Background(), "testdata/gopher-q8_0.gguf", pianola.HubOptions{Offline: true})
	if err != nil {
		log.Fatal(err)
	}
	h, err := pianola.OpenHeader(path, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(path, h.Config().Arch)
	// Output: testdata/gopher-q8_0.gguf llama
}
