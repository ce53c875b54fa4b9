package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/pianola-engine/pianola/internal/replacefile"
	"github.com/pianola-engine/pianola/internal/view"
	"github.com/pianola-engine/pianola/internal/webpage"
	"github.com/pianola-engine/pianola/table"
)

type viewFlags struct {
	a, b           tableSource
	timesA, timesB string
	out            string
	listen         string
}

func newView() *cobra.Command {
	f := &viewFlags{}
	cmd := &cobra.Command{
		Use:   "view MODEL|FILE.roll [OTHER]",
		Short: "Show a table, or two side by side, in a browser",
		Long: `View makes an HTML page that shows a table: commands in program order with their
barriers and hazards, slots and the liveness of scratch memory, and patches. With
OTHER it shows two tables side by side with their differences. The page loads
nothing. Without -o, view serves it on this machine until it is interrupted.`,
		Example: `  pianola view testdata/gopher-q8_0.gguf -o gopher.html
  pianola view testdata/gopher-q8_0.gguf testdata/gopher-q8_0.gguf --no-fuse-b -o fused.html`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 && len(args) != 2 {
				return usage(cmd, "view needs one or two models or rolls: got %d arguments", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.out, "output", "o", "", "write the page to `FILE`")
	fs.StringVar(&f.listen, "listen", "127.0.0.1:0", "serve the page at this loopback `ADDRESS`")
	fs.StringVar(&f.timesA, "times", "", "times of MODEL's commands, from the `FILE` with the output of profile --json")
	fs.StringVar(&f.timesB, "times-b", "", "times of OTHER's commands, from a `FILE`")
	f.a.register(cmd, "")
	f.b.register(cmd, "-b")
	return cmd
}

func (f *viewFlags) run(cmd *cobra.Command, args []string) error {
	if f.out != "" && cmd.Flags().Changed("listen") {
		return usage(cmd, "-o and --listen exclude each other")
	}
	if len(args) == 1 && f.timesB != "" {
		return usage(cmd, "--times-b requires OTHER")
	}
	var sources []view.Source
	for i, path := range args {
		source, times := &f.a, f.timesA
		if i == 1 {
			source, times = &f.b, f.timesB
		}
		t, err := source.table(cmd, path)
		if err != nil {
			return err
		}
		s := view.Source{Name: filepath.Base(path), Table: t}
		if times != "" {
			if s.Times, err = readTimes(times, t); err != nil {
				return err
			}
		}
		sources = append(sources, s)
	}
	page, err := view.Page(sources...)
	if err != nil {
		return err
	}
	if f.out != "" {
		err := replacefile.Write(f.out, 0o666, func(w io.Writer) error {
			_, err := w.Write(page.HTML())
			return err
		})
		if err == nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: a page of %s\n", oneLine(f.out), byteSize(uint64(len(page.HTML()))))
		}
		return err
	}
	return f.serve(cmd, page)
}

func readTimes(path string, t *table.Table) (*view.Times, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() // only read
	times, err := view.ReadTimes(file, t)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return times, nil
}

// serve serves the page on a loopback address until the command's context ends.
func (f *viewFlags) serve(cmd *cobra.Command, page *webpage.Document) error {
	listener, err := loopback(cmd.Context(), f.listen)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: webpage.Loopback(page), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10,
		IdleTimeout: time.Minute, WriteTimeout: time.Minute,
	}
	fmt.Fprintf(cmd.OutOrStdout(), "http://%s/\n", listener.Addr())
	stop := context.AfterFunc(cmd.Context(), func() { server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// loopback listens at an address of this machine that other machines cannot reach.
func loopback(ctx context.Context, address string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("--listen %s: %w", address, err)
	}
	ip := net.ParseIP(host)
	if host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("--listen %s: view serves on loopback only, such as 127.0.0.1:8080", address)
	}
	return (&net.ListenConfig{}).Listen(ctx, "tcp", address)
}
