package table

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/dtype"
)

// DumpJSON writes the content of Dump as one JSON object on one line. The options restrict the
// commands as in Dump. If they do, header, slots, uploads and regions are left out.
func (t *Table) DumpJSON(w io.Writer, o DumpOptions) error {
	d, err := newDumper(t, o)
	if err != nil {
		return err
	}
	out := tableView{Programs: []programView{}, Commands: []cmdView{}}
	if !o.restricted() {
		h := t.viewHeader()
		out.Header = &h
		for i := range t.Slots {
			out.Slots = append(out.Slots, t.viewSlot(i))
		}
		for i := range t.Uploads {
			out.Uploads = append(out.Uploads, t.viewUpload(i))
		}
		for i := range t.Regions {
			out.Regions = append(out.Regions, t.viewRegion(i))
		}
	}
	shown := map[int]bool{}
	waits := t.waits()
	d.each(func(c *cmdView, program int, _ string) error {
		if c.Waits = []waitView{}; waits != nil {
			c.Waits = t.viewWaits(waits[c.Index])
		}
		out.Commands = append(out.Commands, *c)
		shown[program] = true
		return nil
	})
	for i := range t.Programs {
		if shown[i] || !o.restricted() {
			p := &t.Programs[i]
			out.Programs = append(out.Programs, programView{p.Name, p.First, p.Count, p.MaxRows, p.Flags.Names()})
		}
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(&out)
}

// The views hold the content of a dump, with indices resolved to names. The text dump prints
// them, DumpJSON marshals them and Diff compares them, so that all three agree.

type tableView struct {
	Header   *headerView   `json:"header,omitempty"`
	Slots    []slotView    `json:"slots,omitempty"`
	Programs []programView `json:"programs"`
	Uploads  []uploadView  `json:"uploads,omitempty"`
	Regions  []regionView  `json:"regions,omitempty"`
	Commands []cmdView     `json:"commands"`
}

type headerView struct {
	Arch       string `json:"arch"`
	Model      string `json:"model"`
	Chip       string `json:"chip"`
	Device     string `json:"device"`
	Vocab      uint32 `json:"vocab"`
	Width      uint32 `json:"width"`
	Layers     uint32 `json:"layers"`
	Context    uint32 `json:"context"`
	Chunk      uint32 `json:"chunk"`
	LogitsRows uint32 `json:"logits_rows"`
	MaxStops   uint32 `json:"max_stops"`
	Options    string `json:"options"`
	Arithmetic string `json:"arithmetic"`
	ModelFP    string `json:"model_fingerprint"`
	ChipFP     string `json:"chip_fingerprint"`
	Constants  int    `json:"constant_bytes"`
}

type slotView struct {
	Index int    `json:"index"`
	Name  string `json:"name"`
	Kind  string `json:"kind"`
	Scope string `json:"scope"`
	Size  uint64 `json:"size"`
}

type programView struct {
	Name    string `json:"name"`
	First   uint32 `json:"first"`
	Count   uint32 `json:"count"`
	MaxRows uint32 `json:"max_rows"`

	Flags []string `json:"flags"`
}

type uploadView struct {
	Index     int    `json:"index"`
	Op        string `json:"op"`
	Type      string `json:"type"`
	Tensor    string `json:"tensor,omitempty"`
	Cols      uint32 `json:"columns,omitempty"`
	Step      uint8  `json:"step,omitempty"`
	Phase     uint8  `json:"phase,omitempty"`
	SrcOffset uint64 `json:"source_offset"`
	SrcSize   uint64 `json:"source_size"`
	Slot      string `json:"slot"`
	DstOffset uint64 `json:"offset"`
	DstSize   uint64 `json:"size"` // 0 if the source's size is not a multiple of its element's
}

type regionView struct {
	Name    string `json:"name"`
	Slot    string `json:"slot"`
	Offset  uint64 `json:"offset"`
	Size    uint64 `json:"size"`
	Program string `json:"program"`
	First   uint32 `json:"first"` // first and last command, both included
	Last    uint32 `json:"last"`
}

type waitView struct {
	Command int    `json:"command"` // the command to wait for
	Slot    string `json:"slot"`
	Offset  uint64 `json:"offset"` // of the range that both commands use
	Size    uint64 `json:"size"`
	Kind    string `json:"kind"`
}

type cmdView struct {
	Index   int    `json:"index"`
	Program string `json:"program"`
	Label   string `json:"label"`
	kernelView
	Bindings    []bindingView `json:"bindings"`
	Params      namedValues   `json:"params"`
	Second      namedValues   `json:"second"`
	Grid        [3]uint32     `json:"grid"`
	Threadgroup [3]uint32     `json:"threadgroup"`
	TGMem       uint32        `json:"threadgroup_memory"`
	Patch       string        `json:"patch"`
	PatchFields []string      `json:"patch_fields"`
	Barrier     bool          `json:"barrier"`
	Waits       []waitView    `json:"waits"` // set by DumpJSON only
}

type kernelView struct {
	Kernel    string      `json:"kernel"`
	Constants namedValues `json:"constants"`
}

type bindingView struct {
	Name         string  `json:"name"`
	Role         string  `json:"role"`
	Slot         string  `json:"slot"`
	Offset       uint64  `json:"offset"`
	Extent       *uint64 `json:"extent"` // null if it cannot be computed from the parameters
	Region       string  `json:"region,omitempty"`
	RegionOffset uint64  `json:"region_offset,omitempty"`

	whole bool // the extent is the whole slot
	arena bool // the slot is the scratch arena
}

// namedValue is a specialisation constant, a parameter or a secondary field.
type namedValue struct {
	Name   string
	Value  string
	number bool // Value is a JSON number
	quiet  bool // left out of the text dump: a flag that is 0 or a field that is patched
}

// namedValues marshals as a JSON object in the order of the declaration.
type namedValues []namedValue

// MarshalJSON implements json.Marshaler.
func (n namedValues) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, v := range n {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendQuote(b, v.Name) // names come from declarations: plain ASCII
		b = append(b, ':')
		if v.number {
			b = append(b, v.Value...)
		} else {
			b = strconv.AppendQuote(b, v.Value)
		}
	}
	return append(b, '}'), nil
}

func (t *Table) viewHeader() headerView {
	h := &t.Header
	return headerView{
		Arch: h.Arch, Model: h.Model, Chip: h.Chip, Device: h.Device,
		Vocab: h.Vocab, Width: h.Width, Layers: h.Layers, Context: h.Context, Chunk: h.Chunk,
		LogitsRows: h.LogitsRows, MaxStops: h.MaxStops,
		Options: h.Options, Arithmetic: t.arithmetic(),
		ModelFP: hex.EncodeToString(h.ModelFP[:]), ChipFP: hex.EncodeToString(h.ChipFP[:]),
		Constants: len(t.Const),
	}
}

// Names of the constants that select the arithmetic of a kernel.
const (
	constNameWType = "wtype"
	constNameAct   = "act"
)

// arithmetic summarizes the types that the commands multiply, from the specialisation constants
// they use: the activation types, each with its kernels if there are several, and the weight
// types.
func (t *Table) arithmetic() string {
	kernels := map[uint32][]string{} // by value of act
	weights := map[uint32]bool{}
	seen := map[uint16]bool{}
	for i := range t.Cmds {
		c := &t.Cmds[i]
		k, ok := decl.Lookup(c.Kernel)
		if !ok || int(c.Spec) >= len(t.Specs) || seen[c.Spec] {
			continue
		}
		seen[c.Spec] = true
		s := &t.Specs[c.Spec]
		if j, ok := k.Spec(constNameAct); ok && !slices.Contains(kernels[s.Values[j]], k.Name) {
			kernels[s.Values[j]] = append(kernels[s.Values[j]], k.Name)
		}
		if j, ok := k.Spec(constNameWType); ok {
			weights[s.Values[j]] = true
		}
	}
	var acts []string
	for _, v := range sortedKeys(kernels) {
		name := fmt.Sprintf("act(%d)", v)
		switch v {
		case decl.ActF32:
			name = "float32"
		case decl.ActQ8:
			name = "q8 blocks of 32"
		case decl.ActF16:
			name = "float16"
		case decl.ActF16x2:
			name = "two float16"
		}
		if len(kernels) > 1 {
			slices.Sort(kernels[v])
			name += " (" + strings.Join(kernels[v], ", ") + ")"
		}
		acts = append(acts, name)
	}
	if len(acts) == 0 {
		acts = []string{"float32"}
	}
	s := "activations " + strings.Join(acts, ", ")
	if len(weights) == 0 {
		return s
	}
	var types []string
	for _, v := range sortedKeys(weights) {
		types = append(types, weightType(v))
	}
	return s + "; weights " + strings.Join(types, ", ")
}

func sortedKeys[V any](m map[uint32]V) []uint32 {
	keys := make([]uint32, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func weightType(v uint32) string {
	if v > math.MaxUint8 {
		return fmt.Sprintf("type(%d)", v)
	}
	return dtype.Type(v).String()
}

func (t *Table) viewSlot(i int) slotView {
	s := &t.Slots[i]
	return slotView{i, s.Name, s.Kind.String(), s.Scope.String(), s.Size}
}

func (t *Table) slotName(i uint32) string {
	if uint64(i) < uint64(len(t.Slots)) {
		return t.Slots[i].Name
	}
	return fmt.Sprintf("slot(%d)", i)
}

func (t *Table) viewUpload(i int) uploadView {
	u := &t.Uploads[i]
	size, _ := u.DstSize()
	return uploadView{
		Index: i, Op: u.Op.String(), Type: u.Type.String(), Tensor: u.Tensor, Cols: u.Cols, Step: u.Step, Phase: u.Phase, SrcOffset: u.SrcOffset, SrcSize: u.SrcSize,
		Slot: t.slotName(u.Slot), DstOffset: u.DstOffset, DstSize: size,
	}
}

func (t *Table) viewRegion(i int) regionView {
	r := &t.Regions[i]
	v := regionView{Name: r.Name, Slot: t.slotName(r.Slot), Offset: r.Offset, Size: r.Size, First: r.First, Last: r.Last}
	if uint64(r.Program) < uint64(len(t.Programs)) {
		v.Program = t.Programs[r.Program].Name
	}
	return v
}

func (t *Table) viewWaits(list []wait) []waitView {
	views := make([]waitView, len(list))
	for i, w := range list {
		views[i] = waitView{w.cmd, t.slotName(w.slot), w.lo, w.hi - w.lo, w.kind}
	}
	return views
}

// undeclared replaces the declaration of an unknown kernel. It gives all bindings and bytes names
// of their own.
var undeclared = func() *decl.Kernel {
	k := &decl.Kernel{}
	for i := range decl.MaxBindings {
		k.Bindings = append(k.Bindings, decl.Binding{Name: fmt.Sprintf("b%d", i)})
	}
	for i := range decl.ParamBytes / 4 {
		k.Params = append(k.Params, decl.Field{Name: fmt.Sprintf("p%d", 4*i)})
	}
	for i := range decl.SecondBytes / 4 {
		k.Second = append(k.Second, decl.Second{Name: fmt.Sprintf("s%d", 4*i), Offset: 4 * i})
	}
	return k
}()

// viewCmd resolves command i of a program (-1: of none), with the regions that are live at that
// command. It accepts every command that Decode accepts.
func (t *Table) viewCmd(i, program int, live []*Region) cmdView {
	c := &t.Cmds[i]
	v := cmdView{
		Index: i, Label: t.Label(i), Grid: c.Grid, Threadgroup: c.Threadgroup, TGMem: c.TGMem,
		Patch: c.Patch.String(), Barrier: c.Barrier != 0,
		Bindings: []bindingView{}, PatchFields: []string{},
	}
	var p Program
	if program >= 0 {
		p = t.Programs[program]
		v.Program = p.Name
	}
	k, kernel := t.viewKernel(c)
	v.kernelView = kernel
	env, envErr := t.NewEnv(c, &p)
	for j := range min(int(c.Bindings), len(k.Bindings)) {
		if c.Bind[j].Slot == NoSlot {
			continue
		}
		b := t.viewBinding(c.Bind[j], &k.Bindings[j], live)
		if envErr == nil {
			b.Role = k.Role(j, env).String()
			if n, err := env.Extent(j); err == nil {
				b.Extent = &n
				b.whole = b.Offset == 0 && uint64(c.Bind[j].Slot) < uint64(len(t.Slots)) && n == t.Slots[c.Bind[j].Slot].Size
			}
		}
		v.Bindings = append(v.Bindings, b)
	}
	v.Params = make(namedValues, 0, len(k.Params))
	for j, f := range k.Params {
		n := viewParam(f, c.u32(4*j))
		n.quiet = c.u32(4*j) == 0 && slices.Contains(k.Optional, f.Name)
		v.Params = append(v.Params, n)
	}
	v.viewSecond(c, k)
	return v
}

// viewKernel returns a command's declaration, and its kernel's name and constants. The
// declaration is undeclared if the kernel is unknown.
func (t *Table) viewKernel(c *Cmd) (*decl.Kernel, kernelView) {
	k, known := decl.Lookup(c.Kernel)
	if !known {
		k = undeclared
	}
	v := kernelView{Kernel: k.Name, Constants: namedValues{}}
	if !known {
		v.Kernel = fmt.Sprintf("kernel(%d)", c.Kernel)
	}
	if int(c.Spec) >= len(t.Specs) {
		v.Constants = namedValues{{Name: "spec", Value: fmt.Sprintf("%d of %d", c.Spec, len(t.Specs))}}
		return k, v
	}
	s := &t.Specs[c.Spec]
	if s.Kernel != c.Kernel {
		v.Constants = namedValues{{Name: "spec_of_kernel", Value: strconv.Itoa(int(s.Kernel)), number: true}}
		return k, v
	}
	v.Constants = viewConstants(k, s)
	return k, v
}

func viewConstants(k *decl.Kernel, s *Spec) namedValues {
	out := make(namedValues, 0, len(k.Specs))
	for j, con := range k.Specs {
		n := s.Values[j]
		v := namedValue{Name: con.Name, Value: strconv.FormatUint(uint64(n), 10), number: true}
		switch {
		case con.Name == constNameWType:
			v.Value, v.number = weightType(n), false
		case uint64(n) < uint64(len(con.Values)):
			v.Value, v.number = con.Values[n], false
			v.quiet = n == 0 && slices.Contains(k.Optional, con.Name)
		case con.Flag:
			v.quiet = n == 0
		}
		out = append(out, v)
	}
	return out
}

func (t *Table) viewBinding(b Binding, d *decl.Binding, live []*Region) bindingView {
	v := bindingView{Name: d.Name, Role: d.Role.String(), Slot: t.slotName(b.Slot), Offset: b.Offset}
	v.arena = uint64(b.Slot) < uint64(len(t.Slots)) && t.Slots[b.Slot].Kind == SlotScratch
	for _, r := range live {
		if r.Slot != b.Slot || b.Offset < r.Offset || b.Offset-r.Offset >= r.Size {
			continue
		}
		if at := b.Offset - r.Offset; v.Region == "" || at < v.RegionOffset {
			v.Region, v.RegionOffset = r.Name, at
		}
	}
	return v
}

func viewParam(f decl.Field, bits uint32) namedValue {
	if f.Type != decl.F32 {
		return namedValue{Name: f.Name, Value: strconv.FormatUint(uint64(bits), 10), number: true}
	}
	x := float64(math.Float32frombits(bits))
	return namedValue{
		Name:   f.Name,
		Value:  strconv.FormatFloat(x, 'g', -1, 32),
		number: !math.IsNaN(x) && !math.IsInf(x, 0), // JSON has no NaN or infinity
	}
}

// viewSecond sets the secondary fields and the names of those that the patch writes.
func (v *cmdView) viewSecond(c *Cmd, k *decl.Kernel) {
	var offsets []int
	kind := c.Patch.Kind()
	if kind != PatchNone {
		offsets = append(offsets, int(c.PatchOffset[0]))
	}
	if c.Patch&PatchRows != 0 {
		offsets = append(offsets, decl.SecondRows)
	}
	for _, off := range offsets {
		name := fmt.Sprintf("second[%d]", off)
		for _, s := range k.Second {
			if s.Offset == off {
				name = s.Name
			}
		}
		v.PatchFields = append(v.PatchFields, name)
	}
	v.Second = make(namedValues, 0, len(k.Second))
	for _, s := range k.Second {
		n := Field(&c.Second, s.Offset)
		v.Second = append(v.Second, namedValue{
			Name: s.Name, Value: strconv.FormatUint(uint64(n), 10), number: true,
			quiet: n == 0 && (slices.Contains(offsets, s.Offset) || slices.Contains(k.Optional, s.Name)),
		})
	}
}
