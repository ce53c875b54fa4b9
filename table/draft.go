package table

// Of a draft: the tokens that are compared to find it at most, and those that must
// be the same.
const (
	DraftMost  = 4
	DraftLeast = 2
)

// MaxDraft is how many tokens a draft may have.
const MaxDraft = 31

// Draft sets draft to what may follow the last token of a history: what followed
// the newest of the places before it that have the most tokens in common with the
// end, most of them at most and at least least. Where that comes to the end of the
// history, it goes on with the draft. It reports whether there is such a place, and
// leaves draft alone if not.
//
// This is prompt look-up decoding (Saxena 2023, Prompt Lookup Decoding), with the
// repetition of what is drafted as in LZ77.
func Draft(draft, history []uint32, most, least int) bool {
	place, best := 0, least-1
	last := len(history) - 1
	for e := last; e > 0 && best < most; e-- {
		if history[e-1] != history[last] {
			continue
		}
		n := 1
		for n < min(most, e) && history[e-1-n] == history[last-n] {
			n++
		}
		if n > best {
			place, best = e, n
		}
	}
	if place == 0 {
		return false
	}
	for i := range draft {
		draft[i] = history[place+i%(len(history)-place)]
	}
	return true
}
