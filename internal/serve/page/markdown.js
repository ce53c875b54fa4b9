// Markdown of answers: headings, lists, quotes, tables, code, bold, italic and struck text. Text becomes
// text nodes, whatever it is. Links and images stay as they are written, because a page that loads
// nothing has no use for them. Every piece of text keeps its place in the source, so that its tokens
// can be found.

const deepest = 8; // levels of lists and quotes

// linesOf returns the lines of text[from:] as places {from, to} without their ends.
function linesOf(text, from) {
	const lines = [];
	while (from < text.length) {
		let to = text.indexOf('\n', from);
		if (to < 0) to = text.length;
		lines.push({from, to});
		from = to + 1;
	}
	return lines;
}

const fencePattern = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const headingPattern = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const itemPattern = /^([ \t]*)([-*+]|\d{1,9}[.)])(?:[ \t]+|$)/;
const quotePattern = /^ {0,3}> ?/;
const ruleCells = /^[ \t]*\|?(?:[ \t]*:?-+:?[ \t]*\|)*[ \t]*:?-+:?[ \t]*\|?[ \t]*$/;

function isRule(s) {
	const t = s.replace(/[ \t]/g, '');
	return t.length >= 3 && '-*_'.includes(t[0]) && t === t[0].repeat(t.length);
}

function widthOf(indent) {
	let n = 0;
	for (const c of indent) n += c === '\t' ? 4 : 1;
	return n;
}

// indented returns the line without up to n columns of white space.
function indented(text, line, n) {
	let from = line.from;
	while (n > 0 && from < line.to && (text[from] === ' ' || text[from] === '\t')) n -= text[from++] === '\t' ? 4 : 1;
	return {from, to: line.to};
}

// Blocks parses lines into blocks. A block has a kind and the place of its first line.
class Blocks {
	constructor(text, lines, depth) {
		this.text = text;
		this.lines = lines;
		this.depth = depth;
		this.at = 0;
		this.out = [];
	}

	string(i) {
		return i < this.lines.length ? this.text.slice(this.lines[i].from, this.lines[i].to) : '';
	}

	parse() {
		while (this.at < this.lines.length) {
			if (this.string(this.at).trim() === '') this.at++;
			else this.block();
		}
		return this.out;
	}

	// begins reports the kind of block that begins at a line and can interrupt a paragraph.
	begins(i) {
		const s = this.string(i);
		if (fencePattern.test(s)) return 'fence';
		if (headingPattern.test(s)) return 'heading';
		if (isRule(s)) return 'rule';
		if (this.depth >= deepest) return '';
		if (quotePattern.test(s)) return 'quote';
		return itemPattern.test(s) ? 'list' : '';
	}

	block() {
		const from = this.lines[this.at].from, kind = this.begins(this.at) || (this.isTable() ? 'table' : 'paragraph');
		this.out.push({kind, from, ...this[kind]()});
	}

	fence() {
		const [, mark, about] = fencePattern.exec(this.string(this.at++));
		const lines = [];
		let closed = false;
		while (this.at < this.lines.length && !closed) {
			const s = this.string(this.at).trim();
			closed = s.length >= mark.length && s === mark[0].repeat(s.length);
			if (!closed) lines.push(this.lines[this.at]);
			this.at++;
		}
		return {lines, closed, language: about.trim().split(/\s/)[0]};
	}

	heading() {
		const line = this.lines[this.at], match = headingPattern.exec(this.string(this.at++));
		return {level: match[1].length, lines: [{from: line.from + match[0].length, to: line.to}]};
	}

	rule() {
		this.at++;
		return {};
	}

	quote() {
		const lines = [];
		for (; this.at < this.lines.length; this.at++) {
			const match = quotePattern.exec(this.string(this.at));
			if (!match) break;
			lines.push({from: this.lines[this.at].from + match[0].length, to: this.lines[this.at].to});
		}
		return {blocks: new Blocks(this.text, lines, this.depth + 1).parse()};
	}

	list() {
		const first = itemPattern.exec(this.string(this.at)), ordered = first[2].length > 1, items = [];
		for (;;) {
			const match = itemPattern.exec(this.string(this.at));
			if (!match || (match[2].length > 1) !== ordered || isRule(this.string(this.at))) break;
			items.push(this.item(match));
			let next = this.at;
			while (next < this.lines.length && this.string(next).trim() === '') next++;
			if (!itemPattern.test(this.string(next))) break;
			this.at = next;
		}
		return {ordered, start: ordered ? parseInt(first[2], 10) : 1, items};
	}

	// item takes the lines of an item: those that are indented as far as its text, with the empty lines
	// between them, and those that continue its paragraph.
	item(match) {
		const line = this.lines[this.at], indent = widthOf(match[1]);
		const lines = [{from: line.from + match[0].length, to: line.to}];
		let empty = false;
		for (this.at++; this.at < this.lines.length; this.at++) {
			const s = this.string(this.at);
			if (s.trim() === '') {
				empty = true;
				lines.push(this.lines[this.at]);
				continue;
			}
			const deep = widthOf(/^[ \t]*/.exec(s)[0]) >= indent + 2;
			if (!deep && (empty || this.begins(this.at))) break;
			empty = false;
			lines.push(indented(this.text, this.lines[this.at], deep ? indent + match[2].length + 1 : 0));
		}
		return new Blocks(this.text, lines, this.depth + 1).parse();
	}

	isTable() {
		const rule = this.string(this.at + 1);
		return this.string(this.at).includes('|') && rule.includes('|') && ruleCells.test(rule);
	}

	table() {
		const rows = [this.cells(this.lines[this.at])];
		const aligned = this.cells(this.lines[this.at + 1]).map(c => {
			const s = this.text.slice(c.from, c.to);
			return s.endsWith(':') ? (s.startsWith(':') ? 'middle' : 'end') : '';
		});
		for (this.at += 2; this.at < this.lines.length && this.string(this.at).includes('|'); this.at++) rows.push(this.cells(this.lines[this.at]));
		return {rows, aligned};
	}

	// cells returns the places of a row's cells, without the white space around them.
	cells(line) {
		const cells = [];
		let from = line.from;
		for (let i = line.from; i <= line.to; i++) {
			if (i < line.to && (this.text[i] !== '|' || this.text[i - 1] === '\\')) continue;
			const raw = this.text.slice(from, i);
			const cell = {from: from + raw.length - raw.trimStart().length, to: i - (raw.length - raw.trimEnd().length)};
			if (cell.to < cell.from) cell.to = cell.from;
			if (raw.trim() !== '' || (from > line.from && i < line.to)) cells.push(cell);
			from = i + 1;
		}
		return cells;
	}

	// paragraph keeps the white space at the beginning of its lines out.
	paragraph() {
		const lines = [];
		do {
			lines.push(indented(this.text, this.lines[this.at++], 1e6));
		} while (this.at < this.lines.length && this.string(this.at).trim() !== '' && !this.begins(this.at));
		return {lines};
	}
}

const escapable = '\\`*_~#|>+-!';
const isWord = c => c !== undefined && /[\p{L}\p{N}]/u.test(c);
const isSpace = c => c === undefined || /\s/.test(c);

// Inline makes the elements of a block's text. put(parent, from, to) adds a piece of the source.
class Inline {
	constructor(text, lines, put) {
		this.put = put;
		this.starts = []; // [place in this.s, place in the source] of each line
		this.s = '';
		for (const [i, line] of lines.entries()) {
			this.starts.push([this.s.length, line.from]);
			// The end of a line is a character of the source too, or the end of the text.
			this.s += text.slice(line.from, line.to) + (i + 1 < lines.length ? '\n' : '');
		}
	}

	// add adds s[i:j] to a parent.
	add(parent, i, j) {
		let line = 0, high = this.starts.length - 1;
		while (line < high) {
			const middle = (line + high + 1) >> 1;
			if (this.starts[middle][0] <= i) line = middle;
			else high = middle - 1;
		}
		for (; i < j; line++) {
			const [at, source] = this.starts[line];
			const to = line + 1 < this.starts.length ? Math.min(j, this.starts[line + 1][0]) : j;
			this.put(parent, source + i - at, source + to - at);
			i = to;
		}
	}

	// render adds s[i:end] to a parent, with its marks as elements.
	render(parent, i, end, depth) {
		const range = {from: i, end, depth, missing: new Set()}; // missing has marks that do not occur again
		let plain = i;
		while (i < end) {
			const found = this.mark(i, range);
			if (!found) {
				i++;
				continue;
			}
			this.add(parent, plain, i);
			if (found.name === '') {
				this.add(parent, found.from, found.to);
			} else {
				const e = element(found.name);
				if (found.name === 'code') this.add(e, found.from, found.to);
				else this.render(e, found.from, found.to, depth + 1);
				parent.append(e);
			}
			plain = i = found.next;
		}
		this.add(parent, plain, end);
	}

	// mark returns the marked text of a range that begins at i, or null.
	mark(i, range) {
		const s = this.s, c = s[i], end = range.end;
		if (c === '\\' && i + 1 < end && escapable.includes(s[i + 1])) return {name: '', from: i + 1, to: i + 2, next: i + 2};
		if (!'`*_~'.includes(c) || i > range.from && s[i - 1] === c && s[i - 2] !== '\\') return null;
		let n = 1;
		while (i + n < end && s[i + n] === c) n++;
		if (c === '`') return this.code(i, n, range);
		if (range.depth >= deepest || n > 3 || c === '~' && n !== 2 || isSpace(s[i + n]) || c === '_' && isWord(s[i - 1])) return null;
		const close = this.close(i + n, c, n, range);
		if (close < 0) return null;
		const name = c === '~' ? 'del' : n === 1 ? 'em' : 'strong';
		// Three marks are bold and italic: the text inside keeps one of them on each side.
		const inside = n === 3 ? 1 : 0;
		return {name, from: i + n - inside, to: close + inside, next: close + n};
	}

	code(i, n, {end, missing}) {
		if (missing.has('`' + n)) return null;
		for (let j = i + n; j < end; j++) {
			if (this.s[j] !== '`') continue;
			let m = 1;
			while (j + m < end && this.s[j + m] === '`') m++;
			if (m === n) {
				let from = i + n, to = j;
				if (to - from > 2 && this.s[from] === ' ' && this.s[to - 1] === ' ') from++, to--;
				return {name: 'code', from, to, next: j + n};
			}
			j += m - 1;
		}
		missing.add('`' + n);
		return null;
	}

	// close returns the place of the marks that end what n marks c have begun before i, or -1.
	close(i, c, n, {end, missing}) {
		if (missing.has(c + n)) return -1;
		for (let j = i; j < end; j++) {
			if (this.s[j] !== c) continue;
			let m = 1;
			while (j + m < end && this.s[j + m] === c) m++;
			// Three marks may end the text inside with the others.
			if ((m === n || m === 3) && j > i && !isSpace(this.s[j - 1]) && this.s[j - 1] !== '\\' && !(c === '_' && isWord(this.s[j + m]))) return j + m - n;
			j += m - 1;
		}
		missing.add(c + n);
		return -1;
	}
}

// directed lets the text of an element choose its direction. It comes last, because a browser looks at
// all text of such an element again for each piece that is added.
function directed(e) {
	e.dir = 'auto';
	return e;
}

// Drawing makes the elements of blocks.
class Drawing {
	constructor(text, put) {
		this.text = text;
		this.put = put;
	}

	inline(name, lines, attributes) {
		const e = element(name, attributes), inline = new Inline(this.text, lines, this.put);
		inline.render(e, 0, inline.s.length, 0);
		return directed(e);
	}

	block(b) {
		switch (b.kind) {
		case 'fence': return this.fence(b);
		case 'heading': return this.inline('h' + Math.min(6, b.level + 2), b.lines);
		case 'rule': return element('hr');
		case 'quote': return directed(element('blockquote', {}, ...b.blocks.map(c => this.block(c))));
		case 'list': return this.list(b);
		case 'table': return this.table(b);
		}
		return this.inline('p', b.lines);
	}

	fence(b) {
		const code = element('code');
		const e = element('div', {class: 'code'},
			element('div', {class: 'code-head'}, element('span', {class: 'soft'}, b.language || 'text'),
				element('button', {type: 'button', class: 'small copy-code'}, 'Copy')),
			element('pre', {tabindex: 0, dir: 'ltr', 'aria-label': 'Code'}, code));
		const complete = Math.max(0, b.lines.length - 1), tail = element('span');
		this.code(code, b.lines.slice(0, complete));
		this.code(tail, b.lines.slice(complete)); // the last line may grow
		code.append(tail);
		return e;
	}

	// code adds lines with their ends.
	code(e, lines) {
		for (const line of lines) this.put(e, line.from, Math.min(this.text.length, line.to + 1));
	}

	list(b) {
		const items = b.items.map(blocks => {
			const item = element('li');
			blocks.forEach((c, i) => {
				// The first paragraph of an item is the item's own text.
				if (i === 0 && c.kind === 'paragraph') item.append(...this.inline('p', c.lines).childNodes);
				else item.append(this.block(c));
			});
			return item;
		});
		return directed(element(b.ordered ? 'ol' : 'ul', {start: b.ordered && b.start !== 1 ? b.start : null}, ...items));
	}

	table(b) {
		const row = (name, cells) => element('tr', {}, ...cells.map((c, i) => this.inline(name, [c], {class: b.aligned[i] || null})));
		return element('div', {class: 'wide-table', tabindex: 0, role: 'group', 'aria-label': 'Table'}, element('table', {},
			element('thead', {}, row('th', b.rows[0])), element('tbody', {}, ...b.rows.slice(1).map(r => row('td', r)))));
	}
}

// Flow shows a text that grows. Blocks that are complete are drawn once.
class Flow {
	constructor(container) {
		this.container = container;
		this.done = 0; // the place of the first block that may change
		this.open = []; // the elements of the blocks from there on
		this.fence = null; // the open fence at the end
	}

	// show draws text, which begins as it did before. whole reports that it is complete.
	show(text, put, whole) {
		const blocks = new Blocks(text, linesOf(text, this.done), 0).parse();
		const drawing = new Drawing(text, put);
		const last = blocks[blocks.length - 1];
		if (this.fence && blocks.length === 1 && last.from === this.fence.from && !last.closed) {
			this.extend(drawing, last);
			return;
		}
		for (const e of this.open) e.remove();
		// A line that is not complete may still become part of the block before it.
		const sure = whole ? blocks.length : Math.max(0, blocks.length - (last && text.indexOf('\n', last.from) < 0 ? 2 : 1));
		const drawn = blocks.map(b => drawing.block(b));
		this.container.append(...drawn);
		this.open = drawn.slice(sure);
		this.done = sure < blocks.length ? blocks[sure].from : whole ? text.length : this.done;
		const code = this.open.length === 1 && last.kind === 'fence' && !last.closed ? drawn[sure].querySelector('code') : null;
		this.fence = code && {from: last.from, lines: Math.max(0, last.lines.length - 1), tail: code.lastChild};
	}

	// extend adds lines to the open fence, so that a long one is not drawn again and again.
	extend(drawing, b) {
		const f = this.fence, more = document.createDocumentFragment();
		const complete = Math.max(0, b.lines.length - 1);
		drawing.code(more, b.lines.slice(f.lines, complete));
		f.tail.before(more);
		f.tail.replaceChildren();
		drawing.code(f.tail, b.lines.slice(complete));
		f.lines = complete;
	}
}
