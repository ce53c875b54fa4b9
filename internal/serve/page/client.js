// The client of the service's API, for the pages. The API key stays in the tab's session storage.

const keyName = 'pianola.key';

// kept reads or writes a value of a storage, which a browser may refuse.
function kept(storage, name, value) {
	try {
		if (value === undefined) return window[storage].getItem(name);
		if (value === null) window[storage].removeItem(name);
		else window[storage].setItem(name, value);
	} catch {
		// Without a storage, nothing outlives the page.
	}
	return null;
}

// Failure is a request that the service has not served. Its status is 0 if no reply has come.
class Failure extends Error {
	constructor(status, message, wait) {
		super(message);
		this.status = status;
		this.wait = wait || 0;
	}
}

// inWords describes a status to people.
function inWords(status) {
	if (status === 401) return 'The service asks for an API key';
	if (status === 403) return 'The API key does not allow this';
	if (status === 404) return 'The service does not have this';
	if (status === 413) return 'The request is too long for the service';
	if (status === 429) return 'The service is busy';
	if (status === 503) return 'The service is not ready';
	if (status >= 500) return 'The service has failed';
	return 'The service refuses the request';
}

// sentence adds the API's error to a description.
function sentence(text, error) {
	let message = String(error && error.message || '').trim();
	if (message === '') return text + '.';
	if (error.param && !message.includes(error.param)) message = `${error.param}: ${message}`;
	return `${text}: ${message}${/[.!?]$/.test(message) ? '' : '.'}`;
}

// statuses are the statuses of errors that come in a stream, by their types.
const statuses = {invalid_request_error: 400, authentication_error: 401, permission_error: 403, rate_limit_error: 429};

// streamed returns the failure of an error in a stream. begun reports that a part of the answer has come.
function streamed(error, begun) {
	const status = statuses[error.type] || 500;
	return new Failure(status, sentence(begun ? 'The service has failed while it answered' : inWords(status), error));
}

// call sends a request and returns the reply, whose status is 2xx. An abort throws the signal's reason.
async function call(path, body, signal) {
	const headers = {};
	const key = kept('sessionStorage', keyName);
	if (key) headers.Authorization = 'Bearer ' + key;
	if (body) headers['Content-Type'] = 'application/json';
	let reply;
	try {
		reply = await fetch(path, {
			method: body ? 'POST' : 'GET', headers, signal, body: body ? JSON.stringify(body) : undefined,
			credentials: 'omit', cache: 'no-store', redirect: 'error',
		});
	} catch (e) {
		if (signal && signal.aborted) throw e;
		throw new Failure(0, 'The service does not answer. It may have ended, or the connection is lost.');
	}
	if (reply.ok) return reply;
	let error = null;
	try {
		error = JSON.parse(await reply.text()).error;
	} catch {
		// A reply that is not in the API's form has no text for people.
	}
	const wait = Number(reply.headers.get('Retry-After')) || 0;
	throw new Failure(reply.status, sentence(inWords(reply.status), error), wait);
}

// events returns the data of each server-sent event of a reply.
async function* events(reply) {
	const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
	let rest = '', data = [];
	try {
		for (;;) {
			let part;
			try {
				part = await reader.read();
			} catch (e) {
				if (e.name === 'AbortError') throw e;
				throw new Failure(0, 'The connection was lost. The answer is incomplete.');
			}
			if (part.done) return;
			const lines = (rest + part.value).split('\n');
			rest = lines.pop();
			for (const line of lines) {
				const l = line.endsWith('\r') ? line.slice(0, -1) : line;
				if (l === '' && data.length) {
					yield data.join('\n');
					data = [];
				} else if (l.startsWith('data:')) {
					data.push(l.slice(l[5] === ' ' ? 6 : 5));
				}
			}
		}
	} finally {
		reader.cancel().catch(() => {});
	}
}

// keyForm asks for the API key, and calls then when there is one.
function keyForm(then) {
	const id = 'key-' + ++keyForm.count;
	const input = element('input', {id, type: 'password', autocomplete: 'off', spellcheck: 'false', required: true});
	return element('form', {
		class: 'key-form',
		submit: e => {
			e.preventDefault();
			if (!input.value.trim()) return;
			kept('sessionStorage', keyName, input.value.trim());
			then();
		},
	}, element('label', {for: id}, 'API key'), input, element('button', {class: 'main'}, 'Use this key'));
}
keyForm.count = 0;
