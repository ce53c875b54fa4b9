package decl

// Kernels lists the kernels; an id is an index in it. Append only: ids are part of
// the .roll format.
var Kernels = []Kernel{
	embed, ropeAngles, rmsNorm, addRMSNorm, add, gemv, gemm, headNorm, rope, kvWrite, qkRopeKV, attn, attnMerge, siluMul, argmax,
	ropeAttn, argmaxPart, halves, gemmHalves, sampleAdjust, sampleFilter, sampleDraw, rankPart, rank, accept, draft,
	softCap, normAdd, layerNorm, activate,
	route, expertGEMV, expertSum,
}
