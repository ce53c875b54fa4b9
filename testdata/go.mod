// This module keeps the test data out of the module that importers download.
module github.com/pianola-engine/pianola/testdata

go 1.26.0
