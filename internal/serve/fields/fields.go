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
