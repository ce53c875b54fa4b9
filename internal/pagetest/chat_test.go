package pagetest

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

const sample = "A **dispatch table** lists the commands of a decoding step:\n\n" +
	"1. each command has a `kernel`, a grid and its bindings;\n2. a *barrier* orders what must not overlap\n   - such as a read after a write\n   - or two writes\n\n" +
	"```go\nfor i := range table.Cmds {\n\tdevice.Dispatch(&table.Cmds[i]) // patched before\n}\n```\n\n" +
	"| kernel | bytes |\n|---|--:|\n| gemv | 1024 |\n| rope | 64 |\n\n> A replay sends the same commands for every token."

// enter presses Enter as a keyboard does: a page that handles the key gets no character. The events
// of chromedp.KeyEvent would give it one.
func (b *browser) enter(modifiers ...input.Modifier) {
	b.t.Helper()
	down := input.DispatchKeyEvent(input.KeyDown).WithKey("Enter").WithCode("Enter").WithText("\r").WithWindowsVirtualKeyCode(13)
	for _, m := range modifiers {
		down = down.WithModifiers(m)
	}
	b.do(down, input.DispatchKeyEvent(input.KeyUp).WithKey("Enter").WithCode("Enter").WithWindowsVirtualKeyCode(13))
}

// ask types a message and sends it with Enter.
func (b *browser) ask(text string) {
	b.t.Helper()
	b.do(chromedp.Focus("#input"), chromedp.KeyEvent(text))
	b.enter()
}

// receive waits until something comes from a channel, as long as the tab is open.
func (b *browser) receive(from <-chan struct{}) {
	b.t.Helper()
	select {
	case <-from:
	case <-b.ctx.Done():
		b.t.Fatal("the service has not seen what it should see")
	}
}

// ended waits until the page has shown n answers completely.
func (b *browser) ended(n int) {
	b.t.Helper()
	b.await("document.querySelectorAll('article.assistant[aria-busy=false]').length === " + strconv.Itoa(n))
}

const lastText = "([...document.querySelectorAll('article.assistant .text')].pop() || {innerText: ''}).innerText"

// TestChat streams an answer step by step.
func TestChat(t *testing.T) {
	step := make(chan struct{})
	s := newService(t, func(s *stream) {
		s.words("reasoning_content", "The user wants to know what a table is. ")
		s.hold(step)
		s.words("content", sample[:200])
		s.hold(step)
		s.words("content", sample[200:])
		s.end("length")
	})
	b := open(t, s, "/")
	b.await("document.querySelectorAll('#model option').length === 2")
	b.do(chromedp.Evaluate(`window.said = []; new MutationObserver(() => { const s = document.getElementById('say').textContent; if (s) said.push(s); })
		.observe(document.getElementById('say'), {childList: true})`, nil))
	b.do(chromedp.SetValue("#system", "Be brief."), chromedp.SetValue("#temperature", "0.7"), chromedp.SetValue("#seed", "42"), chromedp.SetValue("#reasoning_effort", "low"))
	b.do(chromedp.Focus("#input"), chromedp.KeyEvent("What is a"))
	b.enter(input.ModifierShift)
	b.ask("dispatch table?")
	b.await("document.querySelector('details.reasoning').open && document.querySelector('.reasoning-text').textContent.includes('what a table is')")
	b.await("!document.getElementById('stop').hidden")
	step <- struct{}{}
	// The page draws the paragraph anew until the list after it has a complete line.
	b.await("document.querySelector('article.assistant .text em') !== null && !document.querySelector('details.reasoning').open")
	first := eval[string](b, "document.querySelector('article.assistant .text').innerText")
	if !strings.HasPrefix(first, "A dispatch table lists") {
		t.Errorf("the beginning of the answer is %q", first)
	}
	b.do(chromedp.Evaluate("document.querySelector('article.assistant .text').firstChild.id = 'kept'", nil))
	time.Sleep(60 * time.Millisecond) // the page shows no rate for an answer of less than 50 ms
	step <- struct{}{}
	b.ended(1)
	for selector, want := range map[string]string{
		".text > p#kept > strong": "dispatch table", ".text > ol > li": "each command has a kernel, a grid and its bindings;", ".text > ol code": "kernel",
		".text > ol > li + li > ul > li + li": "or two writes", ".text > ol em": "barrier", ".text td.end": "1024", ".text blockquote": "A replay sends the same commands for every token.",
		".text pre": "for i := range table.Cmds {\n\tdevice.Dispatch(&table.Cmds[i]) // patched before\n}\n", "article.user .text": "What is a\ndispatch table?",
	} {
		if got := eval[string](b, "(document.querySelector('"+selector+"') || {}).textContent || ''"); got != want {
			t.Errorf("%s is %q, want %q", selector, got, want)
		}
	}
	stats := eval[string](b, "document.querySelector('.stats').textContent")
	for _, want := range []string{"s to first token", "tok/s", "57 tokens (8 reasoning)", "prompt 31 (16 cached)", "ended at the limit"} {
		if !strings.Contains(stats, want) {
			t.Errorf("the figures lack %q: %s", want, stats)
		}
	}
	b.await("document.getElementById('load').textContent.includes('2 running · 1 waiting · 96 pages')")
	b.await("said.length > 1")
	if said := eval[[]string](b, "said"); len(said) != 2 || said[0] != "The model answers." || !strings.HasPrefix(said[1], "The answer: A **dispatch") {
		t.Errorf("a screen reader is told %q", said)
	}
	q, _ := s.last()
	if q.Model != "gopher" || !q.Stream || !q.Options.Usage || q.TopLogprobs == nil || *q.TopLogprobs != 5 || q.Temperature == nil || *q.Temperature != .7 ||
		*q.Seed != 42 || len(q.Messages) != 2 || q.Messages[0].Content != "Be brief." || q.Messages[1].Content != "What is a\ndispatch table?" {
		t.Errorf("the request is %+v", q)
	}
	if _, ok := q.all["top_p"]; ok || q.all["reasoning_effort"] != "low" {
		t.Errorf("an empty field was sent, or the reasoning effort was not: %v", q.all)
	}
	b.probabilities()
	b.do(chromedp.Evaluate("document.getElementById('conversation').scrollTop = 0", nil))
	b.layout("chat")
	b.accessible()
	b.scheme("dark")
	b.layout("chat-dark")
}

// probabilities looks at the tokens with the pointer and by keyboard.
func (b *browser) probabilities() {
	b.t.Helper()
	const dispatch = `[...document.querySelectorAll('.text .token')].find(e => e.textContent.startsWith('dispatch'))`
	b.do(chromedp.Evaluate(dispatch+".scrollIntoView({block: 'center'})", nil))
	at := eval[[]float64](b, "(r => [r.left + 5, r.top + 5])("+dispatch+".getBoundingClientRect())")
	b.do(chromedp.MouseEvent(input.MouseMoved, at[0], at[1]))
	b.await("!document.getElementById('tip').hidden")
	text := eval[string](b, "document.getElementById('tip').innerText")
	for _, want := range []string{"**dispatch·", "10.7 %", "·another", "89.4 %", "token 2"} {
		if !strings.Contains(text, want) {
			b.t.Errorf("the tip lacks %q: %s", want, text)
		}
	}
	b.do(chromedp.KeyEvent(kb.Escape))
	b.await("document.getElementById('tip').hidden")
	b.do(chromedp.Click(`//button[text()="Tokens"]`), chromedp.KeyEvent(kb.ArrowRight), chromedp.KeyEvent(kb.ArrowRight), chromedp.KeyEvent(kb.ArrowLeft))
	const name = "document.activeElement.getAttribute('aria-label')"
	if got := eval[string](b, name); got != "user· 41.0 %" {
		b.t.Errorf("the focus is on the token %q", got)
	}
	if eval[bool](b, "document.getElementById('tip').hidden || document.activeElement.getAttribute('aria-describedby') !== 'tip'") {
		b.t.Error("the token with the focus has no description")
	}
	b.accessible()
	b.do(chromedp.KeyEvent(kb.End))
	if got := eval[string](b, name); got != "is. 64.0 %" {
		b.t.Errorf("End goes to the token %q", got)
	}
	b.do(chromedp.Click(`//button[text()="Tokens"]`))
	b.await("document.querySelector('.tokens').hidden && !document.querySelector('.text').hidden")
	b.do(chromedp.Click("#colour"))
	if eval[bool](b, "getComputedStyle("+dispatch+").backgroundColor === 'rgba(0, 0, 0, 0)'") {
		b.t.Error("an improbable token has no colour")
	}
	b.accessible()
	b.do(chromedp.Click("#colour"))
}

// TestStop stops an answer with the button and another one with Escape, regenerates, edits, and begins
// a new chat.
func TestStop(t *testing.T) {
	gone := make(chan struct{}, 2)
	endless := func(s *stream) {
		s.words("content", "It goes on and")
		s.hold(nil)
		gone <- struct{}{}
	}
	s := newService(t, endless, endless, says("Another answer."), says("An answer to the edit."), says("The second turn."))
	b := open(t, s, "/")
	b.ask("Go on")
	b.await(lastText + ".includes('goes on')")
	b.do(chromedp.Click("#stop"))
	b.receive(gone) // the service sees that the request is cancelled
	b.ended(1)
	if !eval[bool](b, "document.activeElement.id === 'input' && document.querySelector('.stats').textContent.includes('stopped')") {
		t.Error("the focus is not in the message field, or the answer is not marked")
	}
	b.do(chromedp.Click(`//button[text()="Regenerate"]`))
	b.await("document.querySelector('article[aria-busy=true] .text:not(:empty)') !== null")
	b.do(chromedp.KeyEvent(kb.Escape))
	b.receive(gone)
	b.ended(1)
	b.do(chromedp.Click(`//button[text()="Regenerate"]`))
	b.await(lastText + " === 'Another answer.'")
	b.ended(1)
	b.do(chromedp.Click(`//button[text()="Edit"]`), chromedp.KeyEvent(" again"), chromedp.KeyEvent(kb.Escape))
	b.await("document.querySelector('form.edit') === null && document.activeElement.textContent === 'Edit'")
	b.do(chromedp.Click(`//button[text()="Edit"]`), chromedp.KeyEvent(kb.End), chromedp.KeyEvent(" slowly"))
	b.enter()
	b.await(lastText + ".startsWith('An answer to')")
	b.ended(1)
	b.ask("And then?")
	b.ended(2)
	q, n := s.last()
	if n != 5 || len(q.Messages) != 3 || q.Messages[0].Content != "Go on slowly" || q.Messages[1].Content != "An answer to the edit." || q.Messages[2].Content != "And then?" {
		t.Errorf("request %d is %+v", n, q.Messages)
	}
	b.do(chromedp.Reload())
	b.ended(2) // the tab has kept the conversation
	b.do(chromedp.Click("#new"))
	b.await("document.querySelectorAll('article').length === 0 && document.activeElement.id === 'input'")
	b.do(chromedp.Reload())
	b.await("document.querySelectorAll('#model option').length === 2 && document.querySelectorAll('article').length === 0")
}

// TestTools copies, scrolls away from an answer that grows, and stops before the first token.
func TestTools(t *testing.T) {
	step := make(chan struct{})
	s := newService(t, says(sample+"\n\n"+strings.Repeat("A long answer.\n\n", 40)), func(s *stream) {
		s.words("content", strings.Repeat("More text.\n\n", 40))
		s.hold(step)
		s.words("content", strings.Repeat("Even more.\n\n", 40))
		s.end("stop")
	}, func(s *stream) { s.end("stop") }, func(s *stream) { s.hold(nil) })
	b := open(t, s, "/")
	b.do(chromedp.Evaluate(`window.copied = ''; navigator.clipboard.writeText = async text => { copied = text; }`, nil))
	b.ask("Hello")
	b.ended(1)
	b.do(chromedp.Click("button.copy-code"))
	b.await("copied.startsWith('for i := range') && copied.endsWith('}\\n')")
	b.do(chromedp.Click(`//article[@class="assistant"]//footer//button[text()="Copy"]`))
	b.await("copied.startsWith('A **dispatch table**') && document.getElementById('say').textContent === 'Copied.'")
	b.ask("More")
	b.await(lastText + ".includes('More text.')")
	const gap = "(c => c.scrollHeight - c.scrollTop - c.clientHeight)(document.getElementById('conversation'))"
	b.await(gap + " < 40")
	b.do(chromedp.Evaluate("document.getElementById('conversation').scrollTop -= 500", nil))
	b.await("!scroller.follows")
	step <- struct{}{}
	b.ended(2)
	b.do(chromedp.Evaluate("requestAnimationFrame(() => requestAnimationFrame(() => { window.painted = true; }))", nil))
	b.await("window.painted === true")
	if !eval[bool](b, gap+" > 400") {
		t.Error("the page scrolls although somebody has scrolled away")
	}
	b.ask("Nothing")
	b.ended(3)
	b.ask("Stop")
	b.await("!document.getElementById('stop').hidden && [...document.querySelectorAll('.stats')].pop().textContent === 'Waits for the first token.'")
	b.do(chromedp.KeyEvent(kb.Escape))
	b.ended(4)
	if got := eval[string](b, "[...document.querySelectorAll('.stats')].slice(2).map(e => e.textContent).join('|')"); got != "57 tokens (8 reasoning) · prompt 31 (16 cached)|0 tokens · stopped" {
		t.Errorf("the figures of empty answers are %q", got)
	}
}

// TestErrors has the API refuse requests, break a connection, and fail in the middle.
func TestErrors(t *testing.T) {
	seen := make(chan struct{})
	s := newService(t,
		func(s *stream) {
			s.w.Header().Set("Retry-After", "7")
			refuse(s.w, http.StatusTooManyRequests, "", "too many requests wait for the model")
		},
		says("After the wait."),
		func(s *stream) {
			s.words("content", "Half of")
			s.hold(seen)
			panic(http.ErrAbortHandler)
		},
		func(s *stream) {
			s.words("content", "Half of")
			s.event(map[string]any{"error": map[string]any{"message": "the device is lost"}})
		},
		func(s *stream) {
			s.words("content", "An end without a reason")
		},
		func(s *stream) {
			s.event(map[string]any{"error": map[string]any{"message": "too many requests wait", "type": "rate_limit_error"}})
		},
		func(s *stream) { refuse(s.w, http.StatusBadRequest, "top_k", "-1 is negative") },
		says("With a key."))
	b := open(t, s, "/")
	b.expect("429", "ERR_INCOMPLETE_CHUNKED_ENCODING", "400", "401")
	problem := func(want string) {
		t.Helper()
		b.await("document.getElementById('problem') !== null")
		if got := eval[string](b, "document.querySelector('#problem [role=alert]').textContent"); got != want {
			t.Errorf("the page says %q, want %q", got, want)
		}
	}
	again := func() {
		t.Helper()
		b.do(chromedp.Click(`//div[@id="problem"]//button[text()="Try again"]`))
	}
	b.ask("Hello")
	problem("The service is busy: too many requests wait for the model. Try again in 7 seconds.")
	b.accessible()
	again()
	b.await(lastText + " === 'After the wait.'")
	b.ended(1)
	b.ask("More")
	b.await(lastText + " === 'Half of'")
	seen <- struct{}{}
	problem("The connection was lost. The answer is incomplete.")
	b.ended(2)
	if !eval[bool](b, lastText+" === 'Half of' && [...document.querySelectorAll('.stats')].pop().textContent.includes('incomplete')") {
		t.Error("the part of the answer that came is not shown as incomplete")
	}
	again()
	problem("The service has failed while it answered: the device is lost.")
	again()
	problem("The connection was lost. The answer is incomplete.")
	again()
	problem("The service is busy: too many requests wait.")
	again()
	problem("The service refuses the request: top_k: -1 is negative.")
	s.mu.Lock()
	s.key = "secret"
	s.mu.Unlock()
	again()
	problem("The service asks for an API key: an API key is required.")
	b.await("document.activeElement.matches('#problem input[type=password]')")
	b.do(chromedp.KeyEvent("secret"))
	b.enter()
	b.await(lastText + " === 'With a key.'")
	if got := eval[string](b, "JSON.stringify(localStorage) + document.cookie"); strings.Contains(got, "secret") {
		t.Errorf("the key is stored: %s", got)
	}
	if q, n := s.last(); n != 8 || len(q.Messages) != 3 {
		t.Errorf("request %d has %d messages, want those of two turns", n, len(q.Messages))
	}
}

// TestKeyAtStart opens the page of a service that needs a key.
func TestKeyAtStart(t *testing.T) {
	s := newService(t)
	s.key = "secret"
	b := open(t, s, "/")
	b.expect("401")
	b.await("document.querySelector('#notice input') !== null")
	b.accessible()
	b.do(chromedp.Focus("#notice input"), chromedp.KeyEvent("wrong"))
	b.enter()
	b.await("(document.querySelector('#notice input') || {}).value === ''")
	b.do(chromedp.Focus("#notice input"), chromedp.KeyEvent("secret"))
	b.enter()
	b.await("document.querySelectorAll('#model option').length === 2 && document.getElementById('notice').textContent === ''")
	b.await("document.querySelectorAll('.model-state').length === 2")
}

// TestHostileText streams markup, very long words, deep nesting, and characters that change the
// direction of text.
func TestHostileText(t *testing.T) {
	const evil = `<img src=x onerror="document.title='broken'"></p></script><script>document.title='broken'</script>`
	hostile := []string{
		evil, "```" + evil + "\n" + evil + "\n```", "[click](javascript:document.title='broken') ![x](http://example.org/x.png)", "`" + evil + "` **" + evil + "**",
		"| " + evil + " |\n|---|\n| " + evil + " |", strings.Repeat("x", 20000), strings.Repeat("> ", 3000) + "deep", strings.Repeat("- ", 3000) + "deep",
		strings.Repeat("*a ", 5000) + strings.Repeat("`", 5000) + strings.Repeat("_b", 5000), "\u202e\u2066 override \u0000 \ufeff", "שלום **עולם**\n\n- مرحبا `x`",
	}
	s := newService(t, func(s *stream) {
		s.words("reasoning_content", evil)
		for _, text := range hostile {
			s.delta("content", text+"\n\n", nil)
		}
		s.event(map[string]any{"choices": []any{map[string]any{"index": 0, "delta": map[string]any{"tool_calls": []any{
			map[string]any{"index": 0, "function": map[string]any{"name": evil, "arguments": evil}}}}}}})
		s.token("content", evil, .5)
		s.end("stop")
	})
	b := open(t, s, "/")
	b.ask(evil)
	b.ended(1)
	if eval[bool](b, "document.title !== 'Pianola' || document.querySelector('img, #messages a') !== null || document.scripts.length !== 1") {
		t.Error("text became markup")
	}
	text := eval[string](b, "document.querySelector('article.assistant').textContent")
	if n := strings.Count(text, "document.title='broken'</script>"); n != 10 {
		t.Errorf("the markup is shown as text %d times, want 10", n)
	}
	if !strings.Contains(text, "](javascript:") {
		t.Error("a link is not shown as it is written")
	}
	if eval[bool](b, "document.getElementById('conversation').scrollWidth > document.getElementById('conversation').clientWidth") {
		t.Error("a long word makes the conversation wider than the page")
	}
	if got := eval[string](b, "[...document.querySelectorAll('article.assistant ul')].map(e => getComputedStyle(e).direction).pop()"); got != "rtl" {
		t.Errorf("the direction of an Arabic list is %s", got)
	}
	hebrew := `[...document.querySelectorAll('article.assistant p')].find(p => p.textContent.includes('שלום'))`
	if got := eval[string](b, "getComputedStyle("+hebrew+").direction"); got != "rtl" {
		t.Errorf("the direction of Hebrew text is %s", got)
	}
}

// TestMarkdown draws texts at once, and in pieces of every length, as they come in a stream.
func TestMarkdown(t *testing.T) {
	b := open(t, newService(t), "/")
	b.do(chromedp.Evaluate(`window.drawn = (text, step) => {
		const e = document.createElement('div'), flow = new Flow(e);
		for (let n = step; n < text.length; n += step) flow.show(text.slice(0, n), (p, from, to) => p.append(text.slice(from, to)), false);
		flow.show(text, (p, from, to) => p.append(text.slice(from, to)), true);
		for (const x of e.querySelectorAll('.code-head')) x.remove();
		for (const x of e.querySelectorAll('*')) for (const a of [...x.attributes]) if (!['start', 'class'].includes(a.name)) x.removeAttribute(a.name);
		return e.innerHTML.replace(/<.?span>/g, '').replace(/<.?div[^>]*>/g, '').replace(/\n/g, '/');
	}; 0`, nil))
	for text, want := range map[string]string{
		"a **b *c*** ***d*** ~~e~~ `f *g*`":       "<p>a <strong>b <em>c</em></strong> <strong><em>d</em></strong> <del>e</del> <code>f *g*</code></p>",
		"a_b_c _d_ 2 * 3 * 4 **e \\*f\\* `g":      "<p>a_b_c <em>d</em> 2 * 3 * 4 **e *f* `g</p>",
		"a\n b\n\nc":                              "<p>a/b</p><p>c</p>",
		"# a\n#### b\n#c\n---\n":                  "<h3>a</h3><h6>b</h6><p>#c</p><hr>",
		"1. a\n   - b\n     c\n\n   d\n2. e\n\nf": "<ol><li>a<ul><li>b/c</li></ul><p>d</p></li><li>e</li></ol><p>f</p>",
		"3) a\n- b\n\n- c\n* * *":                 `<ol start="3"><li>a</li></ol><ul><li>b</li><li>c</li></ul><hr>`,
		"> a\n> > b\n> - c\nd":                    "<blockquote><p>a</p><blockquote><p>b</p></blockquote><ul><li>c</li></ul></blockquote><p>d</p>",
		"```go\n a\n\n*b*\n```\nc":                "<pre><code> a//*b*/</code></pre><p>c</p>",
		"~~~\n```\n":                              "<pre><code>```/</code></pre>",
		"|a|b|\n|:-:|--:|\n|`1`|2|\n\nc | d":      `<table><thead><tr><th class="middle">a</th><th class="end">b</th></tr></thead><tbody><tr><td class="middle"><code>1</code></td><td class="end">2</td></tr></tbody></table><p>c | d</p>`,
		"<b>a</b> [b](c) &amp;":                   "<p>&lt;b&gt;a&lt;/b&gt; [b](c) &amp;amp;</p>",
		strings.Repeat("> ", 12) + "a":            strings.Repeat("<blockquote>", 8) + "<p>&gt; &gt; &gt; &gt; a</p>" + strings.Repeat("</blockquote>", 8),
	} {
		for step := range 9 {
			if step == 0 {
				step = len(text)
			}
			if got := eval[string](b, fmt.Sprintf("drawn(%s, %d)", strconv.Quote(text), step)); got != want {
				t.Errorf("%q in pieces of %d characters:\n%s\nwant\n%s", text, step, got, want)
			}
		}
	}
	// Texts for which a search from each mark to the end would take hours.
	for _, part := range []string{"_a_b ", "**a ", "*a ", "`` ` ", "**a *b `c __d ", "> ", "- a\n", "|", "a|\n-|\n", "~~a "} {
		text := strings.Repeat(part, 300_000/len(part))
		if n := eval[int](b, fmt.Sprintf("drawn(%s.repeat(%d), 1e9).length", strconv.Quote(part), len(text)/len(part))); n < len(text)/3 {
			t.Errorf("%d characters of %q are drawn as %d", len(text), part, n)
		}
	}
}

// TestLongConversation streams a long answer, of which each step must not draw everything again.
func TestLongConversation(t *testing.T) {
	step := make(chan struct{})
	paragraph := strings.Repeat("word ", 40) + "\n\n"
	s := newService(t, func(s *stream) {
		s.delta("content", strings.Repeat(paragraph, 500)+"```\n"+strings.Repeat("code\n", 2000), nil)
		s.hold(step)
		s.delta("content", strings.Repeat("more\n", 10), nil)
		s.hold(step)
		s.delta("content", "```\n\nThe end.", nil)
		s.end("stop")
	})
	b := open(t, s, "/")
	b.ask("Write")
	b.await("document.querySelectorAll('article.assistant .text p').length === 500 && document.querySelector('.text pre') !== null")
	b.do(chromedp.Evaluate("document.querySelector('.text pre').id = 'kept'", nil))
	b.do(chromedp.Evaluate(`window.changed = 0; new MutationObserver(l => { for (const m of l) changed += m.addedNodes.length + m.removedNodes.length; })
		.observe(document.querySelector('article.assistant .text'), {childList: true, subtree: true})`, nil))
	step <- struct{}{}
	b.await("document.querySelector('.text pre').textContent.endsWith('more\\n'.repeat(10))")
	if !eval[bool](b, "document.querySelector('.text pre').id === 'kept'") {
		t.Error("the block of code was drawn again")
	}
	if n := eval[int](b, "changed"); n > 40 {
		t.Errorf("%d nodes changed for 10 lines of code", n)
	}
	step <- struct{}{}
	b.ended(1)
	if !eval[bool](b, "document.querySelector('.text pre').textContent === 'code\\n'.repeat(2000) + 'more\\n'.repeat(10) && document.querySelector('article.assistant .text').lastChild.textContent === 'The end.'") {
		t.Error("the answer is not complete")
	}
	if !eval[bool](b, "(c => c.scrollHeight - c.scrollTop - c.clientHeight < 60)(document.getElementById('conversation'))") {
		t.Error("the end of the answer is not in sight")
	}
}

// TestNarrow uses the page on a narrow screen, by keyboard alone.
func TestNarrow(t *testing.T) {
	s := newService(t, says(sample))
	b := open(t, s, "/")
	b.do(emulation.SetDeviceMetricsOverride(360, 740, 1, false), chromedp.Reload())
	b.await("document.querySelectorAll('#model option').length === 2 && document.activeElement.id === 'input'")
	b.do(chromedp.KeyEvent("What is a table?"))
	b.enter()
	b.ended(1)
	if w := eval[int](b, "document.documentElement.scrollWidth"); w > 360 {
		t.Errorf("the page is %d pixels wide", w)
	}
	b.do(chromedp.Evaluate("document.getElementById('conversation').scrollTop = 0", nil))
	b.layout("chat-narrow")
	reach := func(what string) {
		t.Helper()
		for range 40 {
			b.do(chromedp.KeyEvent(kb.Tab))
			if eval[bool](b, "document.activeElement.matches('"+what+"')") {
				return
			}
		}
		t.Fatalf("Tab does not reach %s", what)
	}
	reach("#toggle")
	b.enter()
	reach("#top_p")
	b.do(chromedp.KeyEvent("0.5"))
	if !eval[bool](b, "document.getElementById('top_p').value === '0.5' && document.activeElement.checkVisibility() && document.documentElement.scrollWidth <= 360") {
		t.Error("the settings are not shown, or too wide")
	}
	b.accessible()
	b.layout("chat-narrow-settings")
	reach("#toggle")
	b.enter()
	reach("#conversation")
	reach("button.copy-code")
	reach(".text pre")
	reach("button[aria-pressed]")
	b.enter()
	b.do(chromedp.KeyEvent(kb.End))
	b.await("document.activeElement.getAttribute('aria-label') === 'token. 32.8 %' && !document.getElementById('tip').hidden")
	b.do(chromedp.KeyEvent(kb.Escape))
	b.await("document.getElementById('tip').hidden")
	reach("button[aria-pressed]")
	b.enter()
	b.await("document.querySelector('.tokens').hidden")
	reach("#input")
}
