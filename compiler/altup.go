package compiler

import (
	"fmt"
	"math"

	"github.com/pianola-engine/pianola/arch"
	"github.com/pianola-engine/pianola/internal/decl"
	"github.com/pianola-engine/pianola/internal/kernels"
)

// laurelScale is the factor of the sum of a layer's input, its attention and its augmented residual. Its
// parts are multiplied before they are added.
const laurelScale = math.Sqrt2 / 2

// leastSquare is the lower bound of the mean square by whose root altup_match divides.
const leastSquare = 1e-5

// copiesPlan holds the copies of the residual stream of a program in a model with alternating updates. A
// nil copiesPlan is that of a model without them: its methods emit nothing.
type copiesPlan struct {
	s      *state
	rest   *value // the copies but the first, which is the residual stream of other models
	active *value // the prediction of the first copy
}

// altUp emits the copies of the embedding x, if the model has alternating updates: products of x with the
// magnitude of x.
func (s *state) altUp(p *program, x *value) (*copiesPlan, error) {
	n := s.cfg.AltUp.Copies
	if n == 0 {
		return nil, nil
	}
	c := &copiesPlan{s: s, rest: p.value("rest", (n-1)*s.cfg.Width), active: p.value("active", s.cfg.Width)}
	matrices, err := s.copyMatrices(roleAltUpProj, arch.AltUpProj)
	if err != nil {
		return nil, err
	}
	for i, w := range matrices {
		p.emit(spot{role: roleAltUpProj}.with(fmt.Sprintf(".%d", i+1)), productArgs{wide: p.wide, w: w}, []operand{x.all()}, c.part(i))
	}
	p.emit(spot{role: roleAltUpMatch}, altUpMatchArgs{}, nil, x.all(), c.rest.all())
	return c, nil
}

// part returns a copy of rest.
func (c *copiesPlan) part(i int) operand {
	n := c.s.cfg.Width
	return operand{v: c.rest, off: i * n, width: n}
}

// merge emits the mean of the copies, of which each but the first has been multiplied by a matrix and has
// the magnitude of the first, and stores it in x.
func (c *copiesPlan) merge(p *program, x *value) error {
	if c == nil {
		return nil
	}
	matrices, err := c.s.copyMatrices(roleAltUpUnembed, arch.AltUpUnembed)
	if err != nil {
		return err
	}
	products := p.value("unembedded", c.rest.width)
	for i, w := range matrices {
		out := c.part(i)
		out.v = products
		p.emit(spot{role: roleAltUpUnembed}.with(fmt.Sprintf(".%d", i+1)), productArgs{wide: p.wide, w: w}, []operand{c.part(i)}, out)
	}
	p.emit(spot{role: roleAltUpMerge}, altUpMatchArgs{merge: true}, nil, x.all(), products.all())
	return nil
}

// copyMatrices returns the matrices [width, width] of a role, one for each copy but the first. In GGUF
// files, they are one tensor.
func (s *state) copyMatrices(r role, from arch.Role) ([]*weight, error) {
	width, n := uint64(s.cfg.Width), s.cfg.AltUp.Copies-1
	list := make([]*weight, n)
	for i := range list {
		t, err := s.tensor(s.cfg.Tensor(from, i))
		if err != nil {
			return nil, err
		}
		first, total := uint64(0), width
		if len(t.Shape) == 3 && t.Shape[0] == uint64(n) && t.Shape[1] == width && t.Shape[2] == width {
			first, total = uint64(i)*width, uint64(n)*width
			t.Shape = []uint64{total, width}
		}
		name := fmt.Sprintf("%s.%d", roleNames[r], i+1)
		if list[i], err = s.matrixOf(name, t, []uint64{total, width}, first, width); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// predict emits the prediction of the copies before a layer, and returns the layer's input. x becomes the
// first addend of the layer's sum.
func (c *copiesPlan) predict(p *program, l *layerPlan, x *value) (*value, error) {
	if c == nil {
		return x, nil
	}
	a := altUpPredictArgs{}
	var err error
	if a.altUpRouter, err = c.router(l, roleAltUpPredict, arch.AltUpPredict); err != nil {
		return nil, err
	}
	p.emit(spot{role: roleAltUpPredict, layer: l}, a, nil, x.all(), c.rest.all(), c.active.all())
	return c.active, nil
}

// correct emits the correction of the copies after a layer with the result x, and returns the scaled
// first copy, the input of the layer's gate.
func (c *copiesPlan) correct(p *program, l *layerPlan, x *value) (*value, error) {
	if c == nil {
		return x, nil
	}
	at := spot{role: roleAltUpCorrect, layer: l}
	a := altUpCorrectArgs{}
	var err error
	if a.altUpRouter, err = c.router(l, roleAltUpCorrect, arch.AltUpCorrect); err != nil {
		return nil, err
	}
	if a.scale, err = c.vector(at.label()+".scale", arch.AltUpScale, l); err != nil {
		return nil, err
	}
	out := p.value(at.label(), c.s.cfg.Width)
	p.emit(at, a, []operand{c.active.all()}, x.all(), c.rest.all(), out.all())
	return out, nil
}

// add emits the addition of the norm of delta to all copies but the first.
func (c *copiesPlan) add(p *program, l *layerPlan, delta *value) error {
	at := spot{role: roleInputResidual, layer: l}
	w, err := c.s.normWeight(l.name(roleNames[roleInputPostNorm]), arch.InputPostNorm, l.index, c.s.cfg.Width)
	if err != nil {
		return err
	}
	p.emit(at, altUpAddArgs{w: w, eps: c.s.cfg.Eps}, []operand{delta.all()}, c.rest.all())
	return nil
}

// laurelDown emits the first product of a layer's augmented residual.
func (c *copiesPlan) laurelDown(p *program, l *layerPlan, y *value) (*value, error) {
	if c == nil {
		return nil, nil
	}
	return c.s.linear(p, spot{role: roleLaurelDown, layer: l}, y, arch.LaurelDown)
}

// laurelUp emits the addition of a layer's augmented residual to x: y and the norm of a product of low.
func (c *copiesPlan) laurelUp(p *program, l *layerPlan, x, y, low *value) error {
	if c == nil {
		return nil
	}
	up, err := c.s.linear(p, spot{role: roleLaurelUp, layer: l}, low, arch.LaurelUp)
	if err != nil {
		return err
	}
	if up, err = c.s.norm(p, spot{role: roleLaurelNorm, layer: l}, up, arch.LaurelNorm); err != nil {
		return err
	}
	c.s.scaledResidual(p, spot{role: roleLaurelResidual, layer: l}, x, up, laurelScale)
	c.s.scaledResidual(p, spot{role: roleLaurelSum, layer: l}, x, y, laurelScale)
	return nil
}

// vector returns the float32 elements of a layer's tensor.
func (c *copiesPlan) vector(name string, r arch.Role, l *layerPlan) (*weight, error) {
	t, err := c.s.tensor(c.s.cfg.Tensor(r, l.index))
	if err != nil {
		return nil, err
	}
	n := uint64(1)
	for _, d := range c.s.cfg.WantShape(r, l.index) {
		n *= d
	}
	if size := uint64(1); len(t.Shape) == 2 {
		for _, d := range t.Shape {
			if size *= d; d > n {
				break
			}
		}
		if size == n {
			t.Shape = []uint64{n}
		}
	}
	return c.s.vector(name, t, int(n))
}

// altUpRouter holds what altup_predict and altup_correct read to compute coefficients.
type altUpRouter struct {
	copies int
	router *weight // the weights of the router's norm, then its matrix
	coefs  *weight
	eps    float32
}

// router returns the router of a layer, which the prediction and the correction share, and the
// coefficients of one of them.
func (c *copiesPlan) router(l *layerPlan, r role, from arch.Role) (altUpRouter, error) {
	a := altUpRouter{copies: c.s.cfg.AltUp.Copies, eps: c.s.cfg.Eps}
	norm, err := c.s.normWeight(l.name("altup.router_norm"), arch.AltUpRouterNorm, l.index, c.s.cfg.Width)
	if err != nil {
		return a, err
	}
	matrix, err := c.vector(l.name("altup.router_matrix"), arch.AltUpRouter, l)
	if err != nil {
		return a, err
	}
	a.router = c.s.concatVectors(l.name("altup.router"), norm, matrix)
	a.coefs, err = c.vector(l.name(roleNames[r]), from, l)
	return a, err
}

// altUpPredictArgs holds the arguments of altup_predict: out is the first copy, the others, and the
// prediction of the first.
type altUpPredictArgs struct{ altUpRouter }

func (altUpPredictArgs) kernel() decl.ID      { return kernels.AltupPredict }
func (a altUpPredictArgs) weights() []*weight { return []*weight{a.router, a.coefs} }

func (a altUpPredictArgs) lower(l *lowering) {
	l.bind(kernels.AltupPredictBindX, l.n.out[0])
	l.bind(kernels.AltupPredictBindRest, l.n.out[1])
	l.bind(kernels.AltupPredictBindActive, l.n.out[2])
	l.bindWeight(kernels.AltupPredictBindRouter, a.router)
	l.bindWeight(kernels.AltupPredictBindCoefs, a.coefs)
	kernels.AltupPredictParams{N: uint32(l.n.out[0].width), Copies: uint32(a.copies), Eps: a.eps, XScale: laurelScale}.Put(&l.cmd)
}

// altUpCorrectArgs holds the arguments of altup_correct: in[0] is the prediction of the first copy; out
// is the first copy, the others, and the scaled first copy.
type altUpCorrectArgs struct {
	altUpRouter
	scale *weight
}

func (altUpCorrectArgs) kernel() decl.ID      { return kernels.AltupCorrect }
func (a altUpCorrectArgs) weights() []*weight { return []*weight{a.router, a.coefs, a.scale} }

func (a altUpCorrectArgs) lower(l *lowering) {
	l.bind(kernels.AltupCorrectBindX, l.n.out[0])
	l.bind(kernels.AltupCorrectBindRest, l.n.out[1])
	l.bind(kernels.AltupCorrectBindActive, l.n.in[0])
	l.bind(kernels.AltupCorrectBindOut, l.n.out[2])
	l.bindWeight(kernels.AltupCorrectBindRouter, a.router)
	l.bindWeight(kernels.AltupCorrectBindCoefs, a.coefs)
	l.bindWeight(kernels.AltupCorrectBindScale, a.scale)
	kernels.AltupCorrectParams{N: uint32(l.n.out[0].width), Copies: uint32(a.copies), Eps: a.eps}.Put(&l.cmd)
}

// altUpAddArgs holds the arguments of altup_add: the norm of in[0] is added to each copy in out[0].
type altUpAddArgs struct {
	w   *weight
	eps float32
}

func (altUpAddArgs) kernel() decl.ID      { return kernels.AltupAdd }
func (a altUpAddArgs) weights() []*weight { return []*weight{a.w} }

func (a altUpAddArgs) lower(l *lowering) {
	l.bind(kernels.AltupAddBindRest, l.n.out[0])
	l.bind(kernels.AltupAddBindDelta, l.n.in[0])
	l.bindWeight(kernels.AltupAddBindW, a.w)
	n := l.n.in[0].width
	kernels.AltupAddParams{N: uint32(n), Copies: uint32(l.n.out[0].width/n + 1), Eps: a.eps}.Put(&l.cmd)
}

// altUpMatchArgs holds the arguments of altup_match: the copies in out[1] get the magnitude of out[0],
// or are merged with it.
type altUpMatchArgs struct {
	unweighted
	merge bool
}

func (altUpMatchArgs) kernel() decl.ID { return kernels.AltupMatch }

func (a altUpMatchArgs) lower(l *lowering) {
	l.bind(kernels.AltupMatchBindX, l.n.out[0])
	l.bind(kernels.AltupMatchBindRest, l.n.out[1])
	n, merge := l.n.out[0].width, uint32(0)
	if a.merge {
		merge = 1
	}
	kernels.AltupMatchParams{N: uint32(n), Copies: uint32(l.n.out[1].width/n + 1), Merge: merge, Least: leastSquare}.Put(&l.cmd)
}

// topGatesArgs holds the arguments of top_gates, which changes out[0].
type topGatesArgs struct {
	unweighted
	cutoff float32
}

func (topGatesArgs) kernel() decl.ID { return kernels.TopGates }

func (a topGatesArgs) lower(l *lowering) {
	l.bind(kernels.TopGatesBindX, l.n.out[0])
	kernels.TopGatesParams{N: uint32(l.n.out[0].width), Stride: stride(l.n.out[0]), Cutoff: a.cutoff}.Put(&l.cmd)
}
