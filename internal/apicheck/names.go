package apicheck

import (
	"fmt"
	"go/types"
	"slices"
	"strings"
)

// Names returns the exported names of a package in sorted order: package-level objects, and
// exported methods as Type.Method. Methods of interfaces and promoted methods of embedded
// fields count. The methods of an alias count only at its target's declaration.
func (p *Package) Names() []string {
	var names []string
	scope := p.Types.Scope()
	for _, name := range scope.Names() {
		o := scope.Lookup(name)
		if !o.Exported() {
			continue
		}
		names = append(names, name)
		if t, ok := o.(*types.TypeName); ok {
			for _, m := range methods(t.Type()) {
				names = append(names, name+"."+m.Name())
			}
		}
	}
	slices.Sort(names)
	return names
}

// methods returns the exported methods of a type and of a pointer to it.
func methods(t types.Type) (list []*types.Func) {
	set := types.NewMethodSet(t)
	if !types.IsInterface(t) {
		set = types.NewMethodSet(types.NewPointer(t))
	}
	for i := range set.Len() {
		if f, ok := set.At(i).Obj().(*types.Func); ok && f.Exported() {
			list = append(list, f)
		}
	}
	return list
}

// Leak is a type that the public API uses but no public package declares.
type Leak struct {
	Where string // the exported name that uses the type
	Type  string
}

// String returns the leak as one line.
func (l Leak) String() string { return fmt.Sprintf("%s uses %s, which is not public", l.Where, l.Type) }

// Leaks returns the types that exported names of the packages use although no public package
// exports them: unexported types and types of internal packages. It looks at signatures,
// exported fields, variables and constants. A public alias makes a type public.
func Leaks(all []*Package) []Leak {
	l := leaks{public: map[*types.TypeName]bool{}, seen: map[types.Type]bool{}}
	for _, p := range all {
		scope := p.Types.Scope()
		for _, name := range scope.Names() {
			if t, ok := scope.Lookup(name).(*types.TypeName); ok && t.Exported() {
				l.public[t] = true
				if named, ok := types.Unalias(t.Type()).(*types.Named); ok {
					l.public[named.Origin().Obj()] = true
				}
			}
		}
	}
	for _, p := range all {
		scope := p.Types.Scope()
		for _, name := range scope.Names() {
			if o := scope.Lookup(name); o.Exported() {
				l.object(p.Types.Name()+"."+name, o)
			}
		}
	}
	return l.found
}

type leaks struct {
	public map[*types.TypeName]bool
	seen   map[types.Type]bool
	found  []Leak
}

// object collects the leaks of one exported object.
func (l *leaks) object(where string, o types.Object) {
	t, ok := o.(*types.TypeName)
	if !ok {
		l.use(where, o.Type())
		return
	}
	if named, ok := types.Unalias(t.Type()).(*types.Named); ok {
		l.use(where, named.Underlying())
	} else {
		l.use(where, t.Type())
	}
	for _, m := range methods(t.Type()) {
		l.use(where+"."+m.Name(), m.Signature())
	}
}

// use collects the leaks of a type that the exported name where uses.
func (l *leaks) use(where string, t types.Type) {
	switch t := t.(type) {
	case *types.Alias:
		if !l.public[t.Obj()] {
			l.use(where, types.Unalias(t))
		}
	case *types.Named:
		l.named(where, t)
	case *types.Pointer:
		l.use(where, t.Elem())
	case *types.Slice:
		l.use(where, t.Elem())
	case *types.Array:
		l.use(where, t.Elem())
	case *types.Chan:
		l.use(where, t.Elem())
	case *types.Map:
		l.use(where, t.Key())
		l.use(where, t.Elem())
	case *types.Signature:
		for v := range t.Params().Variables() {
			l.use(where, v.Type())
		}
		for v := range t.Results().Variables() {
			l.use(where, v.Type())
		}
	case *types.Struct:
		for f := range t.Fields() {
			if f.Exported() {
				l.use(where+"."+f.Name(), f.Type())
			}
		}
	case *types.Interface:
		for m := range t.Methods() {
			if m.Exported() {
				l.use(where+"."+m.Name(), m.Signature())
			}
		}
	}
}

// named collects the leaks of a named type and of its type arguments.
func (l *leaks) named(where string, t *types.Named) {
	for i := range t.TypeArgs().Len() {
		l.use(where, t.TypeArgs().At(i))
	}
	o := t.Origin().Obj()
	if o.Pkg() == nil || l.public[o] || !strings.HasPrefix(o.Pkg().Path(), module) {
		return
	}
	l.found = append(l.found, Leak{where, o.Pkg().Path() + "." + o.Name()})
}

// module is the module's path.
const module = "github.com/pianola-engine/pianola"
