package decl

import (
	"errors"
	"fmt"
	"slices"
)

func init() {
	for _, list := range [][]Kernel{Kernels, Helpers} {
		for i := range list {
			if err := list[i].compile(); err != nil {
				panic(err) // a mistake in this package; TestKernels runs the same check
			}
		}
	}
}

// compiler parses the expressions of one declaration.
type compiler struct {
	k     *Kernel
	known map[string]bool // the names that expressions may contain
}

// compile parses the expressions of a declaration and checks its limits.
func (k *Kernel) compile() error {
	c := compiler{k, map[string]bool{}}
	for _, step := range []func() error{c.names, c.bindings, c.settled, c.matrices, c.command, c.second, c.threads} {
		if err := step(); err != nil {
			return fmt.Errorf("decl: %s: %w", k.Name, err)
		}
	}
	return nil
}

// names collects the names of parameters, secondary fields and constants.
func (c *compiler) names() error {
	k := c.k
	if len(k.Bindings) > MaxBindings || 4*len(k.Params) > ParamBytes || len(k.Specs) > MaxSpecs {
		return errors.New("too many bindings, parameters or constants")
	}
	for _, f := range k.Params {
		if f.Type != U32 && f.Type != F32 {
			return fmt.Errorf("parameter %s is a %s", f.Name, f.Type)
		}
		c.known[f.Name] = true
	}
	for _, s := range k.Second {
		c.known[s.Name] = true
	}
	for _, s := range k.Specs {
		c.known[s.Name] = true
	}
	if len(c.known) != len(k.Params)+len(k.Second)+len(k.Specs) || c.known[nameContext] || c.known[nameThreads] || c.known[nameProgramRows] {
		return errors.New("a name occurs twice")
	}
	c.known[nameContext] = true
	return nil
}

// parse compiles an expression that is a number, or a condition.
func (c *compiler) parse(src string, condition bool) (Expr, error) {
	e, err := parseExpr(src, c.k.Specs)
	if err != nil || src == "" {
		return e, err
	}
	for _, n := range e.Names() {
		if !c.known[n] {
			return e, fmt.Errorf("expression %q: unknown name %s", src, n)
		}
	}
	if e.cond != condition {
		return e, fmt.Errorf("expression %q is a condition where a number is expected, or the reverse", src)
	}
	return e, nil
}

func (c *compiler) number(to *Expr, src string) (err error) {
	*to, err = c.parse(src, false)
	return err
}

func (c *compiler) bindings() error {
	for i := range c.k.Bindings {
		b := &c.k.Bindings[i]
		if err := c.binding(b); err != nil {
			return fmt.Errorf("%s: %w", b.Name, err)
		}
	}
	return nil
}

func (c *compiler) binding(b *Binding) (err error) {
	if b.Elem == 0 || b.Elem >= elems {
		return errors.New("the element type is missing")
	}
	if b.ReadIf != "" && b.Role != Write {
		return errors.New("only a binding with role w may have ReadIf")
	}
	if err := errors.Join(c.number(&b.extent, b.Extent), c.number(&b.reads, b.Reads)); err != nil {
		return err
	}
	if b.present, err = c.parse(b.If, true); err != nil {
		return err
	}
	if b.readIf, err = c.parse(b.ReadIf, true); err != nil {
		return err
	}
	for _, name := range slices.Concat(b.present.Names(), b.readIf.Names()) {
		if _, ok := c.k.Spec(name); !ok {
			return fmt.Errorf("%s is not a specialisation constant", name)
		}
	}
	return nil
}

// settled parses the condition of early reads and checks the names of their bindings.
func (c *compiler) settled() (err error) {
	k := c.k
	if k.settledIf, err = c.parse(k.SettledIf, true); err != nil {
		return err
	}
	if _, _, ok := k.Param(fieldSettled.Name); !ok && (k.SettledIf != "" || len(k.Settled) > 0) {
		return fmt.Errorf("early reads need the parameter %s", fieldSettled.Name)
	}
	for _, name := range k.Settled {
		if !slices.ContainsFunc(k.Bindings, func(b Binding) bool { return b.Name == name }) {
			return fmt.Errorf("an early read of an unknown binding %s", name)
		}
	}
	return nil
}

// matrices parses the sizes of matrices.
func (c *compiler) matrices() (err error) {
	k := c.k
	if len(k.Matrices) > 0 && len(k.Bindings) == MaxBindings {
		return errors.New("no binding is left for the descriptors of matrices")
	}
	for i := range k.Matrices {
		m := &k.Matrices[i]
		if !slices.ContainsFunc(k.Bindings, func(b Binding) bool { return b.Name == m.Binding }) {
			return fmt.Errorf("a matrix of an unknown binding %s", m.Binding)
		}
		if err := errors.Join(c.number(&m.rows, m.Rows), c.number(&m.columns, m.Columns), c.number(&m.stride, m.Stride)); err != nil {
			return fmt.Errorf("%s: %w", m.Binding, err)
		}
		if m.present, err = c.parse(m.If, true); err != nil {
			return fmt.Errorf("%s: %w", m.Binding, err)
		}
	}
	return nil
}

// command parses the grid and the worker's memory.
func (c *compiler) command() error {
	for i, src := range c.k.Grid {
		if err := c.number(&c.k.grid[i], src); err != nil {
			return err
		}
	}
	return c.number(&c.k.worker, c.k.Worker)
}

// second parses the ranges of the secondary fields.
func (c *compiler) second() error {
	c.known[nameProgramRows] = true
	defer delete(c.known, nameProgramRows)
	c.k.Second = slices.Clone(c.k.Second) // declarations share fields
	for i := range c.k.Second {
		s := &c.k.Second[i]
		if s.Max == "" {
			return fmt.Errorf("secondary field %s has no largest value", s.Name)
		}
		if err := errors.Join(c.number(&s.min, s.Min), c.number(&s.max, s.Max)); err != nil {
			return err
		}
	}
	return nil
}

// threads parses the expressions that may contain the name threads.
func (c *compiler) threads() error {
	c.known[nameThreads] = true
	if err := errors.Join(c.number(&c.k.tgMem, c.k.TGMem), c.number(&c.k.cluster, c.k.Cluster)); err != nil {
		return err
	}
	if err := c.apple(); err != nil {
		return err
	}
	c.k.require = nil
	for _, src := range c.k.Require {
		e, err := c.parse(src, true)
		if err == nil && src == "" {
			err = errors.New("a requirement is empty")
		}
		if err != nil {
			return err
		}
		c.k.require = append(c.k.require, e)
	}
	c.k.order = nil
	for _, src := range c.k.Order {
		e, err := c.parse(src, false)
		if err == nil && src == "" {
			err = errors.New("a number of the order is empty")
		}
		if err != nil {
			return err
		}
		c.k.order = append(c.k.order, e)
	}
	var err error
	c.k.batching, err = c.parse(c.k.Batching, true)
	return err
}

// apple parses the expressions of the body for Apple GPUs.
func (c *compiler) apple() (err error) {
	if c.k.Apple == nil {
		return nil
	}
	body := *c.k.Apple // declarations may share it
	c.k.Apple = &body
	if body.when, err = c.parse(body.If, true); err != nil {
		return err
	}
	if body.If == "" {
		return errors.New("the condition of the body for Apple GPUs is missing")
	}
	return c.number(&body.tgMem, body.TGMem)
}
