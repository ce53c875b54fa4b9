package decl

// Helpers declares kernels that devices launch in addition to a table's commands. They have no id,
// because no command of a table refers to them.
var Helpers = []Kernel{
	{
		Name: "patch",
		Doc:  "Writes the patched secondary fields of a program's commands from the step record.",
		Grid: [3]string{"1", "1", "1"},
		Bindings: []Binding{
			{Name: "patches", Role: Read, Shape: "[patches]", Elem: Record, Doc: "pianola_patch"},
			{Name: "seconds", Role: ReadWrite, Shape: "[commands]", Elem: Record, Doc: "pianola_second"},
		},
		TGMem: "4",
	},
}

// Declared returns the declaration of a kernel or of a helper.
func Declared(name string) (*Kernel, bool) {
	for _, list := range [][]Kernel{Kernels, Helpers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i], true
			}
		}
	}
	return nil, false
}

// Of returns the declaration of a kernel or of a helper, or nil if there is none. Every kernel of
// the manifest in shaders has one.
func Of(name string) *Kernel {
	k, _ := Declared(name)
	return k
}
