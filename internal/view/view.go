// Package view makes the table viewer: an HTML page that shows the commands of a table in program
// order with their barriers and hazards, the slots and the liveness of scratch, measured times, and
// the differences between two tables. The page is self-contained. Its facts come from package
// table's JSON dump and Diff; this package and the page compute none about tables themselves.
package view

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"

	"github.com/pianola-engine/pianola/internal/webpage"
	"github.com/pianola-engine/pianola/table"
)

//go:embed view.html
var body string

//go:embed view.css
var style string

//go:embed view.js
var script string

//go:embed chart.js
var chart string

// Source is a table to show.
type Source struct {
	Name  string // shown as the table's name, such as the file that it came from
	Table *table.Table
	Times *Times // nil if there are no measurements
}

// document is the data of the page.
type document struct {
	Tables []shownTable `json:"tables"`
	// Pairs lists for each program name the commands of both tables side by side, as their indices:
	// -1 where a table has no such command. It is missing for one table.
	Pairs       map[string][][2]int `json:"pairs,omitempty"`
	Differences []difference        `json:"differences"`
}

type shownTable struct {
	Name  string          `json:"name"`
	Dump  json.RawMessage `json:"dump"`
	Times *Times          `json:"times,omitempty"`
}

type difference struct {
	Where   string   `json:"where"`
	Kind    string   `json:"kind"`
	Cmds    [2]int   `json:"commands"` // -1 in a table without the command
	Changes []change `json:"changes"`
}

type change struct {
	Field string `json:"field"`
	A     string `json:"a"`
	B     string `json:"b"`
}

// Page returns the page of one table, or of two tables side by side.
func Page(sources ...Source) (*webpage.Document, error) {
	doc, err := newDocument(sources)
	if err != nil {
		return nil, err
	}
	title := sources[0].Name
	if len(sources) == 2 {
		title += " and " + sources[1].Name
	}
	p := webpage.Page{Title: title + " – Pianola table viewer", Body: body, Style: style, Script: chart + script, Data: doc}
	return p.Assemble()
}

// Data returns the document of Page as JSON.
func Data(sources ...Source) ([]byte, error) {
	doc, err := newDocument(sources)
	if err != nil {
		return nil, err
	}
	return json.Marshal(doc)
}

// Shell returns the page without a table, for a server whose tables change. The page has the markup
// before in front of it and the style extra, and runs load, which calls show with the value of Data
// as an object. All three are trusted, as the fields of webpage.Page are.
func Shell(before, extra, load string) (*webpage.Document, error) {
	p := webpage.Page{
		Title: "Pianola table viewer", Body: before + "<div id=\"viewer\" hidden>\n" + body + "</div>\n",
		Style: style + extra, Script: chart + script + load, Calls: true,
	}
	return p.Assemble()
}

func newDocument(sources []Source) (*document, error) {
	if len(sources) < 1 || len(sources) > 2 {
		return nil, fmt.Errorf("view: %d tables, want 1 or 2", len(sources))
	}
	doc := &document{Differences: []difference{}}
	for _, s := range sources {
		var dump bytes.Buffer
		if err := s.Table.DumpJSON(&dump, table.DumpOptions{}); err != nil {
			return nil, fmt.Errorf("view: %s: %w", s.Name, err)
		}
		doc.Tables = append(doc.Tables, shownTable{s.Name, dump.Bytes(), s.Times})
	}
	if len(sources) == 2 {
		a, b := sources[0].Table, sources[1].Table
		doc.Pairs = pair(a, b)
		for _, d := range table.Diff(a, b) {
			shown := difference{d.Where, d.Kind.String(), [2]int{d.CmdA, d.CmdB}, make([]change, len(d.What))}
			for i, c := range d.What {
				shown.Changes[i] = change(c)
			}
			doc.Differences = append(doc.Differences, shown)
		}
	}
	return doc, nil
}
