package pagetest

import (
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/pianola-engine/pianola"
	"github.com/pianola-engine/pianola/table"
)

// TestTablesOfService goes from the list of loaded models to the tables of one and of two of them.
func TestTablesOfService(t *testing.T) {
	s := newService(t)
	s.tables = map[string]*table.Table{"gopher": gopher(t, pianola.TableOptions{}), "org/plain": gopher(t, pianola.TableOptions{NoFuse: true})}
	s.key = "secret"
	b := open(t, s, "/view/")
	b.expect("401", "404")
	b.await("document.querySelector('#models input') !== null && document.activeElement.matches('#models input')")
	b.do(chromedp.KeyEvent("secret"))
	b.enter()
	b.await("document.querySelectorAll('#models li a').length === 2")
	b.accessible()
	b.do(chromedp.Click("#models li:nth-child(2) a"))
	b.await("document.title === 'org/plain – Pianola table viewer' && " + visible + ".length > 69")
	b.do(chromedp.Click(`//a[text()="All tables"]`))
	b.await("document.querySelectorAll('#models select').length === 2")
	b.do(chromedp.Click("#models form button"))
	b.await("document.title.startsWith('gopher and org/plain') && !document.getElementById('differences-part').hidden")
	if n := eval[int](b, "document.querySelectorAll('#charts svg').length"); n != 2 {
		t.Errorf("%d timelines, want 2", n)
	}
	b.accessible()
	b.layout("tables")
	b.do(chromedp.Evaluate("location.href = '/view/absent'", nil))
	b.await("document.querySelector('#models [role=alert]')?.textContent.includes('\"absent\" is not loaded') === true")
}
