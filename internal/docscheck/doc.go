// Package docscheck holds the documents to their form and to the code: prose of
// at most 100 columns, tables of at most eight, links and paths that exist,
// commands with the output that they have, snippets that compile. It has tests
// only, and it knows no package of the module.
package docscheck
