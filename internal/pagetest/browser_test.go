package pagetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

var (
	axePath = flag.String("axe", "", "axe.min.js of the npm package axe-core")
	update  = flag.Bool("update", false, "rewrite the expected layouts")
	shots   = flag.String("screenshots", "", "also write screenshots to this directory")
)

const width, height = 1280, 860

// chromium is the context of the browser, in which each test opens a tab.
var chromium context.Context

func TestMain(m *testing.M) {
	flag.Parse()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.WindowSize(width, height),
		chromedp.Flag("force-device-scale-factor", "1"), chromedp.Flag("lang", "en"))
	ctx, stop := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, end := chromedp.NewContext(ctx)
	if err := chromedp.Run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "the browser does not start:", err)
		os.Exit(1)
	}
	chromium = ctx
	status := m.Run()
	end()
	stop()
	os.Exit(status)
}

// browser is one tab. Its errors are faults of the page, such as exceptions and violations of the
// content security policy.
type browser struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	errors   []string
	expected []string
	requests []string
}

// open serves a page and opens it. path is the part of the URL after the server's address.
func open(t *testing.T, handler http.Handler, path string) *browser {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	ctx, cancel := chromedp.NewContext(chromium)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(cancel)
	b := &browser{t: t, ctx: ctx}
	chromedp.ListenTarget(ctx, b.event)
	b.do(network.Enable(), log.Enable(), emulation.SetDeviceMetricsOverride(width, height, 1, false), chromedp.Navigate(server.URL+path))
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, e := range b.errors {
			if !slices.ContainsFunc(b.expected, func(s string) bool { return strings.Contains(e, s) }) {
				t.Errorf("the page reports: %s", e)
			}
		}
		for _, r := range b.requests {
			if !strings.HasPrefix(r, server.URL) && !strings.HasPrefix(r, "data:") && !strings.HasPrefix(r, "blob:"+server.URL) {
				t.Errorf("the page requested %s", r)
			}
		}
	})
	return b
}

// expect accepts errors that contain one of the texts.
func (b *browser) expect(texts ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expected = append(b.expected, texts...)
}

func (b *browser) event(e any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := e.(type) {
	case *runtime.EventExceptionThrown:
		b.errors = append(b.errors, e.ExceptionDetails.Error())
	case *log.EventEntryAdded:
		if e.Entry.Level == log.LevelError {
			b.errors = append(b.errors, e.Entry.Text)
		}
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	}
}

func (b *browser) do(actions ...chromedp.Action) {
	b.t.Helper()
	if err := chromedp.Run(b.ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// eval returns the value of a JavaScript expression.
func eval[T any](b *browser, expression string) (v T) {
	b.t.Helper()
	b.do(chromedp.Evaluate(expression, &v))
	return v
}

// put sets the value of a form control and sends the event that a user's change sends.
func (b *browser) put(id, value, event string) {
	b.t.Helper()
	b.do(chromedp.Evaluate(fmt.Sprintf("{ const e = document.getElementById(%q); e.value = %q; e.dispatchEvent(new Event(%q)); }", id, value, event), nil))
}

// await waits until an expression is true. An evaluation that a navigation interrupts counts as false.
func (b *browser) await(expression string) {
	b.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(25 * time.Millisecond) {
		var yes bool
		err := chromedp.Run(b.ctx, chromedp.Evaluate(expression, &yes))
		if interrupted := (*cdproto.Error)(nil); err != nil && !errors.As(err, &interrupted) {
			b.t.Fatal(err)
		}
		if yes && err == nil {
			return
		}
	}
	b.t.Fatalf("never true: %s\n%s", expression, eval[string](b, "document.body.innerText.slice(0, 2000)"))
}

// accessible runs axe-core in light and in dark, and fails on serious and critical findings.
func (b *browser) accessible() {
	b.t.Helper()
	if *axePath == "" {
		b.t.Log("without -axe, axe-core does not run")
		return
	}
	source, err := os.ReadFile(*axePath)
	if err != nil {
		b.t.Fatal(err)
	}
	b.do(chromedp.Evaluate(string(source)+";0", nil))
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		var found string
		b.do(chromedp.Evaluate(`axe.run().then(r => JSON.stringify(r.violations.filter(v => ['serious', 'critical'].includes(v.impact))
			.map(v => ({id: v.id, help: v.help, at: v.nodes.slice(0, 4).map(n => n.html.slice(0, 200) + ' ' + n.failureSummary)}))))`,
			&found, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
		var violations []struct {
			ID, Help string
			At       []string
		}
		if err := json.Unmarshal([]byte(found), &violations); err != nil {
			b.t.Fatal(err)
		}
		for _, v := range violations {
			b.t.Errorf("%s: %s: %s\n\t%s", scheme, v.ID, v.Help, strings.Join(v.At, "\n\t"))
		}
	}
	b.scheme("light")
}

func (b *browser) scheme(name string) {
	b.t.Helper()
	b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}))
	b.await("matchMedia('(prefers-color-scheme: " + name + ")').matches")
}

// The layout of a page is the mean brightness of its screenshot in cells of 20 by 20 pixels. Fonts
// differ between systems, so single cells may differ, and all cells a little.
const (
	cell      = 20
	farOff    = 60   // difference of a cell in 255ths that counts
	mostCells = 0.06 // share of the cells that may differ by that
)

// layout compares the screenshot with testdata/NAME.png.
func (b *browser) layout(name string) {
	b.t.Helper()
	var shot []byte
	b.do(chromedp.CaptureScreenshot(&shot))
	if *shots != "" {
		if err := os.WriteFile(filepath.Join(*shots, name+".png"), shot, 0o644); err != nil {
			b.t.Fatal(err)
		}
	}
	picture, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		b.t.Fatal(err)
	}
	got := cells(picture)
	path := filepath.Join("testdata", name+".png")
	if *update {
		var out bytes.Buffer
		if err := png.Encode(&out, got); err != nil {
			b.t.Fatal(err)
		}
		if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
			b.t.Fatal(err)
		}
	}
	file, err := os.ReadFile(path)
	if err != nil {
		b.t.Fatal(err)
	}
	want, err := png.Decode(bytes.NewReader(file))
	if err != nil {
		b.t.Fatal(err)
	}
	if got.Bounds() != want.Bounds() {
		b.t.Fatalf("%s: the layout has %v cells, want %v", name, got.Bounds(), want.Bounds())
	}
	different := 0
	for i, v := range got.Pix {
		w := color.GrayModel.Convert(want.At(i%got.Stride, i/got.Stride)).(color.Gray).Y
		if d := int(v) - int(w); d > farOff || d < -farOff {
			different++
		}
	}
	if share := float64(different) / float64(len(got.Pix)); share > mostCells {
		b.t.Errorf("%s: %.0f %% of the layout's cells differ; -screenshots DIR writes the screenshot, -update accepts it", name, 100*share)
	}
}

func cells(picture image.Image) *image.Gray {
	r := picture.Bounds()
	out := image.NewGray(image.Rect(0, 0, r.Dx()/cell, r.Dy()/cell))
	for y := range r.Dy() / cell {
		for x := range r.Dx() / cell {
			sum := 0
			for i := range cell * cell {
				sum += int(color.GrayModel.Convert(picture.At(r.Min.X+x*cell+i%cell, r.Min.Y+y*cell+i/cell)).(color.Gray).Y)
			}
			out.SetGray(x, y, color.Gray{Y: uint8(sum / (cell * cell))})
		}
	}
	return out
}
