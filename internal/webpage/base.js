'use strict';
const $ = id => document.getElementById(id);

// Elements are made from text nodes and attributes only: no text becomes markup.

function element(name, attributes, ...children) {
	return fill(document.createElement(name), attributes, children);
}

function shape(name, attributes, ...children) {
	return fill(document.createElementNS('http://www.w3.org/2000/svg', name), attributes, children);
}

function fill(e, attributes, children) {
	for (const [name, value] of Object.entries(attributes || {})) {
		if (typeof value === 'function') e.addEventListener(name, value);
		else if (value !== false && value !== null && value !== undefined) e.setAttribute(name, value === true ? '' : value);
	}
	for (const c of children) if (c !== null && c !== undefined) e.append(c);
	return e;
}

function bytes(n) {
	if (n < 1024) return n + ' B';
	for (const unit of ['KiB', 'MiB', 'GiB']) {
		n /= 1024;
		if (n < 999.5) return n.toPrecision(3) + ' ' + unit;
	}
	return (n / 1024).toPrecision(3) + ' TiB';
}
