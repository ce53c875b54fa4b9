package arch

import "fmt"

// latentSettings adds the sizes of latent attention.
func (v *conversion) latentSettings() {
	l := &v.Config.Latent
	v.set("attention.value_length", uint32(l.KVRank))
	v.set("attention.key_length_mla", uint32(l.Nope+l.Rope))
	v.set("attention.value_length_mla", uint32(l.Value))
	v.set("attention.kv_lora_rank", uint32(l.KVRank))
	if l.Eps != v.Config.Eps {
		v.set(latentEpsKey, l.Eps)
	}
	if l.QRank > 0 {
		v.set("attention.q_lora_rank", uint32(l.QRank))
	}
}

// latentUp divides the up projections of a layer's K and V, of which each head has the rows of K and
// then those of V. The matrices of K are transposed in GGUF files.
func (v *conversion) latentUp(layer int) error {
	c := v.Config
	l := &c.Latent
	if !l.Joined {
		return nil
	}
	names := v.form.names("")
	from := c.names.weight(KVUp, layer)
	heads, rank, nope, value := uint64(c.Heads), uint64(l.KVRank), uint64(l.Nope), uint64(l.Value)
	k := Converted{Name: names.weight(K, layer), Shape: []uint64{heads, rank, nope}}
	up := Converted{Name: names.weight(V, layer), Shape: []uint64{heads, value, rank}}
	if k.Name == "" || up.Name == "" {
		return fmt.Errorf("arch: tensor %s has no name in GGUF files of %s", from, v.form.Architectures[0])
	}
	for h := range heads {
		first := h * (nope + value)
		k.Parts = append(k.Parts, ConvertedRows{Tensor: from, Rows: rank, Columns: nope, Stack: rank, Skip: first})
		up.Parts = append(up.Parts, ConvertedRows{Tensor: from, Rows: value, Columns: rank, First: first + nope})
	}
	v.Tensors = append(v.Tensors, k, up)
	return nil
}
