// Package speculate drafts tokens for speculative decoding by prompt look-up, and tracks how far
// drafts can be trusted. The host, the CPU device and the null device share it, so that they
// draft the same tokens. The package must not know tables or devices.
package speculate

// DraftMost is the largest number of tokens compared to find a draft; DraftLeast is the number
// that must match.
const (
	DraftMost  = 15
	DraftLeast = 4
)

// Match returns the place in a history whose continuation is most likely to follow the last token
// too, and the number of tokens before it that match the end of the history: the newest place
// with the most matching tokens, at most most. same is 0 if there is no such place.
func Match(history []uint32, most int) (place, same int) {
	last := len(history) - 1
	for e := last; e > 0 && same < most; e-- {
		end := history[last]
		for e >= 4 && history[e-1] != end && history[e-2] != end && history[e-3] != end && history[e-4] != end {
			e -= 4 // this loop takes most of the time
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

// Draft sets draft to the likely continuation of a history, as long as trust permits, and returns
// its length. It returns 0 if fewer than least tokens match. If the continuation reaches the end
// of the history, it goes on with the draft itself.
//
// This is prompt look-up decoding (Saxena 2023, Prompt Lookup Decoding), with the self-repetition
// of LZ77.
func Draft(draft, history []uint32, most, least int, trust Trust) int {
	place, same := Match(history, most)
	n := min(trust.drafts(same, most, least), len(draft))
	for i := range n {
		draft[i] = history[place+i%(len(history)-place)]
	}
	return n
}

// Trust measures how well drafts have done: the number of consecutive correct drafts, at most
// TrustMost, plus TrustFailed if the last draft was wrong.
type Trust uint32

// Parameters of trust: its maximum, the number of correct drafts needed for longer ones, and the
// flag of a wrong draft, after which a draft needs TrustMore more matching tokens.
const (
	TrustMost   Trust = 12
	TrustFailed Trust = 16
	TrustEach         = 4
	TrustMore         = 2
)

// drafts returns the number of tokens to draft: 3 at first, so that verify processes four rows,
// and twice the rows after each TrustEach correct drafts.
func (t Trust) drafts(same, most, least int) int {
	if t&TrustFailed != 0 {
		least = min(least+TrustMore, most)
	}
	if same < least {
		return 0
	}
	return 4<<min((t&^TrustFailed)/TrustEach, 15) - 1
}

// Judge returns the trust after a draft of drafted tokens, right of them correct.
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
