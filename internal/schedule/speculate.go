package schedule

import (
	"slices"
	"time"

	"github.com/pianola-engine/pianola/internal/speculate"
)

// decoding returns the number of rows of a joint pass that rows with drafts are.
func decoding(rows []Row) int {
	n := len(rows)
	for i := range rows {
		n += len(rows[i].Draft)
	}
	return n
}

// speculate gives drafts to the rows of a step and makes it a joint pass, if that is predicted to choose more
// tokens a second than a chain. Nothing is set back for the pages of drafts. prompts is the number
// of requests of which chunks may join the pass.
func (s *Scheduler) speculate(step *Step, prompts int) {
	if s.c.Joint == 0 || !slices.ContainsFunc(step.Decode, func(r Row) bool { return r.Request.Speculate }) {
		return
	}
	room := min(s.c.Joint, s.c.Budget, s.c.Heads-prompts) - len(step.Decode)
	rows := slices.Clone(step.Decode)
	drafted, expected := 0, float64(len(rows))
	for i := range rows {
		r := rows[i].Request
		n := min(room-drafted, r.Most-r.Chosen-1, speculate.JointMost)
		if !r.Speculate || n <= 0 {
			continue
		}
		draft := make([]int32, n)
		draft = draft[:speculate.Draft(draft, r.Tokens, speculate.DraftMost, speculate.DraftLeast, r.Trust)]
		if r.Sequence.Extend(r.Sequence.Len()+1+len(draft)) == nil {
			rows[i].Draft = draft
			drafted += len(draft)
			expected += float64(len(draft)) * r.Trust.Expected()
		}
	}
	if drafted == 0 {
		return
	}
	pass := s.unmeasured(rows, s.together(rows, nil))
	if pass > step.Bound {
		return
	}
	list := step.requests()
	token := s.c.Cost.Decode(len(list), depth(list, 0)) + s.idled/time.Duration(step.Chain)
	if expected*float64(token) <= float64(len(rows))*float64(pass+s.idled) {
		return
	}
	for i := range rows {
		rows[i].Tokens = 1 + len(rows[i].Draft)
	}
	step.Decode, step.Chain, step.Joint = rows, 1, true
}

// unmeasured returns the predicted time of a joint pass of rows with drafts, or, if no pass of about as many rows has
// been measured yet, no more than a batch of as many rows takes. So a prediction that is too long does
// not keep passes from being measured.
func (s *Scheduler) unmeasured(rows []Row, predicted time.Duration) time.Duration {
	all, _, depth := joint(rows, nil)
	if c, ok := s.c.Cost.(*Corrected); ok && c.joint[classOf(all)] == 0 {
		return min(predicted, c.Decode(all, depth))
	}
	return predicted
}
