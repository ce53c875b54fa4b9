// data is the document of the page: one table or two, with their differences.
let data, two, tables;
const letters = ['A', 'B'];

const view = {rows: [], charts: [], selected: null};

// show takes the document and shows it.
function show(d) {
	data = d;
	two = data.tables.length === 2;
	tables = data.tables.map(t => {
		const d = t.dump;
		return {
			name: t.name, header: d.header, slots: d.slots || [], programs: d.programs, commands: d.commands, regions: d.regions || [],
			times: t.times || null, us: new Map((t.times ? t.times.commands : []).map(c => [c.command, c.us])),
			differences: new Map(),
		};
	});
	for (const d of data.differences) {
		tables.forEach((t, i) => { if (d.commands[i] >= 0) t.differences.set(d.commands[i], d); });
	}
	start();
}

function programNames() {
	return two ? Object.keys(data.pairs).sort((a, b) => order(a) - order(b)) : tables[0].programs.map(p => p.name);
}

// order is the place of a program: that in the first table, then that in the second one.
function order(name) {
	const i = tables[0].programs.findIndex(p => p.name === name);
	return i >= 0 ? i : 1e6 + tables[tables.length - 1].programs.findIndex(p => p.name === name);
}

function commandsOf(table, name) {
	const p = table.programs.find(p => p.name === name);
	return p ? table.commands.slice(p.first, p.first + p.count) : [];
}

// rowsOf returns the rows of a program, each with a command or null for each table.
function rowsOf(name) {
	if (!two) return commandsOf(tables[0], name).map(c => [c]);
	return (data.pairs[name] || []).map(pair => pair.map((index, i) => index < 0 ? null : tables[i].commands[index]));
}

const marks = {'only in A': ['−', 'drop'], 'only in B': ['+', 'add'], 'changed': ['~', 'change'], 'moved': ['>', 'move']};

function differenceOf(row) {
	for (let i = 0; i < row.length; i++) {
		if (row[i] && tables[i].differences.has(row[i].index)) return tables[i].differences.get(row[i].index);
	}
	return null;
}

function start() {
	$('title').textContent = 'Table ' + tables.map(t => t.name).join('  ↔  ');
	$('about').textContent = tables.map((t, i) => {
		const h = t.header, times = t.times ? `, measured: ${t.times.total_us.toFixed(1)} µs ${t.times.prompt ? 'per prompt' : 'per token'}` : '';
		return (two ? letters[i] + ': ' : '') + `${h.arch}, ${h.model}, chip ${h.chip} (${h.device}), context ${h.context}, ${h.arithmetic}` + times;
	}).join(' · ');
	for (const name of programNames()) {
		const counts = tables.map(t => commandsOf(t, name).length);
		$('program').append(element('option', {value: name}, `${name} (${counts.join(' / ')})`));
	}
	$('changed-label').hidden = !two;
	$('scaled-label').hidden = !tables.some(t => t.us.size);
	$('tools').addEventListener('submit', e => e.preventDefault());
	$('program').addEventListener('change', showProgram);
	$('scaled').addEventListener('change', showCharts);
	for (const id of ['filter', 'patched', 'changed']) $(id).addEventListener('input', applyFilter);
	showProgram();
	showSlots();
	showDifferences();
	const [program, index] = decodeURIComponent(location.hash.slice(1)).split('/');
	if (programNames().includes(program)) {
		$('program').value = program;
		showProgram();
		selectCommand(0, Number(index));
	}
}

function showProgram() {
	const name = $('program').value;
	view.selected = null;
	view.rows = rowsOf(name).map((cmds, i) => ({cmds, i, difference: two ? differenceOf(cmds) : null}));
	showCommands();
	showCharts();
}

function showCharts() {
	const name = $('program').value;
	view.charts = tables.map((t, i) => {
		const commands = commandsOf(t, name);
		return commands.length ? new Chart(t, name, commands, t.us, $('scaled').checked, c => two && t.differences.has(c.index), index => selectCommand(i, index)) : null;
	});
	$('charts').replaceChildren(...view.charts.filter(c => c).map(c => c.svg));
	applyFilter();
	if (view.selected !== null) markCharts(view.rows[view.selected]);
}

function showCommands() {
	const timed = tables.some(t => t.us.size);
	const heads = [];
	tables.forEach((t, i) => {
		const of = two ? ' ' + letters[i] : '';
		heads.push(['#' + of, 'number'], ['Label' + of], ['Kernel' + of], ['Patch' + of]);
		if (t.us.size) heads.push(['µs' + of, 'number'], ['Share' + of]);
	});
	if (two) heads.unshift(['Diff']);
	const body = element('tbody', {});
	const most = Math.max(1e-9, ...tables.flatMap(t => [...t.us.values()]));
	for (const r of view.rows) {
		r.element = commandRow(r, most);
		body.append(r.element);
	}
	const grid = element('table', {role: 'grid', 'aria-labelledby': 'commands-title', 'aria-rowcount': view.rows.length + 1, keydown: moveByKey},
		element('thead', {}, element('tr', {}, ...heads.map(([text, cls]) => element('th', {scope: 'col', class: cls}, text)))), body);
	grid.dataset.timed = timed;
	$('commands').replaceChildren(grid);
	if (view.rows.length) view.rows[0].element.tabIndex = 0;
	$('details').replaceChildren(element('p', {class: 'soft'}, 'Select a command.'));
}

function commandRow(r, most) {
	const cells = [];
	const mark = r.difference ? marks[r.difference.kind] : ['', ''];
	if (two) cells.push(element('td', {}, mark[0], mark[0] ? element('span', {class: 'hidden-text'}, r.difference.kind) : null));
	r.cmds.forEach((c, i) => cells.push(...commandCells(c, tables[i], most)));
	const barrier = r.cmds.some(c => c && c.barrier);
	return element('tr', {
		role: 'row', tabindex: -1, 'aria-selected': 'false', 'aria-rowindex': r.i + 2, 'data-row': r.i,
		class: [mark[1], barrier ? 'barrier' : ''].join(' ').trim() || null,
		click: () => select(r.i, false), focus: () => { if (view.selected !== r.i) select(r.i, false); },
	}, ...cells);
}

function commandCells(c, table, most) {
	const columns = table.us.size ? 6 : 4;
	if (!c) return Array.from({length: columns}, () => element('td', {}));
	const label = element('td', {class: 'label mono'}, c.label);
	if (c.barrier) label.append(element('span', {class: 'hidden-text'}, ', after a barrier'));
	if (!c.barrier && c.waits.length) label.append(' ', element('span', {class: 'badge missing'}, 'barrier missing'));
	const cells = [
		element('td', {class: 'number'}, String(c.index)), label, element('td', {class: 'mono'}, c.kernel),
		element('td', {}, c.patch === 'none' ? '' : element('span', {class: 'badge patch'}, c.patch)),
	];
	if (columns === 6) {
		const us = table.us.get(c.index);
		cells.push(element('td', {class: 'number'}, us === undefined ? '' : us.toFixed(2)));
		cells.push(element('td', {class: 'bar'}, us === undefined ? '' : shape('svg', {class: 'meter', width: '100%', 'aria-hidden': 'true'},
			shape('rect', {width: (us / most * 100).toFixed(1) + '%', height: '100%'}))));
	}
	return cells;
}

function applyFilter() {
	const text = $('filter').value.trim().toLowerCase(), patched = $('patched').checked, changed = $('changed').checked;
	const shown = tables.map(() => new Set());
	let count = 0;
	for (const r of view.rows) {
		const show = r.cmds.some(c => c && (c.label.toLowerCase().includes(text) || c.kernel.toLowerCase().includes(text)) && (!patched || c.patch !== 'none')) &&
			(!changed || r.difference !== null);
		r.element.hidden = !show;
		if (!show) continue;
		count++;
		r.cmds.forEach((c, i) => { if (c) shown[i].add(c.index); });
	}
	view.charts.forEach((chart, i) => { if (chart) chart.dim(shown[i]); });
	$('count').textContent = `${count} of ${view.rows.length} commands`;
	const current = view.rows[view.selected ?? 0];
	const reachable = current && !current.element.hidden ? current : view.rows.find(r => !r.element.hidden);
	for (const r of view.rows) r.element.tabIndex = r === reachable ? 0 : -1;
}

function moveByKey(e) {
	const visible = view.rows.filter(r => !r.element.hidden);
	const at = visible.findIndex(r => r.element === document.activeElement);
	const to = {ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: visible.length - 1, PageDown: at + 20, PageUp: at - 20}[e.key];
	if (to === undefined || at < 0 || e.ctrlKey || e.altKey || e.metaKey) return;
	e.preventDefault();
	select(visible[Math.min(Math.max(to, 0), visible.length - 1)].i, true);
}

function selectCommand(table, index) {
	const r = view.rows.find(r => r.cmds[table] && r.cmds[table].index === index);
	if (r) select(r.i, true);
}

function select(i, focus) {
	const before = view.selected === null ? null : view.rows[view.selected];
	const r = view.rows[i];
	for (const x of view.rows) x.element.tabIndex = -1;
	if (before) before.element.setAttribute('aria-selected', 'false');
	view.selected = i;
	r.element.setAttribute('aria-selected', 'true');
	r.element.tabIndex = 0;
	if (focus) {
		r.element.focus({preventScroll: true});
		r.element.scrollIntoView({block: 'nearest'});
	}
	markCharts(r);
	showDetails(r);
}

function markCharts(r) {
	view.charts.forEach((chart, i) => { if (chart) chart.mark(r.cmds[i]); });
}

function list(entries) {
	return element('dl', {}, ...entries.flatMap(([name, value]) => [element('dt', {}, name), element('dd', {class: 'mono'}, value)]));
}

function showDetails(r) {
	const parts = [];
	if (r.difference) {
		parts.push(element('h2', {}, 'Difference: ' + r.difference.kind));
		parts.push(list(r.difference.changes.map(c => [c.field, `${c.a || '–'} → ${c.b || '–'}`])));
	}
	r.cmds.forEach((c, i) => { if (c) parts.push(...commandDetails(c, tables[i], two ? letters[i] + ': ' : '')); });
	$('details').replaceChildren(...parts);
}

function commandDetails(c, table, prefix) {
	const at = b => b.slot + (b.region ? ':' + b.region : '') + (b.offset ? ` +${b.offset}` : '');
	const values = o => Object.entries(o).map(([name, value]) => [name, String(value)]);
	const roles = {r: 'reads', w: 'writes', rw: 'updates'};
	const parts = [element('h2', {}, `${prefix}${c.index} ${c.label}`), list([
		['kernel', c.kernel], ['grid', c.grid.join(' × ')], ['threadgroup', c.threadgroup.join(' × ')],
		['threadgroup memory', bytes(c.threadgroup_memory)],
		['patch', c.patch_fields.length ? `${c.patch}: writes ${c.patch_fields.join(', ')}` : c.patch],
		...(table.us.has(c.index) ? [['time', table.us.get(c.index).toFixed(2) + ' µs']] : []),
	])];
	parts.push(element('h3', {}, 'Bindings'), list(c.bindings.map(b => [`${b.name} (${roles[b.role] || b.role})`, at(b) + (b.extent === null ? '' : `, ${bytes(b.extent)}`)])));
	parts.push(element('h3', {}, c.barrier ? 'Barrier: waits for' : c.waits.length ? 'No barrier, but conflicts with' : 'No barrier'));
	if (c.waits.length) {
		parts.push(element('ul', {}, ...c.waits.map(w => {
			const other = table.commands[w.command];
			return element('li', {}, element('span', {class: 'mono'}, `${w.command} ${other.program}: ${other.label}`), ` – ${w.kind} of ${w.slot} +${w.offset}, ${bytes(w.size)}`);
		})));
	}
	for (const [title, o] of [['Constants', c.constants], ['Parameters', c.params], ['Secondary fields', c.second]]) {
		if (Object.keys(o).length) parts.push(element('h3', {}, title), list(values(o)));
	}
	return parts;
}

function showSlots() {
	for (const [i, t] of tables.entries()) {
		const uses = new Map();
		for (const c of t.commands) for (const slot of new Set(c.bindings.map(b => b.slot))) {
			const u = uses.get(slot) || {count: 0, first: c.index};
			uses.set(slot, {count: u.count + 1, first: u.first, last: c.index});
		}
		const rows = t.slots.map(s => {
			const u = uses.get(s.name);
			return element('tr', {}, element('td', {class: 'number'}, String(s.index)), element('td', {class: 'mono label'}, s.name), element('td', {}, s.kind), element('td', {}, s.scope),
				element('td', {class: 'number'}, bytes(s.size)), element('td', {}, u ? `${u.count} (${u.first} to ${u.last})` : 'none'));
		});
		const heads = ['#', 'Slot', 'Kind', 'Scope', 'Size', 'Commands'].map((h, j) => element('th', {scope: 'col', class: j % 4 ? null : 'number'}, h));
		$('slots').append(element('details', {}, element('summary', {}, `${two ? letters[i] + ': ' : ''}${t.slots.length} slots, ${bytes(t.slots.reduce((n, s) => n + s.size, 0))}`),
			element('table', {}, element('thead', {}, element('tr', {}, ...heads)), element('tbody', {}, ...rows))));
	}
}

function showDifferences() {
	$('differences-part').hidden = !two;
	if (!two) return;
	const rows = data.differences.map(d => element('tr', {class: marks[d.kind][1]}, element('td', {}, d.kind), element('td', {class: 'mono label'}, d.where),
		element('td', {class: 'mono label'}, d.changes.map(c => `${c.field}: ${c.a || '–'} → ${c.b || '–'}`).join('; '))));
	if (!rows.length) {
		$('differences').replaceChildren(element('p', {}, 'The tables are equal.'));
		return;
	}
	const heads = ['Kind', 'Where', 'Values'].map(h => element('th', {scope: 'col'}, h));
	$('differences').replaceChildren(element('table', {}, element('thead', {}, element('tr', {}, ...heads)), element('tbody', {}, ...rows)));
}

if ($('data')) show(JSON.parse($('data').textContent));
