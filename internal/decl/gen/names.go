package main

import "strings"

// initialisms are written in capitals in Go names.
var initialisms = map[string]string{
	"gemv": "GEMV", "gemm": "GEMM", "rmsnorm": "RMSNorm", "layernorm": "LayerNorm", "qk": "QK", "kv": "KV",
	"silu": "SiLU", "ids": "IDs", "wtype": "WType", "rope": "RoPE", "ssm": "SSM",
}

// camel returns the Go name of a name in snake case.
func camel(snake string) string {
	var b strings.Builder
	for _, w := range strings.Split(snake, "_") {
		if s, ok := initialisms[w]; ok {
			b.WriteString(s)
			continue
		}
		b.WriteString(strings.ToUpper(w[:1]) + w[1:])
	}
	return b.String()
}
