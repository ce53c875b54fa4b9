package bench

import "github.com/pianola-engine/pianola/table"

// meanBytes returns the mean number of bytes per token that all commands read, over the given
// number of tokens. The first token attends to kvLen positions.
func meanBytes(reads []table.Reads, kvLen, tokens int) float64 {
	var sum float64
	for _, r := range reads {
		for i := range tokens {
			sum += float64(r.Bytes(kvLen + i))
		}
	}
	return sum / float64(tokens)
}

// patched returns the number of commands of the decode program that are patched for each
// token.
func patched(t *table.Table) int {
	n := 0
	if p, _, ok := t.Program(table.ProgramDecode); ok {
		for _, c := range t.ProgramCmds(p) {
			if c.Patch != table.PatchNone {
				n++
			}
		}
	}
	return n
}
