package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/pianola-engine/pianola"
)

type chatFlags struct {
	runFlags
	system   string
	template string
	source   string
	vars     []string
}

func newChat() *cobra.Command {
	f := &chatFlags{}
	cmd := &cobra.Command{
		Use:   "chat MODEL",
		Short: "Talk with a model",
		Long: `Chat reads messages, one per line, and prints the model's answers as they arrive.
The model's own chat template renders the messages, and each turn prefills only the
new ones. /help lists commands.

In a terminal the arrow keys edit the line and go back to earlier ones, an
interrupt (ctrl-C) ends an answer and keeps the conversation, and ctrl-D at the
prompt ends it all. From a pipe every line is a message until the input ends.`,
		Example: `  pianola chat testdata/gopher-q8_0.gguf --template-file testdata/gopher/chat.jinja -n 64
  pianola chat testdata/gopher-q8_0.gguf --template-file testdata/gopher/chat.jinja --system 'package main' --temp 0.7 -n 64`,
		Args: exactly(1, "chat needs a MODEL"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.chat(cmd, args[0]) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.system, "system", "", "the system message")
	fs.StringVar(&f.template, "template", "", "`NAME` of one of the model's chat templates (default: the template named default)")
	fs.StringVar(&f.source, "template-file", "", "use the chat template in `FILE` instead of the model's")
	fs.StringArrayVar(&f.vars, "var", nil, "set a variable of the template, `NAME=JSON`; may be repeated")
	fs.IntVarP(&f.tokens, "tokens", "n", 0, "largest number of tokens in an answer (default: to the end of the context)")
	fs.Float64Var(&f.sampling.Temperature, "temp", 0, "temperature; 0 chooses the most probable token")
	fs.IntVar(&f.sampling.TopK, "top-k", 0, "keep the k most probable tokens; 0 keeps all")
	fs.Float64Var(&f.sampling.TopP, "top-p", 1, "keep the most probable tokens up to this total probability; 1 keeps all")
	fs.Float64Var(&f.sampling.MinP, "min-p", 0, "keep tokens with at least this fraction of the largest probability; 0 keeps all")
	fs.Float64Var(&f.sampling.RepeatPenalty, "repeat-penalty", 1, "divide positive and multiply negative logits of recent tokens; 1 disables it")
	fs.Uint64Var(&f.sampling.Seed, "seed", 0, "seed of the sampler (default: random)")
	fs.StringArrayVar(&f.stop, "stop", nil, "end an answer before this `TEXT`; may be repeated")
	f.model.registerChain(cmd)
	f.model.register(cmd)
	return cmd
}

func (f *chatFlags) chat(cmd *cobra.Command, path string) (err error) {
	if err := f.check(cmd); err != nil {
		return err
	}
	co, err := f.chatOptions(cmd)
	if err != nil {
		return err
	}
	if !cmd.Flags().Changed("seed") {
		f.sampling.Seed = uint64(rand.Uint32())
	}
	o, err := f.model.options(cmd)
	if err != nil {
		return err
	}
	m, err := openModel(cmd, path, o)
	if err != nil {
		return err
	}
	defer closeAfter(&err, m)
	s, err := m.NewSession(pianola.SessionOptions{Chain: f.model.chain, ChainTime: f.model.chainTime()})
	if err != nil {
		return err
	}
	defer closeAfter(&err, s)
	var first []pianola.ChatMessage
	if f.system != "" {
		first = append(first, pianola.ChatMessage{Role: "system", Content: f.system})
	}
	c, err := s.NewChat(co, first...)
	if err != nil {
		return err
	}
	t := &talk{f: f, m: m, s: s, c: c, out: cmd.OutOrStdout(), errs: cmd.ErrOrStderr(), lines: newLines(cmd)}
	return t.run(cmd.Context())
}

// maxTemplate bounds a template's file, above what package chat accepts.
const maxTemplate = 4 << 20

// readTemplate reads the chat template in a file.
func readTemplate(path string) (string, error) {
	in, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer in.Close()
	b, err := io.ReadAll(io.LimitReader(in, maxTemplate))
	if err == nil && len(b) == 0 {
		err = fmt.Errorf("%s: the template is empty", path)
	}
	return string(b), err
}

func (f *chatFlags) chatOptions(cmd *cobra.Command) (o pianola.ChatOptions, err error) {
	o.Template = f.template
	if f.source != "" {
		if f.template != "" {
			return o, usage(cmd, "--template and --template-file exclude each other")
		}
		var err error
		if o.Source, err = readTemplate(f.source); err != nil {
			return o, err
		}
	}
	for _, v := range f.vars {
		name, value, ok := strings.Cut(v, "=")
		if !ok || name == "" || !json.Valid([]byte(value)) {
			return o, fmt.Errorf("--var %q: want NAME=JSON", v)
		}
		if o.Vars == nil {
			o.Vars = map[string]any{}
		}
		o.Vars[name] = json.RawMessage(value)
	}
	return o, nil
}

// talk is a conversation at a terminal or a pipe.
type talk struct {
	f         *chatFlags
	m         *pianola.Model
	s         *pianola.Session
	c         *pianola.Chat
	out, errs io.Writer
	lines     lines
}

// run reads lines until the end of the input. An interrupt cancels the turn in progress; between
// turns it ends the command.
func (t *talk) run(ctx context.Context) error {
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	defer signal.Stop(interrupts)
	// The first interrupt ends ctx too, which later turns must not see.
	turns := context.WithoutCancel(ctx)
	for {
		line, err := t.next(ctx, interrupts)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		line = strings.TrimSpace(line)
		switch {
		case line == "":
			continue
		case strings.HasPrefix(line, "/"):
			if end := t.command(line); end {
				return nil
			}
			continue
		}
		err = t.turn(ctx, turns, interrupts, line)
		switch {
		case err == nil:
		case errors.Is(err, context.Canceled):
			fmt.Fprintln(t.errs, "answer interrupted; the conversation continues")
		case t.lines.interactive():
			report(t.errs, err)
		default:
			return err
		}
	}
}

// next reads a line. If an interrupt arrives first, it returns errInterrupted.
func (t *talk) next(ctx context.Context, interrupts <-chan os.Signal) (string, error) {
	type read struct {
		line string
		err  error
	}
	got := make(chan read, 1)
	go func() {
		line, err := t.lines.next()
		got <- read{line, err}
	}()
	select {
	case r := <-got:
		return r.line, r.err
	case <-interrupts:
		return "", errInterrupted
	}
}

// errInterrupted ends the command with the exit status of an interrupt.
var errInterrupted = &statusError{statusInterrupted, errors.New("interrupted")}

// turn sends a message and prints the answer.
func (t *talk) turn(ctx, turns context.Context, interrupts <-chan os.Signal, line string) error {
	turn, cancel := context.WithCancel(turns)
	defer cancel()
	if ctx.Err() == nil {
		defer context.AfterFunc(ctx, cancel)()
	}
	done := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-interrupts:
			cancel()
		case <-done:
		}
	}()
	defer func() {
		close(done)
		<-watched
		select { // discard an interrupt that arrived at the end of the turn
		case <-interrupts:
		default:
		}
	}()

	full := false
	begun := false
	for tok, err := range t.c.Send(turn, pianola.GenerateOptions{
		MaxTokens: t.f.tokens, Sampling: t.f.sampling, Stop: t.f.stop,
	}, pianola.ChatMessage{Role: "user", Content: line}) {
		if errors.Is(err, pianola.ErrContextFull) && begun {
			full = true
			break
		}
		if err != nil {
			if begun {
				fmt.Fprintln(t.out)
			}
			return err
		}
		begun = true
		if _, err := fmt.Fprint(t.out, tok.Text); err != nil {
			return err
		}
	}
	fmt.Fprintln(t.out)
	if full {
		fmt.Fprintln(t.errs, "the context is full; /reset starts a new conversation")
	}
	return nil
}

// command runs a command line that begins with a slash, and reports whether it ends the
// conversation.
func (t *talk) command(line string) (end bool) {
	switch line {
	case "/help", "/?":
		fmt.Fprint(t.out, `/reset    forget the conversation, but for the system message
/stats    what the last turn took
/exit     end
`)
	case "/reset":
		t.c.Reset()
	case "/stats":
		st := t.s.Stats()
		fmt.Fprintf(t.out, "%d tokens prefilled, %d reused from the context; %s\n", st.Prefilled, st.Reused, t.f.figures(t.m, t.s))
	case "/exit", "/quit", "/bye":
		return true
	default:
		fmt.Fprintf(t.errs, "no command %s; /help lists them\n", oneLine(line))
	}
	return false
}

// lines returns lines of input, and io.EOF after the last.
type lines interface {
	next() (string, error)
	interactive() bool
}

func newLines(cmd *cobra.Command) lines {
	in, isFile := cmd.InOrStdin().(*os.File)
	if isFile && term.IsTerminal(int(in.Fd())) {
		return &terminalLines{fd: int(in.Fd()), t: term.NewTerminal(struct {
			io.Reader
			io.Writer
		}{in, cmd.ErrOrStderr()}, "> ")}
	}
	s := bufio.NewScanner(cmd.InOrStdin())
	s.Buffer(nil, maxPrompt)
	return &pipeLines{s}
}

// pipeLines reads lines from a pipe or a file.
type pipeLines struct{ s *bufio.Scanner }

func (p *pipeLines) next() (string, error) {
	if p.s.Scan() {
		return p.s.Text(), nil
	}
	if err := p.s.Err(); err != nil {
		return "", fmt.Errorf("standard input: %w", err)
	}
	return "", io.EOF
}

func (p *pipeLines) interactive() bool { return false }

// terminalLines reads lines from a terminal. The terminal is in raw mode only while a line
// is edited; at other times its driver turns ctrl-C into an interrupt.
type terminalLines struct {
	fd int
	t  *term.Terminal
}

func (l *terminalLines) next() (line string, err error) {
	old, err := term.MakeRaw(l.fd)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, term.Restore(l.fd, old)) }()
	if width, height, err := term.GetSize(l.fd); err == nil && width > 0 {
		_ = l.t.SetSize(width, height) // an invalid size keeps the previous one
	}
	line, err = l.t.ReadLine()
	if errors.Is(err, term.ErrPasteIndicator) { // pasted lines are handled like typed ones
		err = nil
	}
	return line, err
}

func (l *terminalLines) interactive() bool { return true }
