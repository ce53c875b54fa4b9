// Package pagetest tests the HTML pages in headless Chromium: what clicks and keys do, that a page
// sends no request but to its own server, that its layout is the expected one, and that axe-core
// finds no serious fault of accessibility, in light and dark. It is a module of its own, so that
// programs that import pianola do not depend on the driver of the browser. `make pages` runs it.
package pagetest
