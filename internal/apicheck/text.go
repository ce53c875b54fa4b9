package apicheck

import (
	"fmt"
	"go/types"
	"slices"
	"strings"
)

// Text returns the exported API of a package, one line for each name, field and method, sorted
// as Names sorts them, so that a diff of two texts shows what changed.
func (p *Package) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "package %s // %s\n", p.Types.Name(), p.Path)
	scope := p.Types.Scope()
	for _, name := range scope.Names() {
		if o := scope.Lookup(name); o.Exported() {
			p.object(&b, o)
		}
	}
	return b.String()
}

// qualify returns the package name that precedes a type of another package.
func (p *Package) qualify(other *types.Package) string {
	if other == p.Types {
		return ""
	}
	return other.Name()
}

func (p *Package) object(b *strings.Builder, o types.Object) {
	fmt.Fprintln(b)
	switch o := o.(type) {
	case *types.Const:
		fmt.Fprintf(b, "const %s %s = %s\n", o.Name(), types.TypeString(o.Type(), p.qualify), o.Val())
	case *types.TypeName:
		p.typ(b, o)
	default:
		fmt.Fprintln(b, types.ObjectString(o, p.qualify))
	}
}

// typ writes a type with its exported fields and methods.
func (p *Package) typ(b *strings.Builder, o *types.TypeName) {
	under := o.Type().Underlying()
	head := "type " + o.Name()
	if o.IsAlias() {
		head += " = " + types.TypeString(types.Unalias(o.Type()), p.qualify)
	}
	switch under := under.(type) {
	case *types.Struct:
		fmt.Fprintf(b, "%s struct\n", head)
		for f := range under.Fields() {
			if !f.Exported() {
				continue
			}
			name := "field " + f.Name()
			if f.Embedded() {
				name = "embedded"
			}
			fmt.Fprintf(b, "\t%s %s\n", name, types.TypeString(f.Type(), p.qualify))
		}
	case *types.Interface:
		fmt.Fprintf(b, "%s interface\n", head)
	default:
		if o.IsAlias() {
			fmt.Fprintln(b, head)
		} else {
			fmt.Fprintf(b, "%s %s\n", head, types.TypeString(under, p.qualify))
		}
	}
	list := methods(o.Type())
	slices.SortFunc(list, func(a, b *types.Func) int { return strings.Compare(a.Name(), b.Name()) })
	for _, m := range list {
		signature := types.TypeString(m.Signature(), p.qualify)
		fmt.Fprintf(b, "\tmethod %s%s\n", m.Name(), strings.TrimPrefix(signature, "func"))
	}
}

// File returns the path, relative to api, of the file that holds the package's text.
func (p *Package) File() string {
	if p.Name == "" {
		return "pianola.txt"
	}
	return strings.ReplaceAll(p.Name, "/", "_") + ".txt"
}
