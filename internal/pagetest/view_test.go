package pagetest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/internal/view"
	"github.com/pianola-engine/pianola/internal/webpage"
	"github.com/pianola-engine/pianola/table"
)

func gopher(t *testing.T, o pianola.TableOptions) *table.Table {
	t.Helper()
	h, err := pianola.OpenHeader("../../testdata/gopher-q8_0.gguf", nil)
	if err != nil {
		t.Fatal(err)
	}
	tab, err := h.Compile("cpu", o)
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

func viewPage(t *testing.T, sources ...view.Source) *webpage.Document {
	t.Helper()
	p, err := view.Page(sources...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// measured returns times for the program decode: the command's index plus 1, in microseconds.
func measured(t *testing.T, tab *table.Table) *view.Times {
	t.Helper()
	type line struct {
		Command int     `json:"command"`
		Label   string  `json:"label"`
		US      float64 `json:"us"`
	}
	p, _, ok := tab.Program(table.ProgramDecode)
	if !ok {
		t.Fatal("no program decode")
	}
	var lines []line
	for i := int(p.First); i < int(p.First+p.Count); i++ {
		lines = append(lines, line{i, tab.Label(i), float64(i + 1)})
	}
	text, err := json.Marshal(map[string]any{"tokens": 1, "total_us": 100, "commands": lines})
	if err != nil {
		t.Fatal(err)
	}
	times, err := view.ReadTimes(strings.NewReader(string(text)), tab)
	if err != nil {
		t.Fatal(err)
	}
	return times
}

const visible = "[...document.querySelectorAll('#commands tbody tr')].filter(r => !r.hidden)"

func TestViewer(t *testing.T) {
	tab := gopher(t, pianola.TableOptions{})
	b := open(t, viewPage(t, view.Source{Name: "gopher", Table: tab, Times: measured(t, tab)}), "/")
	decode, _, _ := tab.Program(table.ProgramDecode)
	if n := eval[int](b, visible+".length"); n != int(decode.Count) {
		t.Errorf("%d rows, the program has %d commands", n, decode.Count)
	}
	barriers := 0
	for _, c := range tab.ProgramCmds(decode) {
		barriers += int(c.Barrier)
	}
	if n := eval[int](b, "document.querySelectorAll('#commands tr.barrier').length"); n != barriers {
		t.Errorf("%d barriers are shown, the program has %d", n, barriers)
	}
	b.do(chromedp.Click(`//tr[td[2][starts-with(., "layer.1.attn.attention")]]`))
	b.await(`document.querySelector('#details h2').textContent === '13 layer.1.attn.attention'`)
	details := eval[string](b, "document.getElementById('details').innerText")
	for _, want := range []string{"kv_len: writes kv_len", "12 decode: layer.1.attn.rope_kv", "read after write of kv.1.k", "14.00 µs", "q (reads)"} {
		if !strings.Contains(details, want) {
			t.Errorf("the details lack %q:\n%s", want, details)
		}
	}
	if n := eval[int](b, "document.querySelectorAll('#charts .hazard').length"); n != 1 {
		t.Errorf("%d lines to commands that it waits for, want 1", n)
	}
	if n := eval[int](b, "document.querySelectorAll('#charts .region.read, #charts .region.written').length"); n != 2 {
		t.Errorf("%d regions are marked, want one that it reads and one that it writes", n)
	}
	b.layout("view")
	b.accessible()
	b.keys()
	b.filters(tab)
}

// keys moves through the commands by keyboard alone.
func (b *browser) keys() {
	b.t.Helper()
	at := "document.activeElement.querySelector('td').textContent"
	for _, step := range []struct {
		key, want string
	}{{kb.ArrowDown, "14"}, {kb.ArrowUp, "13"}, {kb.End, "68"}, {kb.Home, "0"}, {kb.PageDown, "20"}} {
		b.do(chromedp.KeyEvent(step.key))
		if got := eval[string](b, at); got != step.want {
			b.t.Errorf("key %q: command %s has the focus, want %s", step.key, got, step.want)
		}
	}
	b.do(chromedp.Focus("#filter"), chromedp.KeyEvent("rope_kv"))
	b.await(visible + ".length === 8")
	for range 20 { // Tab reaches the selected command, which matches
		b.do(chromedp.KeyEvent(kb.Tab))
		if eval[bool](b, "document.activeElement.matches('#commands tr')") {
			b.await("document.querySelector('#details h2').textContent.startsWith('20 ')")
			return
		}
	}
	b.t.Error("Tab reaches no command")
}

func (b *browser) filters(tab *table.Table) {
	b.t.Helper()
	b.put("filter", "", "input")
	b.do(chromedp.Click("#patched"))
	decode, _, _ := tab.Program(table.ProgramDecode)
	patched := 0
	for _, c := range tab.ProgramCmds(decode) {
		if c.Patch != table.PatchNone {
			patched++
		}
	}
	b.await(visible + ".length === " + strconv.Itoa(patched))
	b.do(chromedp.Click("#patched"), chromedp.Click("#scaled"))
	widths := eval[[]float64](b, "[...document.querySelectorAll('#charts rect.cmd')].map(r => Number(r.getAttribute('width')))")
	if len(widths) < 60 || widths[60] <= widths[3] {
		b.t.Errorf("the widths do not follow the times: %v", widths)
	}
	b.put("program", "prefill", "change")
	prefill, _, _ := tab.Program(table.ProgramPrefill)
	b.await(visible + ".length === " + strconv.Itoa(int(prefill.Count)))
}

// TestTwoTables compares a table with one that has no fused kernels.
func TestTwoTables(t *testing.T) {
	a, plain := gopher(t, pianola.TableOptions{}), gopher(t, pianola.TableOptions{NoFuse: true})
	b := open(t, viewPage(t, view.Source{Name: "fused", Table: a}, view.Source{Name: "plain", Table: plain}), "/#decode/4")
	b.await("document.querySelector('#details h2').textContent === 'Difference: only in A'")
	kinds := map[string]int{}
	for _, d := range table.Diff(a, plain) {
		decode := strings.HasPrefix(d.Where, "decode: ")
		if decode {
			kinds[map[table.DifferenceKind]string{table.OnlyA: "drop", table.OnlyB: "add", table.Changed: "change", table.Moved: "move"}[d.Kind]]++
		}
	}
	for kind, want := range kinds {
		if got := eval[int](b, "document.querySelectorAll('#commands tr."+kind+"').length"); got != want {
			t.Errorf("%d rows are %s, want %d", got, kind, want)
		}
	}
	if len(kinds) < 3 {
		t.Errorf("the tables differ too little: %v", kinds)
	}
	b.do(chromedp.Click("#changed"))
	b.await(visible + ".every(r => r.className !== '' && r.className !== 'barrier')")
	if n := eval[int](b, "document.querySelectorAll('#charts svg').length"); n != 2 {
		t.Errorf("%d timelines, want 2", n)
	}
	b.accessible()
	b.do(chromedp.Evaluate("scrollTo(0, 0)", nil))
	b.layout("view-two")
}

// TestHostileLabels shows a table whose texts are markup.
func TestHostileLabels(t *testing.T) {
	const evil = `<img src=x onerror=document.title='broken'></script><script>document.title='broken'</script>`
	tab := gopher(t, pianola.TableOptions{})
	tab.Labels[2], tab.Programs[0].Name, tab.Slots[5].Name, tab.Header.Model = evil, evil, evil, evil
	b := open(t, viewPage(t, view.Source{Name: evil, Table: tab}), "/")
	b.await(visible + "[2].innerText.includes('<img src=x')")
	b.do(chromedp.Click("#commands tbody tr:nth-child(3)"))
	b.await("document.querySelector('#details h2').textContent.includes('<img src=x')")
	if eval[bool](b, "document.title === 'broken' || document.querySelector('img') !== null || document.scripts.length !== 2") {
		t.Error("text of the table became markup")
	}
}

// TestFile opens the page as a file, where only its own meta element has the policy.
func TestFile(t *testing.T) {
	doc := viewPage(t, view.Source{Name: "gopher", Table: gopher(t, pianola.TableOptions{})})
	path := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(path, doc.HTML(), 0o644); err != nil {
		t.Fatal(err)
	}
	b := open(t, doc, "/")
	b.do(chromedp.Navigate("file://" + path))
	b.await(visible + ".length === 69")
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, r := range b.requests {
		if r == "file://"+path {
			b.requests[i] = "data:" // the page itself
		}
	}
}
