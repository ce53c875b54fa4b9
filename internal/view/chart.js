// colour returns the class of a kernel's colour, the same in every table.
function colour(kernel) {
	let h = 0;
	for (const c of kernel) h = (h * 31 + c.codePointAt(0)) >>> 0;
	return 'k' + h % 8;
}

// stagesOf splits commands in program order at their barriers.
function stagesOf(commands) {
	const stages = [];
	for (const c of commands) {
		if (c.barrier || stages.length === 0) stages.push([]);
		stages[stages.length - 1].push(c);
	}
	return stages;
}

const left = 70, boxHeight = 18, mapHeight = 150;

// Chart draws the timeline of one program of a table, and below it the scratch memory.
class Chart {
	constructor(table, program, commands, times, scaled, differs, select) {
		this.boxes = new Map();
		this.regions = [];
		this.commands = commands;
		this.place(stagesOf(commands), times, scaled);
		const live = table.regions.filter(r => r.program === program && this.x.has(r.first));
		const top = 20 + this.depth * boxHeight, height = top + (live.length ? mapHeight + 34 : 10);
		this.svg = shape('svg', {
			width: this.width + 10, height, role: 'img',
			'aria-label': `Program ${program} of ${table.name}: ${commands.length} commands in ${this.stages} stages, ${live.length} regions of scratch memory`,
		});
		this.svg.append(shape('text', {x: 4, y: 14}, 'commands'));
		for (const c of commands) this.box(c, differs(c), select);
		if (live.length) this.map(live, top + 14);
		this.lines = shape('g');
		this.svg.append(this.lines);
	}

	// place sets the position and the width of each command.
	place(stages, times, scaled) {
		this.x = new Map();
		this.stages = stages.length;
		this.depth = Math.max(1, ...stages.map(s => s.length));
		const time = s => Math.max(0, ...s.map(c => times.get(c.index) || 0));
		const total = stages.reduce((sum, s) => sum + time(s), 0);
		let x = left;
		for (const s of stages) {
			const width = scaled && total > 0 ? Math.max(5, time(s) / total * 12 * stages.length) : 14;
			s.forEach((c, row) => this.x.set(c.index, {x, width, y: 20 + row * boxHeight}));
			x += width + 3;
		}
		this.width = x;
	}

	box(c, differs, select) {
		const at = this.x.get(c.index);
		const rect = shape('rect', {
			x: at.x, y: at.y - 10, width: at.width, height: boxHeight - 4, rx: 2, click: () => select(c.index),
			class: 'cmd ' + colour(c.kernel) + (c.patch === 'none' ? '' : ' patched') + (differs ? ' differs' : ''),
		}, shape('title', {}, `${c.index} ${c.label}: ${c.kernel}`));
		this.boxes.set(c.index, rect);
		this.svg.append(rect);
	}

	// map draws each region from its first to its last command.
	map(live, top) {
		const end = Math.max(...live.map(r => r.offset + r.size));
		this.svg.append(shape('text', {x: 4, y: top + 10}, 'scratch'), shape('text', {x: 4, y: top + 26}, bytes(end)));
		for (const r of live) {
			const from = this.x.get(r.first), to = this.x.get(Math.min(r.last, this.commands[this.commands.length - 1].index)) || from;
			const rect = shape('rect', {
				class: 'region', x: from.x, width: Math.max(2, to.x + to.width - from.x),
				y: top + r.offset / end * mapHeight, height: Math.max(2, r.size / end * mapHeight),
			}, shape('title', {}, `${r.name}: ${r.slot}+${r.offset}, ${bytes(r.size)}, commands ${r.first} to ${r.last}`));
			this.regions.push({region: r, rect});
			this.svg.append(rect);
		}
	}

	// mark highlights a command, what it waits for, and the regions that it reads and writes.
	mark(c) {
		for (const [index, rect] of this.boxes) rect.classList.toggle('selected', c !== null && index === c.index);
		for (const {region, rect} of this.regions) {
			const used = c === null ? [] : c.bindings.filter(b => c.index >= region.first && c.index <= region.last && b.slot === region.slot &&
				b.offset < region.offset + region.size && region.offset < b.offset + (b.extent || 1));
			rect.classList.toggle('written', used.some(b => b.role.includes('w')));
			rect.classList.toggle('read', used.some(b => b.role === 'r'));
		}
		this.lines.replaceChildren();
		const to = c && this.x.get(c.index);
		for (const index of c ? new Set(c.waits.map(w => w.command)) : []) {
			const from = this.x.get(index);
			if (!from) continue;
			const a = from.x + from.width / 2, b = to.x + to.width / 2;
			this.lines.append(shape('path', {class: 'hazard', d: `M ${a} ${from.y + 4} Q ${(a + b) / 2} ${Math.max(from.y, to.y) + 22} ${b} ${to.y + 4}`}));
		}
	}

	dim(shown) {
		for (const [index, rect] of this.boxes) rect.classList.toggle('dim', !shown.has(index));
	}
}
