// Package speculate drafts tokens for speculative decoding by prompt look-up, and
// tracks how far drafts can be trusted. The host, the CPU device and the null device
// share it, so that they draft the same tokens. It must not know a table or a device.
package speculate

// Of a draft: the tokens that are compared to find it at most, and those that must
// be the same.
const (
	DraftMost  = 15
	DraftLeast = 4
)

// Match returns where in a history what followed is likely to follow its last token
// too, and how many tokens before it are those at the end: the newest of the places
// that have the most of them in common, most at most. same is 0 if there is none.
func Match(history []uint32, most int) (place, same int) {
	last := len(history) - 1
	for e := last; e > 0 && same < most; e-- {
		end := history[last]
		for e >= 4 && history[e-1] != end && history[e-2] != end && history[e-3] != end && history[e-4] != end {
			e -= 4 // which takes much of the time
		}
		if e == 0 || history[e-1] != end {
			continue
		}
		n := 1
		for n < min(most, e) && history[e-1-n] == history[last-n] {
			n++
		}
		if n > same {
			place, same = e, n
		}
	}
	return place, same
}

// Draft sets draft to what may follow the last token of a history, as far as trust
// goes, and returns how many tokens these are, 0 if fewer than least are the same
// before the place where they were found. Where that comes to the end of the history,
// it goes on with the draft.
//
// This is prompt look-up decoding (Saxena 2023, Prompt Lookup Decoding), with the
// repetition of what is drafted as in LZ77.
func Draft(draft, history []uint32, most, least int, trust Trust) int {
	place, same := Match(history, most)
	n := min(trust.drafts(same, most, least), len(draft))
	for i := range n {
		draft[i] = history[place+i%(len(history)-place)]
	}
	return n
}

// Trust is how well drafts have done: how many were right in a row, TrustMost at most,
// plus TrustFailed if the last one was wrong.
type Trust uint32

// Of trust: what it grows to, the drafts that have to be right for longer ones, and
// the flag, which makes a draft need TrustMore tokens more in common.
const (
	TrustMost   Trust = 12
	TrustFailed Trust = 16
	TrustEach         = 4
	TrustMore         = 2
)

// drafts returns how many tokens to draft: 3 at first, so that four rows are verified,
// and twice the rows after each TrustEach drafts that were right.
func (t Trust) drafts(same, most, least int) int {
	if t&TrustFailed != 0 {
		least = min(least+TrustMore, most)
	}
	if same < least {
		return 0
	}
	return 4<<min((t&^TrustFailed)/TrustEach, 15) - 1
}

// Judge returns the trust after a draft, of which some tokens were right.
func (t Trust) Judge(drafted, right int) Trust {
	switch {
	case drafted == 0:
		return t
	case right == drafted:
		return min(t&^TrustFailed+1, TrustMost)
	case 2*right >= drafted:
		return 0
	}
	return TrustFailed
}
