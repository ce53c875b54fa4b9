// Package fields reads requests in JSON by tables of their fields. The tables say which fields the
// service supports, which it ignores because they do not change the output, and which it refuses.
// Documents list the same tables.
//
// The package knows no protocol and no HTTP.
package fields

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Field is a field of an object.
type Field[T any] struct {
	Name string
	// Read sets the field. It is not called for null. A field without Read is ignored, or refused if
	// Refused is not "".
	Read func(into *T, v Value) error
	// Refused is the reason for which the field is refused unless it is null, as a clause.
	Refused string
	// Doc describes the supported values, or the reason for which the field is ignored.
	Doc string
}

// Support returns "supported", "ignored" or "refused".
func (f *Field[T]) Support() string {
	switch {
	case f.Refused != "":
		return "refused"
	case f.Read == nil:
		return "ignored"
	}
	return "supported"
}

// Read reads an object by its table. A field that the table lacks is an error unless it is null. The
// fields are read in the order of the table.
func Read[T any](v Value, table []Field[T], into *T) error {
	members, err := v.Members()
	if err != nil {
		return err
	}
	for i := range table {
		f := &table[i]
		member, ok := members[f.Name]
		delete(members, f.Name)
		switch {
		case !ok || member.Null():
		case f.Refused != "":
			return member.Errorf("%s is not supported: %s", f.Name, f.Refused)
		case f.Read != nil:
			if err := f.Read(into, member); err != nil {
				return err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if !members[name].Null() {
			return &Error{members[name].Path, fmt.Sprintf("the field %.80q is not known", name)}
		}
	}
	return nil
}

// Table is a table of fields for documents.
type Table struct {
	Title string
	Rows  []Row
}

// Row is a field of a Table.
type Row struct{ Name, Support, Note string }

// Describe returns the table of an object's fields. The title says which object it is.
func Describe[T any](title string, table []Field[T]) Table {
	t := Table{Title: title}
	for i := range table {
		f := &table[i]
		note := f.Doc
		if f.Refused != "" {
			note = f.Refused
		}
		t.Rows = append(t.Rows, Row{f.Name, f.Support(), note})
	}
	return t
}

// Markdown returns tables as a part of a document. Fields with the same support and note share a row.
func Markdown(tables []Table) string {
	var b strings.Builder
	for _, t := range tables {
		fmt.Fprintf(&b, "### %s\n\n| field | | values, or the reason |\n|---|---|---|\n", t.Title)
		for _, support := range []string{"supported", "ignored", "refused"} {
			at := map[string]int{} // of notes in rows
			var rows []Row
			for _, r := range t.Rows {
				r.Name = "`" + r.Name + "`"
				if i, ok := at[r.Note]; ok && r.Support == support && support != "supported" {
					rows[i].Name += ", " + r.Name
				} else if r.Support == support {
					at[r.Note] = len(rows)
					rows = append(rows, r)
				}
			}
			for _, r := range rows {
				fmt.Fprintf(&b, "| %s | %s | %s |\n", r.Name, r.Support, r.Note)
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}
