package driver

import "unsafe"

// launchConfig is a CUlaunchConfig.
type launchConfig struct {
	grid, block [3]uint32
	shared      uint32
	stream      Stream
	attributes  uintptr
	count       uint32
}

// launchAttribute is a CUlaunchAttribute. Its value is a union of 64 bytes, of which a cluster's size is three
// numbers.
type launchAttribute struct {
	id      uint32
	_       uint32
	cluster [3]uint32
	_       [52]byte
}

// attributeCluster is CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION.
const attributeCluster = 4

// clustered is what a launch in clusters needs besides a Launch.
type clustered struct {
	config    launchConfig
	attribute launchAttribute
	call      [4]uintptr
}

// CanCluster reports whether the driver supports launches in clusters (CUDA 11.8).
func (d *Driver) CanCluster() bool {
	return d.fns[cuLaunchKernelEx] != 0 && d.fns[cuGraphKernelNodeSetAttribute] != 0
}

// Cluster makes the launch run its blocks in clusters of n neighbours in x, by which the grid's x must be
// divisible. Init must precede it.
func (l *Launch) Cluster(n uint32) {
	c := &clustered{attribute: launchAttribute{id: attributeCluster, cluster: [3]uint32{n, 1, 1}}}
	c.config = launchConfig{
		grid:  [3]uint32{uint32(l.call[1]), uint32(l.call[2]), uint32(l.call[3])},
		block: [3]uint32{uint32(l.call[4]), uint32(l.call[5]), uint32(l.call[6])}, shared: uint32(l.call[7]),
		stream: Stream(l.call[8]), attributes: uintptr(unsafe.Pointer(&c.attribute)), count: 1,
	}
	c.call = [...]uintptr{uintptr(unsafe.Pointer(&c.config)), l.call[0], 0, l.call[10]}
	l.clustered = c
}

// clusterNode makes a kernel node of a graph run in the clusters of its launch.
func (d *Driver) clusterNode(n Node, c *clustered) error {
	return d.call(cuGraphKernelNodeSetAttribute, uintptr(n), attributeCluster, uintptr(unsafe.Pointer(&c.attribute.cluster)))
}
