// Answers of a model: their text, their reasoning, and the probabilities of their tokens.

// Tokens are the tokens of a text, with their places in it.
class Tokens {
	constructor() {
		this.list = []; // {from, to, token, logprob, top}
	}

	// add takes a piece of text at a place, and the tokens that came with it. A token without text, such
	// as a part of a character, has an empty place.
	add(at, text, entries) {
		const end = at + text.length;
		entries.forEach((e, i) => {
			const rest = text.slice(at - end + text.length);
			const n = i + 1 === entries.length ? end - at : rest.startsWith(e.token) ? e.token.length : 0;
			this.list.push({from: at, to: at + n, token: String(e.token), logprob: Number(e.logprob), top: e.top_logprobs || []});
			at += n;
		});
	}

	// after returns the index of the first token that ends after a place.
	after(place) {
		let low = 0, high = this.list.length;
		while (low < high) {
			const middle = (low + high) >> 1;
			if (this.list[middle].to > place) high = middle;
			else low = middle + 1;
		}
		return low;
	}
}

// grade returns the class of a probability's colour.
function grade(logprob) {
	const p = Math.exp(logprob);
	return p >= .9 ? 'p4' : p >= .6 ? 'p3' : p >= .3 ? 'p2' : p >= .1 ? 'p1' : 'p0';
}

function percent(logprob) {
	const p = 100 * Math.exp(logprob);
	return p >= 99.95 ? '100 %' : p >= .1 ? p.toFixed(1) + ' %' : p > 0 ? '< 0.1 %' : '0 %';
}

// visibly writes white space and control characters as characters that people can see.
function visibly(s) {
	if (s === '') return '∅';
	return s.replace(/\n/g, '↵').replace(/\t/g, '⇥').replace(/ /g, '·')
		.replace(/[\p{Cc}\p{Cf}]/gu, c => 'U+' + c.codePointAt(0).toString(16).toUpperCase().padStart(4, '0'));
}

// tip shows the alternatives of one token beside it.
const tip = {
	at: null,
	timer: 0,

	show(e, token, index) {
		clearTimeout(this.timer);
		if (this.at === e) return;
		this.at = e;
		const known = token.top.some(t => t.token === token.token);
		const rows = (known || !token.top.length ? token.top : [...token.top, token]).map(t => {
			const bar = element('span', {class: 'bar'});
			bar.style.width = Math.max(1, 100 * Math.exp(t.logprob)).toFixed(1) + '%';
			return element('tr', {class: t.token === token.token ? 'chosen' : null},
				element('td', {class: 'mono'}, element('bdi', {}, visibly(String(t.token)))), element('td', {class: 'number'}, percent(t.logprob)),
				element('td', {class: 'bars', 'aria-hidden': 'true'}, bar));
		});
		$('tip').replaceChildren(
			element('p', {}, element('bdi', {class: 'mono'}, visibly(token.token)), ' ', element('b', {}, percent(token.logprob)),
				element('span', {class: 'soft'}, ` token ${index + 1} · ln p ${token.logprob.toFixed(3).replace('-', '−')}`)),
			rows.length ? element('table', {}, element('caption', {class: 'hidden-text'}, 'Alternatives'), element('tbody', {}, ...rows)) : '');
		$('tip').hidden = false;
		this.place();
	},

	// place moves the tip beside its token.
	place() {
		const box = this.at.getClientRects()[0] || this.at.getBoundingClientRect(), own = $('tip').getBoundingClientRect();
		$('tip').style.left = Math.max(4, Math.min(box.left, innerWidth - own.width - 4)) + 'px';
		$('tip').style.top = (box.bottom + own.height + 4 > innerHeight && box.top > own.height + 4 ? box.top - own.height - 2 : box.bottom + 2) + 'px';
	},

	// scrolled moves the tip with the token that has the focus, and hides another one.
	scrolled() {
		if (this.at && this.at === document.activeElement) this.place();
		else this.hide(true);
	},

	// hide leaves the pointer time to reach the tip.
	hide(now) {
		clearTimeout(this.timer);
		const close = () => {
			this.at = null;
			$('tip').hidden = true;
		};
		if (now) close();
		else this.timer = setTimeout(close, 200);
	},
};

// Part is the reasoning or the content of an answer.
class Part {
	constructor() {
		this.text = '';
		this.tokens = new Tokens();
	}

	add(text, entries) {
		this.tokens.add(this.text.length, text, entries);
		this.text += text;
	}

	// put adds text[from:to] to a parent: a text node, or an element for each token.
	put(parent, from, to) {
		const list = this.tokens.list;
		for (let i = this.tokens.after(from); from < to; i++) {
			const t = list[i], start = t ? Math.min(to, Math.max(from, t.from)) : to;
			if (start > from) parent.append(this.text.slice(from, start));
			from = start;
			if (from === to) return;
			const end = Math.min(to, t.to);
			parent.append(element('span', {class: 'token ' + grade(t.logprob), 'data-token': i}, this.text.slice(from, end)));
			from = end;
		}
	}
}

// Answer is an answer and its elements.
class Answer {
	constructor(model) {
		this.model = model;
		this.parts = {reasoning: new Part(), content: new Part()};
		this.calls = [];
		this.shown = 0; // characters of the reasoning that are drawn
		this.cost = 0;
		this.drawn = 0;
		this.frame = 0;
		this.build();
	}

	build() {
		this.reasoning = element('div', {class: 'reasoning-text', dir: 'auto'});
		this.summary = element('summary', {}, 'Reasoning');
		this.details = element('details', {class: 'reasoning', hidden: true}, this.summary, this.reasoning);
		this.summary.addEventListener('click', () => { this.touched = true; });
		this.content = element('div', {class: 'text'});
		this.list = element('div', {class: 'tokens', hidden: true});
		this.callList = element('div', {class: 'calls'});
		this.stats = element('span', {class: 'stats soft'});
		this.tools = element('div', {class: 'message-tools'});
		this.element = element('article', {class: 'assistant', 'aria-busy': 'true'},
			element('h2', {class: 'who'}, element('bdi', {}, this.model)), this.details, this.content, this.callList, this.list,
			element('footer', {}, this.stats, this.tools));
		for (const [name, e] of [['reasoning', this.reasoning], ['content', this.content]]) this.watch(e, this.parts[name]);
		this.flow = new Flow(this.content);
	}

	// watch shows the tip of the token under the pointer.
	watch(e, part) {
		e.addEventListener('pointerover', event => {
			const at = event.target.closest('[data-token]');
			if (at) tip.show(at, part.tokens.list[at.dataset.token], Number(at.dataset.token));
			else tip.hide();
		});
		e.addEventListener('pointerleave', () => tip.hide());
	}

	add(name, text, entries) {
		this.parts[name].add(text, entries);
		this.later();
	}

	// call takes a piece of a tool call.
	call(piece) {
		const i = Number(piece.index) || 0, f = piece.function || {};
		if (!this.calls[i]) {
			this.calls[i] = {name: element('b', {class: 'mono'}), text: element('code')};
			this.callList.append(element('div', {class: 'code'}, element('div', {class: 'code-head'}, element('span', {class: 'soft'}, 'Calls the tool '), this.calls[i].name),
				element('pre', {tabindex: 0, dir: 'ltr', 'aria-label': 'Arguments of the tool call'}, this.calls[i].text)));
		}
		this.calls[i].name.append(f.name || '');
		this.calls[i].text.append(f.arguments || '');
	}

	// later draws in the next frame, or in a later one if drawing is slow: it takes at most about a
	// fifth of the time, however long a paragraph is.
	later() {
		if (this.frame) return;
		this.frame = requestAnimationFrame(now => {
			this.frame = 0;
			if (now - this.drawn < 4 * this.cost) this.later();
			else this.draw(false);
		});
	}

	draw(whole) {
		const begin = performance.now(), {reasoning, content} = this.parts;
		cancelAnimationFrame(this.frame);
		this.frame = 0;
		if (reasoning.text.length > this.shown) {
			this.details.hidden = false;
			reasoning.put(this.reasoning, this.shown, reasoning.text.length);
			if (this.shown === 0) this.details.open = true;
			this.shown = reasoning.text.length;
		}
		if (!this.touched && this.details.open && content.text !== '') this.details.open = false;
		this.flow.show(content.text, (parent, from, to) => content.put(parent, from, to), whole);
		this.drawn = performance.now();
		this.cost = this.drawn - begin;
	}

	end() {
		this.draw(true);
		this.element.setAttribute('aria-busy', 'false');
	}

	hasTokens() {
		return this.parts.content.tokens.list.length + this.parts.reasoning.tokens.list.length > 0;
	}

	// toggleTokens shows the tokens one by one instead of the text. It returns whether they are shown.
	toggleTokens() {
		const shown = this.list.hidden;
		this.list.hidden = !shown;
		this.content.hidden = shown;
		if (shown && !this.list.firstChild) {
			for (const [name, label] of [['reasoning', 'Tokens of the reasoning'], ['content', 'Tokens of the answer']]) {
				if (this.parts[name].tokens.list.length) this.list.append(tokenList(this.parts[name].tokens.list, label));
			}
		}
		const first = this.list.querySelector('[tabindex="0"]');
		if (shown && first) first.focus();
		return shown;
	}
}

// tokenList returns a list box of tokens, through which the arrow keys move. A screen reader reads the
// token with its probability, and the tip, which has the alternatives, as its description.
function tokenList(tokens, label) {
	const box = element('div', {role: 'listbox', 'aria-label': label, 'aria-orientation': 'horizontal', class: 'mono'});
	for (const [i, t] of tokens.entries()) {
		box.append(element('span', {
			role: 'option', tabindex: i ? -1 : 0, 'aria-selected': 'false', class: 'token ' + grade(t.logprob), 'data-token': i,
			'aria-label': `${visibly(t.token)} ${percent(t.logprob)}`, 'aria-describedby': 'tip',
		}, visibly(t.token)));
		if (t.token.includes('\n')) box.append(element('br', {'aria-hidden': 'true', role: 'presentation'}));
	}
	const of = e => e.target.closest('[data-token]');
	const open = e => { if (of(e)) tip.show(of(e), tokens[of(e).dataset.token], Number(of(e).dataset.token)); };
	box.addEventListener('pointerover', open);
	box.addEventListener('pointerleave', () => tip.hide());
	box.addEventListener('focusin', e => {
		for (const o of box.querySelectorAll('[tabindex="0"]')) o.tabIndex = -1, o.setAttribute('aria-selected', 'false');
		of(e).tabIndex = 0;
		of(e).setAttribute('aria-selected', 'true');
		open(e);
	});
	box.addEventListener('focusout', () => tip.hide(true));
	box.addEventListener('keydown', e => {
		const i = Number(of(e).dataset.token);
		const to = {ArrowRight: i + 1, ArrowDown: i + 1, ArrowLeft: i - 1, ArrowUp: i - 1, Home: 0, End: tokens.length - 1, PageDown: i + 20, PageUp: i - 20}[e.key];
		if (to === undefined || e.ctrlKey || e.altKey || e.metaKey) return;
		e.preventDefault();
		box.querySelector(`[data-token="${Math.min(Math.max(to, 0), tokens.length - 1)}"]`).focus();
	});
	return box;
}

// scroller keeps the end of the conversation in sight, unless somebody has scrolled away from it.
const scroller = {
	follows: true,

	start() {
		const c = $('conversation');
		c.addEventListener('scroll', () => {
			this.follows = c.scrollHeight - c.scrollTop - c.clientHeight < 40;
			tip.scrolled();
		});
		// Messages get their true heights when they come in sight.
		const sizes = new ResizeObserver(() => { if (this.follows) this.toEnd(); });
		sizes.observe($('messages'));
		sizes.observe(c);
	},

	toEnd() {
		this.follows = true;
		$('conversation').scrollTop = $('conversation').scrollHeight;
	},
};
