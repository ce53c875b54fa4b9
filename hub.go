package pianola

import (
	"cmp"
	"context"
	"os"

	"github.com/pianola-engine/pianola/internal/hub"
)

// Errors of Pull and Resolve, and of Open with Options.Hub, that callers test for with errors.Is.
var (
	ErrHubNotFound = hub.ErrNotFound // the repository, revision or quantization does not exist
	ErrHubGated    = hub.ErrGated    // the repository is gated or private, and the token does not open it
	ErrHubOffline  = hub.ErrOffline  // the cache lacks the model, and the hub cannot be reached or Offline is set
	ErrHubSpace    = hub.ErrNoSpace  // the disk has not enough space
	ErrHubContent  = hub.ErrContent  // a file has another size or hash than the hub announced; it was not kept
)

// HubOptions select a model hub and the cache directory of its models. The zero value of a field
// selects the setting of the environment variable in its comment, which other tools use too.
type HubOptions struct {
	CacheDir string // HF_HUB_CACHE, else the directory hub of HF_HOME, else of ~/.cache/huggingface
	Endpoint string // HF_ENDPOINT, else https://huggingface.co
	Token    string // HF_TOKEN, else the file token of HF_HOME
	Offline  bool   // HF_HUB_OFFLINE: use the cache only

	// Events receives StateDownloading, the progress of StageDownload, and StateFailed. It may be
	// nil. It is called from one goroutine at a time, which waits for it.
	Events func(Event)
}

// client returns the client for the options.
func (o *HubOptions) client(life *lifecycle) *hub.Client {
	c := hub.FromEnvironment(os.Getenv)
	c.Cache, c.Endpoint, c.Token = cmp.Or(o.CacheDir, c.Cache), cmp.Or(o.Endpoint, c.Endpoint), cmp.Or(o.Token, c.Token)
	c.Offline = c.Offline || o.Offline
	if c.Progress = life.stage(StageDownload); c.Progress != nil {
		c.Note = func(text string) { life.event(Event{Stage: StageDownload, Note: text}) }
	}
	return c
}

// Pull downloads a model of the hub, or brings the cache up to date, and returns a local path for
// Open. id has the form org/name[:QUANT][@revision]. QUANT is a quantization such as Q4_K_M, a file
// name, "gguf" or "safetensors"; docs/HUB.md describes the default. If the hub cannot be reached,
// Pull returns the path of the model that the cache has, and Event.Note has the reason.
//
// Every file is checked by its hash. Several processes may pull the same model, and a pull that was
// interrupted continues where it was. The error is the cause of ctx, wraps one of the ErrHub
// variables, or describes an id that is malformed or an error of the network or the file system.
func Pull(ctx context.Context, id string, o HubOptions) (path string, err error) {
	return o.find(ctx, newLifecycle(o.Events), func(c *hub.Client) (string, error) {
		parsed, err := hub.ParseID(id)
		if err != nil {
			return "", err
		}
		return c.Pull(ctx, parsed)
	})
}

// Resolve returns the local path of a model. A path that exists, or that cannot be an id, is returned
// as it is. For an id, Resolve returns the path of the model in the cache without using the
// network, and calls Pull if the cache does not have the model.
func Resolve(ctx context.Context, model string, o HubOptions) (path string, err error) {
	return o.resolve(ctx, newLifecycle(o.Events), model)
}

func (o *HubOptions) resolve(ctx context.Context, life *lifecycle, model string) (path string, err error) {
	return o.find(ctx, life, func(c *hub.Client) (string, error) { return c.Resolve(ctx, model) })
}

// find calls f with a client, as StateDownloading of life.
func (o *HubOptions) find(ctx context.Context, life *lifecycle, f func(*hub.Client) (string, error)) (path string, err error) {
	err = life.enter(ctx, StateDownloading, "")
	if err == nil {
		path, err = f(o.client(life))
	}
	if err != nil {
		return "", life.fail(err)
	}
	return path, nil
}
