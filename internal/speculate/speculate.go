// Package speculate drafts tokens for speculative decoding by prompt look-up, and decides from
// past drafts how long the next one is. The host, the scheduler, the CPU device and the null
// device share it, so that they draft the same tokens. The package must not import tables or devices.
package speculate

// DraftMost is the largest number of trailing tokens that Match compares. DraftLeast is the
// number that must match before a draft is made.
const (
	DraftMost  = 15
	DraftLeast = 4
)

// JointMost is the largest number of tokens of a draft that a joint pass verifies.
const JointMost = 15

// Token is the type of a token id.
type Token interface{ ~int32 | ~uint32 }

// Match finds the earlier position in a history whose preceding tokens best match the end of
// the history. It returns the index place of the token that followed the match, and the number
// same of matching tokens, at most most. Of equally long matches it takes the newest. same is
// 0 if the last token does not occur earlier.
func Match[T Token](history []T, most int) (place, same int) {
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

// Draft fills draft with the likely continuation of a history and returns the number of tokens
// drafted. trust limits that number. Draft returns 0 if fewer than least tokens match. If the
// continuation reaches the end of the history, Draft repeats it from place on.
//
// This is prompt look-up decoding (Saxena 2023, Prompt Lookup Decoding), with the self-repetition
// of LZ77.
func Draft[T Token](draft, history []T, most, least int, trust Trust) int {
	place, same := Match(history, most)
	n := min(trust.drafts(same, most, least), len(draft))
	for i := range n {
		draft[i] = history[place+i%(len(history)-place)]
	}
	return n
}

// Trust measures how well recent drafts have done. It is the number of consecutive correct
// drafts, at most TrustMost, plus TrustFailed if the last draft was mostly wrong.
type Trust uint32

// TrustMost is the largest number of consecutive correct drafts that Trust counts. TrustFailed
// is the flag of a mostly wrong draft, after which TrustMore additional tokens must match. The
// length of drafts grows with every TrustEach correct ones.
const (
	TrustMost   Trust = 12
	TrustFailed Trust = 16
	TrustEach         = 4
	TrustMore         = 2
)

// drafts returns the number of tokens to draft. It is 3 at first, so that verify processes
// four rows; the number of rows doubles after every TrustEach correct drafts.
func (t Trust) drafts(same, most, least int) int {
	if t&TrustFailed != 0 {
		least = min(least+TrustMore, most)
	}
	if same < least {
		return 0
	}
	return 4<<min((t&^TrustFailed)/TrustEach, 15) - 1
}

// Expected returns the part of a draft that is expected to be correct: half of it, and more after consecutive
// correct drafts. It is no less after a wrong one, because Draft then needs a longer match.
func (t Trust) Expected() float64 {
	n := float64(t &^ TrustFailed)
	return (1 + n) / (2 + n)
}

// Judge returns the trust after a draft of drafted tokens, the first right of them correct.
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
