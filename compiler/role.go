package compiler

import "fmt"

// role is the function of a node in the model, independent of the kernel that computes it. Fusions
// match roles, operands and the types of args. Labels in dumps are made from roles.
type role uint8

// The roles, in the order in which a program executes them. The roles of the attention and
// feed-forward blocks belong to a layer.
const (
	roleEmbed role = iota
	roleAngles
	roleInputEmbed
	roleInputProj
	roleInputNorm
	roleInputSum
	roleAltUpProj
	roleAltUpMatch

	roleAltUpPredict
	roleAttnNorm
	roleLaurelDown
	roleQGate
	roleQ
	roleK
	roleV
	roleQKV
	roleVNorm
	roleQNorm
	roleKNorm
	roleQRope
	roleKRope
	roleTemper
	roleKVWrite
	roleRopeKV
	roleQDown
	roleQDownNorm
	roleKVDown
	roleQLatent
	roleLatentKV
	roleAttention
	roleMerge
	roleGateMul
	roleVUp
	roleO
	roleAttnPostNorm
	roleConvIn
	roleConv
	roleConvOut
	roleDeltaIn
	roleDeltaGates
	roleDeltaZ
	roleDeltaRule
	roleDeltaNorm
	roleDeltaGate
	roleDeltaOut
	roleMambaIn
	roleMambaScale
	roleMambaScan
	roleMambaNorm
	roleMambaOut
	roleMambaResidual
	roleAttnResidual
	roleLaurelUp
	roleLaurelNorm
	roleLaurelResidual
	roleLaurelSum

	roleFFNNorm
	roleGate
	roleUp
	roleGateUp
	roleGateScale
	roleTopGates
	roleSiLUMul
	roleActivate
	roleDown
	roleDensePostNorm
	roleRouterNorm
	roleExpertNorm
	roleRouter
	roleRoute
	roleExpertInput
	roleExpertGate
	roleExpertUp
	roleExpertGateUp
	roleExpertSiLUMul
	roleExpertDown
	roleExpertSum
	roleExpertPostNorm
	roleExpertAdd
	roleFFNPostNorm
	roleFFNResidual
	// In layers with experts, roleGate, roleUp and roleDown are the shared expert's.
	roleSharedRouter
	roleSharedRoute
	roleSharedGated
	roleSharedResidual

	roleAltUpCorrect
	roleInputGate
	roleInputMul
	roleInputOut
	roleInputPostNorm
	roleInputResidual
	roleLayerScale

	roleAltUpUnembed
	roleAltUpMerge
	roleOutNorm
	roleOutScale
	roleLogits
	roleSoftCap
	roleArgmaxPart
	roleArgmax
	roleRankPart
	roleRank
	roleSampleAdjust
	roleSampleFilter
	roleSampleDraw
	roleSampleChoose
	roleAccept
	roleDraft

	roles
)

// roleNames are the roles' names in labels.
var roleNames = [roles]string{
	roleEmbed: "embed", roleAngles: "rope",

	roleAttnNorm: "attn.norm", roleQ: "attn.q", roleK: "attn.k", roleV: "attn.v", roleQKV: "attn.qkv",
	roleVNorm: "attn.v_norm", roleQNorm: "attn.q_norm", roleKNorm: "attn.k_norm", roleQRope: "attn.q_rope", roleKRope: "attn.k_rope", roleTemper: "attn.temper",
	roleKVWrite: "attn.kv_write", roleRopeKV: "attn.rope_kv",
	roleQDown: "attn.q_down", roleQDownNorm: "attn.q_down_norm", roleKVDown: "attn.kv_down", roleQLatent: "attn.q_latent", roleLatentKV: "attn.latent_kv",
	roleVUp: "attn.v_up", roleAttention: "attn.attention", roleMerge: "attn.merge",
	roleO: "attn.o", roleAttnPostNorm: "attn.post_norm", roleAttnResidual: "attn.residual",
	roleConvIn: "conv.in", roleConv: "conv.conv", roleConvOut: "conv.out",
	roleDeltaIn: "delta.in", roleDeltaGates: "delta.gates", roleDeltaZ: "delta.z", roleDeltaRule: "delta.rule", roleDeltaNorm: "delta.norm",
	roleMambaIn: "mamba.in", roleMambaScale: "mamba.scale", roleMambaScan: "mamba.scan", roleMambaNorm: "mamba.norm", roleMambaOut: "mamba.out", roleMambaResidual: "mamba.residual",
	roleDeltaGate: "delta.gate", roleDeltaOut: "delta.out", roleQGate: "attn.q_gate", roleGateMul: "attn.gate",

	roleFFNNorm: "ffn.norm", roleGate: "ffn.gate", roleUp: "ffn.up", roleGateUp: "ffn.gate_up", roleGateScale: "ffn.gate_scale",
	roleSiLUMul: "ffn.silu_mul", roleActivate: "ffn.act", roleDown: "ffn.down",
	roleDensePostNorm: "ffn.dense_norm", roleRouterNorm: "ffn.router_norm", roleExpertNorm: "ffn.experts.norm", roleExpertPostNorm: "ffn.experts.post_norm", roleExpertAdd: "ffn.experts.add",
	roleRouter: "ffn.router", roleRoute: "ffn.route", roleExpertInput: "ffn.experts.input", roleExpertGate: "ffn.experts.gate", roleExpertUp: "ffn.experts.up",
	roleExpertGateUp: "ffn.experts.gate_up", roleExpertSiLUMul: "ffn.experts.silu_mul", roleExpertDown: "ffn.experts.down",
	roleExpertSum: "ffn.experts.sum", roleFFNPostNorm: "ffn.post_norm", roleFFNResidual: "ffn.residual",

	roleAltUpProj: "altup.proj", roleAltUpMatch: "altup.match", roleAltUpPredict: "altup.predict", roleAltUpCorrect: "altup.correct",
	roleAltUpUnembed: "altup.unembed", roleAltUpMerge: "altup.merge", roleTopGates: "ffn.top_gates",
	roleLaurelDown: "laurel.down", roleLaurelUp: "laurel.up", roleLaurelNorm: "laurel.norm", roleLaurelResidual: "laurel.residual", roleLaurelSum: "laurel.sum",

	roleSharedRouter: "ffn.shared_router", roleSharedRoute: "ffn.shared_route", roleSharedGated: "ffn.shared_gated", roleSharedResidual: "ffn.shared_residual",

	roleInputEmbed: "inputs.embed", roleInputProj: "inputs.proj", roleInputNorm: "inputs.norm", roleInputSum: "inputs.sum",
	roleInputGate: "input.gate", roleInputMul: "input.mul", roleInputOut: "input.out", roleInputPostNorm: "input.post_norm",
	roleInputResidual: "input.residual", roleLayerScale: "scale",

	roleOutNorm: "out.norm", roleOutScale: "out.scale", roleLogits: "out.logits", roleSoftCap: "out.soft_cap",
	roleArgmaxPart: "out.argmax_part", roleArgmax: "out.argmax", roleRankPart: "rank.part", roleRank: "rank.entry",
	roleSampleAdjust: "sample.adjust", roleSampleFilter: "sample.filter", roleSampleDraw: "sample.draw",
	roleSampleChoose: "sample.choose", roleAccept: "verify.accept", roleDraft: "verify.draft",
}

// spot identifies a node in a program: its role, and its layer unless it is before or after all
// layers. If a pass splits a node, the new nodes have its role and different suffixes.
type spot struct {
	role   role
	layer  *layerPlan
	suffix string // ".part1", ".row2", ".halves"
}

// label returns the spot's name, "layer.3.attn.q.part1".
func (s spot) label() string {
	if s.layer == nil {
		return roleNames[s.role] + s.suffix
	}
	return s.layer.name(roleNames[s.role]) + s.suffix
}

// with returns the spot with a suffix appended to its own.
func (s spot) with(suffix string) spot {
	s.suffix += suffix
	return s
}

// index returns the layer's index, or 0 without a layer.
func (s spot) index() int {
	if s.layer == nil {
		return 0
	}
	return s.layer.index
}

// name returns a name that begins with the layer's, such as "layer.3.ffn.act".
func (l *layerPlan) name(what string) string { return fmt.Sprintf("layer.%d.%s", l.index, what) }
