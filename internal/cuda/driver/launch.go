package driver

import "unsafe"

// Launch is a kernel launch that is prepared once, so that launching needs no conversion and no
// allocation. Its arguments are one packed buffer with the layout of the kernel's parameters. The
// driver reads the buffer at each launch, and when a node is added.
//
// A Launch holds pointers to itself, so it must not be copied after Init.
type Launch struct {
	args      []byte
	size      uintptr
	extra     [5]uintptr
	call      [11]uintptr
	clustered *clustered // nil unless Cluster was called
}

// Markers in the list of extra arguments of cuLaunchKernel.
const (
	extraEnd     = 0
	extraPointer = 1
	extraSize    = 2
)

// Init prepares the launch of f on a stream. The launch keeps args in place.
func (l *Launch) Init(f Function, grid, block [3]uint32, shared uint32, s Stream, args []byte) {
	l.args, l.size = args, uintptr(len(args))
	l.extra = [...]uintptr{
		extraPointer, uintptr(unsafe.Pointer(unsafe.SliceData(args))),
		extraSize, uintptr(unsafe.Pointer(&l.size)), extraEnd,
	}
	l.call = [...]uintptr{
		uintptr(f), uintptr(grid[0]), uintptr(grid[1]), uintptr(grid[2]),
		uintptr(block[0]), uintptr(block[1]), uintptr(block[2]),
		uintptr(shared), uintptr(s), 0, uintptr(unsafe.Pointer(&l.extra)),
	}
}

// Launch launches l, which must be on the heap.
func (d *Driver) Launch(l *Launch) error {
	if l.clustered != nil {
		if code := invoke(d.fns[cuLaunchKernelEx], l.clustered.call[:]...); code != 0 {
			return d.failed(cuLaunchKernelEx, code)
		}
		return nil
	}
	if code := invoke(d.fns[cuLaunchKernel], l.call[:]...); code != 0 {
		return d.failed(cuLaunchKernel, code)
	}
	return nil
}

// Cooperative is a launch whose blocks all run concurrently, so that they may wait for one
// another. It has the arguments of Launch, and their offsets.
//
// A Cooperative holds pointers to itself, so it must not be copied after Init.
type Cooperative struct {
	Launch
	params []uintptr
	whole  [10]uintptr
}

// Init prepares the launch. offsets are the offsets of the arguments in args.
func (l *Cooperative) Init(f Function, grid, block [3]uint32, shared uint32, s Stream, args []byte, offsets []int) {
	l.Launch.Init(f, grid, block, shared, s, args)
	l.params = make([]uintptr, len(offsets))
	for i, at := range offsets {
		l.params[i] = uintptr(unsafe.Pointer(&args[at]))
	}
	copy(l.whole[:], l.call[:9])
	l.whole[9] = uintptr(unsafe.Pointer(unsafe.SliceData(l.params)))
}

// LaunchCooperative launches l, which must be on the heap.
func (d *Driver) LaunchCooperative(l *Cooperative) error {
	if code := invoke(d.fns[cuLaunchCooperativeKernel], l.whole[:]...); code != 0 {
		return d.failed(cuLaunchCooperativeKernel, code)
	}
	return nil
}

// nodeParams is a CUDA_KERNEL_NODE_PARAMS_v1.
type nodeParams struct {
	function    Function
	grid, block [3]uint32
	shared      uint32
	params      uintptr
	extra       uintptr
}

// GraphAddKernel adds the launch, ignoring its stream, to a graph. It runs after the given nodes.
// l must be on the heap.
func (d *Driver) GraphAddKernel(g Graph, after []Node, l *Launch) (Node, error) {
	p := &nodeParams{
		function: Function(l.call[0]),
		grid:     [3]uint32{uint32(l.call[1]), uint32(l.call[2]), uint32(l.call[3])},
		block:    [3]uint32{uint32(l.call[4]), uint32(l.call[5]), uint32(l.call[6])},
		shared:   uint32(l.call[7]), extra: l.call[10],
	}
	var n Node
	err := d.call(cuGraphAddKernelNode, uintptr(unsafe.Pointer(&n)), uintptr(g),
		uintptr(unsafe.Pointer(unsafe.SliceData(after))), uintptr(len(after)), uintptr(unsafe.Pointer(p)))
	if err == nil && l.clustered != nil {
		err = d.clusterNode(n, l.clustered)
	}
	return n, err
}

// edgeData is a CUgraphEdgeData: the kind of dependence between two nodes.
type edgeData struct {
	fromPort, toPort, kind uint8
	_                      [5]uint8
}

// The kind of an edge to a kernel that may begin once the preceding kernel permits it
// (CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC).
const (
	portProgrammatic = 1
	edgeProgrammatic = 1
)

// CanOverlap reports whether the driver supports GraphOverlap (CUDA 12.3).
func (d *Driver) CanOverlap() bool { return d.fns[cuGraphAddDependencies] != 0 }

// GraphOverlap makes a kernel node begin once all threads of another have permitted it or ended
// (griddepcontrol). The kernel itself must wait for the end of the other.
func (d *Driver) GraphOverlap(g Graph, from, to Node) error {
	e := &edgeData{fromPort: portProgrammatic, kind: edgeProgrammatic}
	return d.call(cuGraphAddDependencies, uintptr(g), uintptr(unsafe.Pointer(&from)), uintptr(unsafe.Pointer(&to)), uintptr(unsafe.Pointer(e)), 1)
}
