// The chat: the conversation, its settings, and the state of the service.

const state = {
	messages: [], // {role, content, element, answer}
	running: null, // {abort, answer} of the answer that is being generated
};
const numbers = ['temperature', 'top_k', 'top_p', 'min_p', 'repetition_penalty', 'presence_penalty', 'frequency_penalty', 'max_tokens', 'seed', 'top_logprobs'];
const checks = ['logprobs', 'colour'];
const texts = ['system', 'reasoning_effort'];
const conversationName = 'pianola.conversation', settingsName = 'pianola.settings';

// say tells a screen reader something.
function say(text) {
	$('say').textContent = '';
	requestAnimationFrame(() => { $('say').textContent = text; });
}

function button(text, action, attributes) {
	return element('button', {type: 'button', class: 'small', click: action, ...attributes}, text);
}

async function copy(text) {
	try {
		await navigator.clipboard.writeText(text);
	} catch {
		// Browsers refuse the clipboard to pages without TLS that are not on this machine.
		const area = element('textarea', {class: 'hidden-text', 'aria-hidden': 'true'}), before = document.activeElement;
		area.value = text;
		document.body.append(area);
		area.select();
		document.execCommand('copy');
		area.remove();
		if (before) before.focus();
	}
	say('Copied.');
}

// Messages.

function addMessage(m) {
	state.messages.push(m);
	$('messages').append(m.element);
	$('empty').hidden = true;
	return m;
}

function userMessage(content) {
	const text = element('div', {class: 'text plain', dir: 'auto'}, content);
	const m = {role: 'user', content, element: element('article', {class: 'user'}, element('h2', {class: 'who'}, 'You'), text)};
	const tools = element('div', {class: 'message-tools'}, button('Copy', () => copy(m.content)), button('Edit', () => edit(m, text, tools)));
	m.element.append(element('footer', {}, tools));
	return m;
}

function edit(m, text, tools) {
	if (m.element.querySelector('form')) return;
	const area = element('textarea', {dir: 'auto', 'aria-label': 'Edit the message', rows: Math.min(12, m.content.split('\n').length + 1)});
	area.value = m.content;
	const close = () => {
		form.remove();
		text.hidden = tools.hidden = false;
		tools.lastChild.focus();
	};
	const form = element('form', {
		class: 'edit',
		submit: e => {
			e.preventDefault();
			if (!area.value.trim()) return;
			cut(m);
			ask(area.value);
			$('input').focus();
		},
		keydown: e => {
			if (e.key === 'Escape') close();
			else if (e.key === 'Enter' && e.target === area) sendByEnter(e, form);
			else return;
			e.stopPropagation();
		},
	}, area, element('div', {}, element('button', {class: 'main'}, 'Send'), ' ', button('Cancel', close),
		state.messages[state.messages.length - 1] === m ? '' : element('span', {class: 'soft'}, ' The messages after this one are removed.')));
	text.hidden = tools.hidden = true;
	text.after(form);
	area.focus();
}

function sendByEnter(e, form) {
	if (e.shiftKey || e.ctrlKey || e.altKey || e.metaKey || e.isComposing) return;
	e.preventDefault();
	form.requestSubmit();
}

// cut removes a message and all after it.
function cut(m) {
	stop();
	const at = state.messages.indexOf(m);
	for (const x of state.messages.splice(at < 0 ? state.messages.length : at)) x.element.remove();
	clearProblem();
	keep();
}

function answerMessage(model) {
	const answer = new Answer(model);
	return {role: 'assistant', answer, element: answer.element, get content() { return answer.parts.content.text; }};
}

// finish adds the tools to an answer that has ended.
function finish(m) {
	const a = m.answer;
	a.end();
	a.tools.replaceChildren(button('Copy', () => copy(m.content)), button('Regenerate', () => {
		cut(m);
		generate();
		$('input').focus();
	}));
	if (a.hasTokens()) {
		const tokens = button('Tokens', () => tokens.setAttribute('aria-pressed', a.toggleTokens()), {'aria-pressed': 'false'});
		a.tools.append(tokens);
	}
}

// keep stores the conversation in the tab, so that a reload does not lose it.
function keep() {
	const kinds = state.messages.map(m => ({
		role: m.role, content: m.content, model: m.answer && m.answer.model, reasoning: m.answer && m.answer.parts.reasoning.text, stats: m.answer && m.answer.stats.textContent,
	}));
	kept('sessionStorage', conversationName, kinds.length ? JSON.stringify(kinds) : null);
	return kinds;
}

function restore() {
	let saved = [];
	try {
		saved = JSON.parse(kept('sessionStorage', conversationName) || '[]');
	} catch {
		return;
	}
	for (const s of saved) {
		if (s.role === 'user') {
			addMessage(userMessage(s.content));
			continue;
		}
		const m = addMessage(answerMessage(s.model));
		if (s.reasoning) m.answer.add('reasoning', s.reasoning, []);
		m.answer.add('content', s.content, []);
		m.answer.stats.textContent = s.stats || '';
		finish(m);
	}
}

function save() {
	const url = URL.createObjectURL(new Blob([JSON.stringify(keep(), null, 2)], {type: 'application/json'}));
	element('a', {href: url, download: 'conversation.json'}).click();
	setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// Requests.

// request returns the body of the request for the next answer.
function request() {
	const messages = state.messages.map(m => ({role: m.role, content: m.content}));
	if ($('system').value.trim()) messages.unshift({role: 'system', content: $('system').value});
	const body = {model: $('model').value, messages, stream: true, stream_options: {include_usage: true}};
	for (const name of numbers) {
		const value = $(name).valueAsNumber;
		if (!Number.isNaN(value) && (name !== 'top_logprobs' || $('logprobs').checked)) body[name] = value;
	}
	if ($('logprobs').checked) body.logprobs = true;
	if ($('reasoning_effort').value) body.reasoning_effort = $('reasoning_effort').value;
	return body;
}

function ask(text) {
	addMessage(userMessage(text));
	keep();
	scroller.toEnd();
	generate();
}

// Progress is what is known of an answer's speed.
class Progress {
	constructor() {
		this.begin = performance.now();
		this.first = this.last = 0;
		this.tokens = 0;
		this.usage = null;
		this.reason = null;
	}

	count(n) {
		this.last = performance.now();
		if (this.first === 0) {
			this.first = this.last;
			this.early = n;
		}
		this.tokens += n;
	}

	text() {
		const parts = [];
		if (this.first) parts.push(`${((this.first - this.begin) / 1000).toFixed(2)} s to first token`);
		const seconds = (this.last - this.first) / 1000, tokens = this.usage ? this.usage.completion_tokens : this.tokens;
		if (seconds > .05 && tokens > this.early) parts.push(`${((tokens - this.early) / seconds).toFixed(1)} tok/s`);
		const details = this.usage && this.usage.completion_tokens_details, reasoning = details && details.reasoning_tokens;
		parts.push(`${tokens} ${tokens === 1 ? 'token' : 'tokens'}` + (reasoning ? ` (${reasoning} reasoning)` : ''));
		if (this.usage) {
			const cached = this.usage.prompt_tokens_details && this.usage.prompt_tokens_details.cached_tokens;
			parts.push(`prompt ${this.usage.prompt_tokens}` + (cached ? ` (${cached} cached)` : ''));
		}
		if (this.reason && this.reason !== 'stop') parts.push(reasons[this.reason] || this.reason);
		return parts.join(' · ');
	}
}

const reasons = {length: 'ended at the limit of tokens', tool_calls: 'calls a tool', content_filter: 'filtered', stopped: 'stopped', lost: 'incomplete'};

async function generate() {
	stop();
	clearProblem();
	const abort = new AbortController(), body = request(), progress = new Progress();
	const m = addMessage(answerMessage(body.model)), run = {abort, m};
	state.running = run;
	busy(true);
	m.answer.stats.textContent = 'Waits for the first token.';
	say('The model answers.');
	poll.now();
	scroller.toEnd();
	let failure = null;
	try {
		const reply = await call('/v1/chat/completions', body, abort.signal);
		for await (const data of events(reply)) {
			if (data === '[DONE]') break;
			take(m.answer, progress, JSON.parse(data));
			m.answer.stats.textContent = progress.text();
		}
		if (!progress.reason) throw new Failure(0, 'The connection was lost. The answer is incomplete.');
	} catch (e) {
		if (abort.signal.aborted) progress.reason = 'stopped';
		else failure = e instanceof Failure ? e : new Failure(0, 'The reply is not what the page expects: ' + e.message);
	}
	if (failure && progress.first) progress.reason = 'lost';
	m.answer.stats.textContent = progress.text();
	if (state.running === run) {
		state.running = null;
		busy(false);
	}
	if (!state.messages.includes(m)) return; // it was removed in the meantime
	if (progress.first || !failure) {
		finish(m);
	} else {
		state.messages.splice(state.messages.indexOf(m), 1);
		m.element.remove();
	}
	keep();
	poll.now();
	if (failure) problem(failure, m);
	else say(progress.reason === 'stopped' ? 'Stopped.' : 'The answer: ' + m.content.slice(0, 2000));
}

// take takes a chunk of the stream.
function take(answer, progress, chunk) {
	if (chunk.error) throw streamed(chunk.error, progress.first > 0);
	if (chunk.usage) progress.usage = chunk.usage;
	const choice = chunk.choices && chunk.choices[0];
	if (!choice) return;
	const delta = choice.delta || {}, entries = choice.logprobs && choice.logprobs.content || [];
	const content = delta.content || '', reasoning = delta.reasoning_content || '', calls = delta.tool_calls || [];
	if (content || reasoning || calls.length || entries.length) progress.count(entries.length || 1);
	// Tokens belong to the text that they came with.
	if (reasoning) answer.add('reasoning', reasoning, content ? [] : entries);
	if (content || !reasoning && entries.length) answer.add('content', content, entries);
	for (const c of calls) answer.call(c);
	if (choice.finish_reason) progress.reason = choice.finish_reason;
}

function stop() {
	if (state.running) state.running.abort.abort();
	state.running = null;
	busy(false);
}

function busy(yes) {
	$('stop').hidden = !yes;
	$('send').hidden = yes;
}

// problem shows why there is no answer, with what people can do about it.
function problem(e, m) {
	const again = () => {
		if (state.messages.includes(m)) cut(m);
		clearProblem();
		generate();
		$('input').focus();
	};
	const wait = e.wait ? ` Try again in ${e.wait} ${e.wait === 1 ? 'second' : 'seconds'}.` : '';
	const box = element('div', {class: 'problem', id: 'problem'}, element('p', {role: 'alert', dir: 'auto'}, e.message + wait));
	if (e.status === 401) box.append(keyForm(() => { keyChanged(); again(); }));
	else box.append(button('Try again', again));
	$('messages').append(box);
	if (e.status !== 401) return;
	scroller.toEnd();
	box.querySelector('input').focus();
}

function clearProblem() {
	if ($('problem')) $('problem').remove();
}

// The service.

async function loadModels() {
	try {
		const list = await (await call('/v1/models')).json(), chosen = $('model').value || settings().model;
		$('model').replaceChildren(...list.data.map(m => element('option', {value: m.id}, m.id)));
		if (list.data.some(m => m.id === chosen)) $('model').value = chosen;
		$('notice').replaceChildren();
	} catch (e) {
		const box = element('div', {class: 'problem'}, element('p', {role: 'alert'}, e.message));
		box.append(e.status === 401 ? keyForm(keyChanged) : button('Try again', loadModels));
		$('notice').replaceChildren(box);
	}
}

function keyChanged() {
	loadModels();
	poll.now();
}

// poll asks for the state of the service while somebody sees the page.
const poll = {
	timer: 0,

	async now() {
		clearTimeout(this.timer);
		let next = 2000;
		if (!document.hidden) {
			try {
				showService(await (await call('/status')).json());
			} catch (e) {
				showService(null, e);
				next = 10000;
			}
		}
		clearTimeout(this.timer);
		this.timer = setTimeout(() => this.now(), next);
	},
};

function showService(status, failure) {
	const chosen = status && status.models.find(m => m.id === $('model').value);
	$('load').textContent = chosen ? summary(chosen) : '';
	if (!status) {
		$('models').replaceChildren(element('p', {class: 'soft'}, failure.status === 401 ? 'The state needs an API key.' : failure.message));
		return;
	}
	const memory = status.models.reduce((n, m) => n + m.bytes, 0);
	$('models').replaceChildren(element('p', {class: 'soft small-text'}, `${bytes(memory)} of memory` + (status.memory_budget ? ` of ${bytes(status.memory_budget)}` : '')),
		...status.models.map(modelState));
}

const rate = m => m.tokens_per_second === null ? '' : `${m.tokens_per_second.toFixed(m.tokens_per_second < 100 ? 1 : 0)} tok/s`;

function summary(m) {
	if (m.state !== 'ready' || !m.load) return states[m.state] || m.state;
	const parts = [`${m.load.running} running`];
	if (m.load.waiting + m.loaders) parts.push(`${m.load.waiting + m.loaders} waiting`);
	if (m.load.pages.used + m.load.pages.free + m.load.pages.cached) parts.push(`${m.load.pages.used} pages`);
	return [...parts, rate(m)].filter(p => p).join(' · ');
}

const states = {absent: 'not loaded', loading: 'loading', ready: 'ready', closing: 'closing'};

function modelState(m) {
	const rows = [['state', states[m.state] || m.state]];
	if (m.bytes) rows.push(['memory', bytes(m.bytes)]);
	if (m.loaders) rows.push(['wait for it', m.loaders]);
	if (m.load) rows.push(['running', m.load.running], ['waiting', m.load.waiting]);
	if (m.state === 'ready') rows.push(['speed', rate(m) || '–']);
	const list = element('dl', {}, ...rows.flatMap(([name, value]) => [element('dt', {}, name), element('dd', {}, String(value))]));
	const out = element('div', {class: 'model-state'}, element('h3', {}, element('bdi', {}, m.id)), list);
	const total = m.load ? m.load.pages.used + m.load.pages.free + m.load.pages.cached : 0;
	if (total) {
		const {used, cached, free} = m.load.pages, text = `pages: ${used} used, ${cached} cached, ${free} free`;
		const part = (name, n) => {
			const e = element('span', {class: name});
			e.style.width = (100 * n / total).toFixed(2) + '%';
			return e;
		};
		out.append(element('div', {class: 'pages', 'aria-hidden': 'true'}, part('used', used), part('cached', cached)), element('p', {class: 'soft small-text'}, text));
	}
	return out;
}

// Settings.

function settings() {
	try {
		return JSON.parse(kept('localStorage', settingsName) || '{}');
	} catch {
		return {};
	}
}

function storeSettings() {
	const s = {model: $('model').value};
	for (const name of [...numbers, ...texts]) s[name] = $(name).value;
	for (const name of checks) s[name] = $(name).checked;
	kept('localStorage', settingsName, JSON.stringify(s));
	document.body.classList.toggle('coloured', $('colour').checked);
}

function loadSettings() {
	const s = settings();
	for (const name of [...numbers, ...texts]) if (typeof s[name] === 'string') $(name).value = s[name];
	for (const name of checks) if (typeof s[name] === 'boolean') $(name).checked = s[name];
	document.body.classList.toggle('coloured', $('colour').checked);
}

// narrow reports whether the settings take the place of the conversation.
const narrow = () => matchMedia('(max-width: 56rem)').matches;

function showSettings(yes) {
	document.body.classList.toggle('with-settings', yes);
	$('toggle').setAttribute('aria-expanded', yes);
}

function grow() {
	const input = $('input');
	input.style.height = 'auto';
	input.style.height = Math.min(input.scrollHeight + 2, innerHeight / 3) + 'px';
}

function start() {
	$('key').append(keyForm(() => {
		$('key').querySelector('input').value = '';
		keyChanged();
		say('The key is used from now on.');
	}));
	loadSettings();
	restore();
	showSettings(!narrow());
	$('composer').addEventListener('submit', e => {
		e.preventDefault();
		const text = $('input').value;
		if (!text.trim() || state.running) return;
		$('input').value = '';
		grow();
		ask(text);
	});
	$('input').addEventListener('keydown', e => { if (e.key === 'Enter') sendByEnter(e, $('composer')); });
	$('input').addEventListener('input', grow);
	$('stop').addEventListener('click', () => {
		stop();
		$('input').focus();
	});
	document.addEventListener('keydown', e => {
		if (e.key !== 'Escape') return;
		if (!$('tip').hidden) tip.hide(true);
		else if (state.running) stop();
	});
	$('tip').addEventListener('pointerenter', () => clearTimeout(tip.timer));
	$('tip').addEventListener('pointerleave', () => tip.hide());
	scroller.start();
	$('messages').addEventListener('click', e => {
		if (e.target.matches('.copy-code')) copy(e.target.closest('.code').querySelector('pre').textContent);
	});
	$('new').addEventListener('click', () => {
		if (state.messages.length) cut(state.messages[0]);
		clearProblem();
		$('empty').hidden = false;
		if (narrow()) showSettings(false);
		$('input').focus();
	});
	$('save').addEventListener('click', save);
	$('toggle').addEventListener('click', () => showSettings($('toggle').getAttribute('aria-expanded') !== 'true'));
	$('options').addEventListener('submit', e => e.preventDefault());
	$('options').addEventListener('input', storeSettings);
	$('model').addEventListener('change', () => {
		storeSettings();
		poll.now();
	});
	document.addEventListener('visibilitychange', () => poll.now());
	loadModels().then(() => poll.now());
	$('input').focus();
}

start();
