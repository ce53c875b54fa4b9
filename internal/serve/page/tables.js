// The table viewer in the service: the list of the loaded models, or the tables of one or two of them.

const address = id => '/view/' + id.split('/').map(encodeURIComponent).join('/');

function report(e, again) {
	$('models').replaceChildren(element('p', {role: 'alert'}, e.message), ...(e.status === 401 ? [keyForm(again)] : []));
	if (e.status === 401) $('models').querySelector('input').focus();
}

async function showList() {
	const status = await (await call('/status')).json();
	const loaded = status.models.filter(m => m.state === 'ready').map(m => m.id);
	if (!loaded.length) {
		$('models').replaceChildren(element('p', {}, 'No model is loaded. A model is loaded when it gets its first request.'));
		return;
	}
	const choice = label => element('select', {'aria-label': label}, ...loaded.map(id => element('option', {value: id}, id)));
	const a = choice('Table A'), b = choice('Table B');
	b.selectedIndex = loaded.length - 1;
	const compare = element('form', {
		submit: e => {
			e.preventDefault();
			location.href = address(a.value) + '?other=' + encodeURIComponent(b.value);
		},
	}, a, ' and ', b, ' ', element('button', {}, 'Compare'));
	$('models').replaceChildren(
		element('h1', {}, 'Dispatch tables of the loaded models'),
		element('ul', {}, ...loaded.map(id => element('li', {}, element('a', {href: address(id)}, element('bdi', {}, id))))),
		...(loaded.length > 1 ? [compare] : []));
}

async function showTables(path) {
	const data = await (await call('/table/' + path + location.search)).json();
	$('models').replaceChildren(element('a', {href: '/view/'}, 'All tables'));
	document.title = data.tables.map(t => t.name).join(' and ') + ' – ' + document.title;
	$('viewer').hidden = false;
	show(data);
}

async function load() {
	const path = location.pathname.slice('/view/'.length);
	try {
		await (path === '' ? showList() : showTables(path));
	} catch (e) {
		report(e, load);
	}
}

load();
