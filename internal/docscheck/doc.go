// Package docscheck checks the documents: prose has at most 100 columns and tables have at
// most eight, links and paths exist, commands print the output that is shown, and programs
// compile. The package contains only tests and imports no other package of the module.
package docscheck
