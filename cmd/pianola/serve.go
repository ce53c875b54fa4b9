package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	limiter "golang.org/x/time/rate"

	"github.com/pianola-engine/pianola/internal/serve"
	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/fleet"
	"github.com/pianola-engine/pianola/internal/serve/keys"
	"github.com/pianola-engine/pianola/internal/serve/local"
	"github.com/pianola-engine/pianola/internal/serve/observe"
	"github.com/pianola-engine/pianola/table"
)

// serveFlags are the flags of serve.
type serveFlags struct {
	model     modelFlags
	parallel  int
	speculate bool
	queue     int
	spill     spillFlags
	template  string

	aliases []string
	dir     string
	budget  byteCount
	keep    time.Duration

	addr, metricsAddr, pprof string
	insecure                 bool
	cert, key                string
	origins                  []string

	apiKeys    string
	rate       float64
	concurrent int
	maxBody    byteCount
	maxTokens  int
	timeout    time.Duration
	drain      time.Duration

	logFormat string
	logLevel  slog.Level
}

func newServe() *cobra.Command {
	f := &serveFlags{maxBody: 16 << 20}
	cmd := &cobra.Command{
		Use:   "serve MODEL...",
		Short: "Serve models to clients of OpenAI's and Anthropic's APIs",
		Long: `Serve answers the requests of clients of OpenAI's API at /v1, and shows a page for chats
at /. It prints a line for curl when it is ready. docs/SERVE.md describes the endpoints
and the operation.

Clients name a model by the base name of its file, by the ID of its repository, or by an
--alias. The models on the command line are loaded at the start and stay. With
--memory-budget or --keep, they are loaded for the first request that names them, and
evicted when they are idle, as those of --models-dir always are.

SIGTERM and SIGINT end the service: it refuses new requests, waits for those in progress
for the time --drain, and ends the others with an error in their stream. A second signal
ends it at once. SIGHUP reads the files of API keys and certificates again.`,
		Example: `  pianola serve testdata/gopher-q8_0.gguf --template-file testdata/gopher/chat.jinja
  pianola serve --models-dir /srv/models --memory-budget 24G --keep 10m
  pianola serve MODEL --addr :8443 --api-keys keys.txt --tls-cert cert.pem --tls-key key.pem --metrics-addr 127.0.0.1:9090`,
		RunE: f.run,
	}
	fs := cmd.Flags()
	fs.StringVar(&f.addr, "addr", "127.0.0.1:8080", "`ADDRESS` to listen on; one that other machines can reach requires --api-keys")
	fs.BoolVar(&f.insecure, "insecure-listen", false, "let everybody who can reach the address use the service, without API keys")
	fs.StringVar(&f.metricsAddr, "metrics-addr", "", "serve metrics and health checks on this `ADDRESS` too, without API keys, and metrics only there")
	fs.StringVar(&f.pprof, "pprof", "", "serve profiles for go tool pprof on this loopback `ADDRESS`")
	fs.StringVar(&f.cert, "tls-cert", "", "serve HTTPS with the certificates in `FILE` (PEM)")
	fs.StringVar(&f.key, "tls-key", "", "the private key of --tls-cert, a `FILE` (PEM)")
	fs.StringArrayVar(&f.origins, "cors-origin", nil, "let pages of this `ORIGIN`, such as https://example.org, use the API; * admits all; may be repeated")

	fs.IntVar(&f.parallel, "parallel", 16, "number of answers of a model that are generated together")
	fs.IntVar(&f.queue, "queue", 0, "number of further answers that wait; more are refused with status 429 (default: 16 for each of --parallel)")
	fs.IntVar(&f.model.table.Pages, "pages", 0, "share `N` KV pages of 64 positions (default: enough for --parallel answers at full context)")
	f.spill.register(cmd)
	fs.BoolVar(&f.speculate, "speculate", false, "draft tokens of answers from repetitions in their context, and verify them together (docs/SPECULATION.md)")
	fs.StringVar(&f.template, "template-file", "", "use the chat template in `FILE` instead of the models' own")
	fs.StringArrayVar(&f.aliases, "alias", nil, "another `NAME` of the model, or NAME=ID with several models; may be repeated")
	fs.StringVar(&f.dir, "models-dir", "", "also serve the models in `DIR` and its subdirectories, loaded on demand")
	fs.TextVar(&f.budget, "memory-budget", byteCount(0), "keep at most `BYTES`, such as 24G, of models loaded (default: no limit)")
	fs.DurationVar(&f.keep, "keep", fleet.DefaultKeep, "evict a model that has been idle for this `TIME`; negative keeps it")

	fs.StringVar(&f.apiKeys, "api-keys", "", "admit only requests with an API key in `FILE`: lines of a name, a key and limits")
	fs.Float64Var(&f.rate, "rate", 0, "requests per second of an API key (default: no limit)")
	fs.IntVar(&f.concurrent, "concurrency", 0, "requests of an API key at the same time (default: no limit)")
	fs.TextVar(&f.maxBody, "max-body", f.maxBody, "refuse requests of more than `BYTES`")
	fs.IntVar(&f.maxTokens, "max-tokens", 0, "end answers after this number of tokens (default: at the end of the context)")
	fs.DurationVar(&f.timeout, "request-timeout", 0, "end requests that take longer than this `TIME` (default: no limit)")
	fs.DurationVar(&f.drain, "drain", 30*time.Second, "`TIME` for requests in progress to finish at the end of the service")

	fs.StringVar(&f.logFormat, "log-format", string(observe.Text), "`FORMAT` of the log on standard error: text or json")
	fs.TextVar(&f.logLevel, "log-level", slog.LevelInfo, "lowest `LEVEL` of logged messages: debug, info, warn or error")
	f.model.register(cmd)
	return cmd
}

// check checks the flags that do not concern a model.
func (f *serveFlags) check(cmd *cobra.Command, args []string) error {
	fs := cmd.Flags()
	for _, n := range []struct {
		name   string
		v, low int
	}{{"parallel", f.parallel, 1}, {"queue", f.queue, 1}, {"pages", f.model.table.Pages, 1}, {"concurrency", f.concurrent, 1}, {"max-tokens", f.maxTokens, 1}} {
		if err := atLeast(cmd, n.low, n.name, n.v); err != nil {
			return err
		}
	}
	for name, d := range map[string]time.Duration{"request-timeout": f.timeout, "drain": f.drain} {
		if d < 0 {
			return fmt.Errorf("--%s %v: must not be negative", name, d)
		}
	}
	switch {
	case len(args) == 0 && f.dir == "":
		return usage(cmd, "serve needs a MODEL or --models-dir")
	case (f.cert == "") != (f.key == ""):
		return usage(cmd, "--tls-cert and --tls-key require each other")
	case fs.Changed("rate") && !(f.rate > 0 && f.rate <= 1e6):
		return fmt.Errorf("--rate %v: must be more than 0 and at most 1000000", f.rate)
	case f.insecure && f.apiKeys != "":
		return usage(cmd, "--insecure-listen and --api-keys exclude each other")
	case f.maxBody > 1<<32:
		return fmt.Errorf("--max-body %d: must be at most 4G", f.maxBody)
	}
	return nil
}

// entries returns the models that the service offers.
func (f *serveFlags) entries(cmd *cobra.Command, args []string) ([]fleet.Entry, error) {
	var all []fleet.Entry
	pinned := f.budget == 0 && !cmd.Flags().Changed("keep")
	for _, arg := range args {
		path, err := modelPath(cmd, arg)
		if err != nil {
			return nil, err
		}
		if _, err := os.Stat(path); err != nil {
			return nil, err
		}
		e := fleet.FileEntry(path)
		if path != arg { // an id of the hub
			e = fleet.Entry{Path: path}
			e.ID, _, _ = strings.Cut(arg, "@")
			if name, _, quant := strings.Cut(e.ID, ":"); quant {
				e.ID, e.Aliases = name, []string{e.ID}
			}
		} else if whole, err := filepath.Abs(path); err == nil {
			e = fleet.FileEntry(whole)
		}
		e.Pinned = pinned
		all = append(all, e)
	}
	if f.dir != "" {
		found, err := fleet.Scan(f.dir)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	for _, alias := range f.aliases {
		name, id, several := strings.Cut(alias, "=")
		found := false
		for i := range all {
			if found = several && all[i].ID == id || !several && len(all) == 1; found {
				all[i].Aliases = append(all[i].Aliases, name)
				break
			}
		}
		if !found {
			return nil, fmt.Errorf("--alias %s: with several models, want NAME=ID with the ID of one of them", alias)
		}
	}
	return all, nil
}

// options returns the options of the service.
func (f *serveFlags) options(cmd *cobra.Command, args []string) (o server.Options, err error) {
	if o.Models, err = f.entries(cmd, args); err != nil {
		return o, err
	}
	if o.Log, err = observe.NewLogger(cmd.ErrOrStderr(), observe.Format(f.logFormat), f.logLevel); err != nil {
		return o, err
	}
	lo := local.Options{}
	if lo.Library, err = f.model.options(cmd); err != nil {
		return o, err
	}
	lo.Library.Parallel, lo.Library.Queue, lo.Speculate = f.parallel, f.queue, f.speculate
	if lo.Library.Spill, err = f.spill.options(cmd); err != nil {
		return o, err
	}
	if f.template != "" {
		if lo.Template, err = readTemplate(f.template); err != nil {
			return o, err
		}
	}
	o.Load = func(ctx context.Context, e fleet.Entry) (engine.Model, error) { return local.Open(ctx, e.Path, lo) }
	o.Size = func(_ context.Context, e fleet.Entry) (int64, error) { return local.Size(e.Path, lo) }
	o.Created = func(e fleet.Entry) time.Time {
		st, err := os.Stat(e.Path)
		if err != nil {
			return time.Time{}
		}
		return st.ModTime()
	}
	o.Table = func(m engine.Model) *table.Table {
		if m, ok := m.(*local.Model); ok {
			return m.Library().Table()
		}
		return nil
	}
	limits := keys.Limits{Rate: limiter.Limit(f.rate), Concurrent: f.concurrent}
	switch {
	case f.apiKeys != "":
		if o.Keys, err = keys.Open(f.apiKeys, limits); err != nil {
			return o, err
		}
	case limits != keys.Limits{}:
		o.Limits = limits
	}
	o.Version, o.MemoryBudget, o.Keep, o.Origins, o.MetricsApart = cmd.Root().Version, int64(f.budget), f.keep, f.origins, f.metricsAddr != ""
	o.MaxBody, o.MaxTokens, o.RequestTimeout = int64(f.maxBody), f.maxTokens, f.timeout
	return o, nil
}

// run runs the service until a signal or an error ends it.
func (f *serveFlags) run(cmd *cobra.Command, args []string) (err error) {
	if err := f.check(cmd, args); err != nil {
		return err
	}
	o, err := f.options(cmd, args)
	if err != nil {
		return err
	}
	exporters, err := observe.StartExporters(cmd.Context(), os.Getenv, o.Version, o.Log)
	if err != nil {
		return err
	}
	// The exporters send the last spans after the end of the service.
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		err = errors.Join(err, exporters.Close(ctx))
	}()
	o.Traces, o.Meters = exporters.Traces, exporters.Meters
	s, err := server.New(o)
	if err != nil {
		return err
	}
	r := &running{f: f, s: s, o: o, out: cmd.OutOrStdout(), failed: make(chan error, 3)}
	err = r.listen()
	if err == nil {
		err = r.run(cmd.Context())
	}
	return errors.Join(err, s.Shutdown(context.Background(), f.drain), r.close())
}

// names returns the names of the first models, for people.
func names(models []fleet.Entry) string {
	const most = 5
	var list []string
	for _, e := range models[:min(most, len(models))] {
		list = append(list, e.ID)
	}
	text := strings.Join(list, ", ")
	if more := len(models) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
