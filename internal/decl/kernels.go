package decl

// Kernels lists the kernels. The id of a kernel is its index. New kernels are added only at the end,
// because ids are part of the roll format.
var Kernels = []Kernel{
	embed, ropeAngles, rmsNorm, addRMSNorm, add, gemv, gemm, headNorm, rope, kvWrite, qkRopeKV, attn, attnMerge, siluMul, argmax,
	ropeAttn, argmaxPart, halves, gemmHalves, sampleAdjust, sampleFilter, sampleDraw, rankPart, rank, accept, draft,
	softCap, normAdd, layerNorm, activate,
	route, expertGEMV, expertSum, gemmFew, attnTile, addRMSNormHalves,
	expertRows, expertHalves, expertGEMM,
	chooseRows,
	latentKV,
	causalConv,
	routeScored, scaleRows,
	deltaRule, sigmoidMul,
	ssmScan, gatedNorm, scaleColumns,
	attnChunk,
	altUpPredict, altUpCorrect, altUpAdd, altUpMatch, topGates,
	headLayerNorm,
	ropeAttnTile,
}
