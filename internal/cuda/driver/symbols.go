package driver

// symbol identifies a function of the driver: an index in symbolNames.
type symbol int

// The functions.
const (
	cuInit symbol = iota
	cuDriverGetVersion
	cuGetErrorName
	cuDeviceGetCount
	cuDeviceGet
	cuDeviceGetName
	cuDeviceTotalMem
	cuDeviceGetAttribute
	cuDevicePrimaryCtxRetain
	cuDevicePrimaryCtxRelease
	cuCtxPushCurrent
	cuCtxPopCurrent
	cuMemGetInfo
	cuMemAlloc
	cuMemFree
	cuMemHostAlloc
	cuMemFreeHost
	cuMemsetD8Async
	cuMemcpyHtoDAsync
	cuMemcpyDtoHAsync
	cuMemcpyDtoDAsync
	cuMemcpy2DAsync
	cuStreamCreate
	cuStreamDestroy
	cuStreamSynchronize
	cuStreamWaitEvent
	cuEventCreate
	cuEventDestroy
	cuEventRecord
	cuEventSynchronize
	cuEventElapsedTime
	cuModuleLoadData
	cuModuleLoadDataEx
	cuModuleUnload
	cuModuleGetFunction
	cuLinkCreate
	cuLinkAddData
	cuLinkComplete
	cuLinkDestroy
	cuFuncGetAttribute
	cuFuncSetAttribute
	cuLaunchKernel
	cuLaunchKernelEx
	cuLaunchCooperativeKernel
	cuOccupancyMaxActiveBlocksPerMultiprocessor
	cuGraphCreate
	cuGraphDestroy
	cuGraphAddKernelNode
	cuGraphKernelNodeSetAttribute
	cuGraphAddDependencies
	cuGraphInstantiateWithFlags
	cuGraphExecDestroy
	cuGraphUpload
	cuGraphLaunch
	cuTensorMapEncodeTiled
	symbols
)

// symbolNames are the functions' names in the library, with the interface version that this
// package uses.
var symbolNames = [symbols]string{
	cuInit:                    "cuInit",
	cuDriverGetVersion:        "cuDriverGetVersion",
	cuGetErrorName:            "cuGetErrorName",
	cuDeviceGetCount:          "cuDeviceGetCount",
	cuDeviceGet:               "cuDeviceGet",
	cuDeviceGetName:           "cuDeviceGetName",
	cuDeviceTotalMem:          "cuDeviceTotalMem_v2",
	cuDeviceGetAttribute:      "cuDeviceGetAttribute",
	cuDevicePrimaryCtxRetain:  "cuDevicePrimaryCtxRetain",
	cuDevicePrimaryCtxRelease: "cuDevicePrimaryCtxRelease_v2",
	cuCtxPushCurrent:          "cuCtxPushCurrent_v2",
	cuCtxPopCurrent:           "cuCtxPopCurrent_v2",
	cuMemGetInfo:              "cuMemGetInfo_v2",
	cuMemAlloc:                "cuMemAlloc_v2",
	cuMemFree:                 "cuMemFree_v2",
	cuMemHostAlloc:            "cuMemHostAlloc",
	cuMemFreeHost:             "cuMemFreeHost",
	cuMemsetD8Async:           "cuMemsetD8Async",
	cuMemcpyHtoDAsync:         "cuMemcpyHtoDAsync_v2",
	cuMemcpyDtoHAsync:         "cuMemcpyDtoHAsync_v2",
	cuMemcpyDtoDAsync:         "cuMemcpyDtoDAsync_v2",
	cuMemcpy2DAsync:           "cuMemcpy2DAsync_v2",
	cuStreamCreate:            "cuStreamCreate",
	cuStreamDestroy:           "cuStreamDestroy_v2",
	cuStreamSynchronize:       "cuStreamSynchronize",
	cuStreamWaitEvent:         "cuStreamWaitEvent",
	cuEventCreate:             "cuEventCreate",
	cuEventDestroy:            "cuEventDestroy_v2",
	cuEventRecord:             "cuEventRecord",
	cuEventSynchronize:        "cuEventSynchronize",
	cuEventElapsedTime:        "cuEventElapsedTime",
	cuModuleLoadData:          "cuModuleLoadData",
	cuModuleLoadDataEx:        "cuModuleLoadDataEx",
	cuModuleUnload:            "cuModuleUnload",
	cuModuleGetFunction:       "cuModuleGetFunction",
	cuLinkCreate:              "cuLinkCreate_v2",
	cuLinkAddData:             "cuLinkAddData_v2",
	cuLinkComplete:            "cuLinkComplete",
	cuLinkDestroy:             "cuLinkDestroy",
	cuFuncGetAttribute:        "cuFuncGetAttribute",
	cuFuncSetAttribute:        "cuFuncSetAttribute",
	cuLaunchKernel:            "cuLaunchKernel",
	cuLaunchKernelEx:          "cuLaunchKernelEx",
	cuLaunchCooperativeKernel: "cuLaunchCooperativeKernel",
	cuOccupancyMaxActiveBlocksPerMultiprocessor: "cuOccupancyMaxActiveBlocksPerMultiprocessor",
	cuGraphCreate:                 "cuGraphCreate",
	cuGraphDestroy:                "cuGraphDestroy",
	cuGraphAddKernelNode:          "cuGraphAddKernelNode",
	cuGraphKernelNodeSetAttribute: "cuGraphKernelNodeSetAttribute",
	cuGraphAddDependencies:        "cuGraphAddDependencies_v2",
	cuGraphInstantiateWithFlags:   "cuGraphInstantiateWithFlags",
	cuGraphExecDestroy:            "cuGraphExecDestroy",
	cuGraphUpload:                 "cuGraphUpload",
	cuGraphLaunch:                 "cuGraphLaunch",
	cuTensorMapEncodeTiled:        "cuTensorMapEncodeTiled",
}

// optional lists the functions that older drivers lack.
var optional = []symbol{cuGraphAddDependencies, cuTensorMapEncodeTiled, cuLaunchKernelEx, cuGraphKernelNodeSetAttribute}

// String returns the name without the interface version.
func (s symbol) String() string {
	name := symbolNames[s]
	if n := len(name); n > 3 && name[n-3:] == "_v2" {
		name = name[:n-3]
	}
	return name
}
