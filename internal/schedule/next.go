package schedule

import (
	"slices"
	"sort"
	"time"
)

// Row is a sequence that decodes.
type Row struct {
	Request *Request
	Tokens  int     // most tokens to choose
	Draft   []int32 // of a joint pass: tokens that may follow, one fewer than Tokens
}

// Chunk is a part of a prompt.
type Chunk struct {
	Request  *Request
	At, Rows int
	Last     bool // the prompt ends here: a token is chosen
}

// Read returns the number of the chunk's last rows whose values are read.
func (c *Chunk) Read() int {
	if c.Request.Reads == nil {
		return 0
	}
	return max(0, min(c.Rows, c.At+c.Rows-c.Request.Reads.From))
}

// Refusal is a request that is not served any more.
type Refusal struct {
	Request *Request
	Err     error
}

// Step is one submission and what happened before it.
type Step struct {
	Decode []Row
	Chain  int // most tokens of a row
	Chunks []Chunk
	// Joint says that the rows and the chunks are computed in one pass, which reads the weights once.
	// Each row then chooses one token, or as many as its draft is right and one more.
	Joint bool
	// Again says that the step is joint although it was predicted to be faster otherwise, so that joint passes
	// are measured again.
	Again bool

	Restores []Restored // of a step of ReadBack, which has nothing else

	Admitted []*Request // were given a sequence number
	SetBack  []*Request // lost their sequence number and pages
	Refused  []Refusal  // are not part of the scheduler any more

	Bound     time.Duration // smallest bound of all requests, times quietBounds if none decodes
	Predicted time.Duration
	Decoding  time.Duration // part of Predicted for the rows; 0 with Joint
}

// Empty reports whether there is nothing to submit.
func (st *Step) Empty() bool { return len(st.Decode) == 0 && len(st.Chunks) == 0 }

// Next plans a submission. The sequences then have the pages that it writes. The caller must call
// Done or Fail with the step before the next call, unless it is empty.
func (s *Scheduler) Next(now time.Duration) *Step {
	step := &Step{}
	s.refuseLate(now, step)
	s.admit(now, step)
	rows, prompts := s.split(now)
	if step.Bound = s.bound(); len(rows) == 0 {
		step.Bound *= quietBounds
	}
	alone := s.alone(now, rows, prompts, step.Bound)
	if !alone {
		s.decode(rows, len(prompts) > 0, step)
		s.speculate(step, len(prompts))
	}
	if s.owed = len(prompts) > 0; s.owed {
		s.chunks(prompts, step)
		s.owed = len(step.Chunks) == 0
	}
	if alone && len(step.Chunks) == 0 {
		s.decode(rows, true, step)
	}
	s.left = len(rows) > 0 && len(step.Decode) == 0
	step.Prune()
	step.Predicted, step.Decoding = s.predict(step)
	return step
}

// quietBounds is the number of bounds that a submission may take while no request decodes. Nobody's next token waits
// for it then, and on a CPU, where a bound is the time of a few rows, longer chunks take much less time a row.
const quietBounds = 4

// bound returns the smallest bound of all requests.
func (s *Scheduler) bound() (least time.Duration) {
	for _, list := range [][]*Request{s.running, s.waiting} {
		for _, r := range list {
			if least == 0 || r.Bound < least {
				least = r.Bound
			}
		}
	}
	return least
}

// split returns the running requests that decode and those with a prompt, in the order of ranks.
func (s *Scheduler) split(now time.Duration) (rows, prompts []*Request) {
	for _, r := range s.running {
		switch {
		case r.decodes():
			rows = append(rows, r)
		case !s.waitsForCopies(r, now):
			prompts = append(prompts, r)
		}
	}
	return rows, prompts
}

// refuseLate removes requests whose first token cannot come in time.
func (s *Scheduler) refuseLate(now time.Duration, step *Step) {
	c, corrected := s.c.Cost.(*Corrected)
	known := !corrected || c.trusted()
	for _, list := range [][]*Request{s.waiting, s.running} {
		for _, r := range slices.Clone(list) {
			if r.Deadline == 0 || r.Chosen > 0 {
				continue
			}
			first := now
			if known {
				first += s.first(r)
			}
			if first > r.Deadline {
				s.refuse(r, ErrDeadline, step)
			}
		}
	}
}

// refuse removes a request.
func (s *Scheduler) refuse(r *Request, err error, step *Step) {
	s.Cancel(r)
	step.Refused = append(step.Refused, Refusal{r, err})
}

// admit gives sequence numbers to requests that wait, in the order of ranks.
func (s *Scheduler) admit(now time.Duration, step *Step) {
	for i := 0; i < len(s.waiting); {
		r := s.waiting[i]
		if s.mustWait(r) {
			i++
			continue
		}
		if !s.makeNumber(r, step) || !s.makePages(r, step) {
			if len(s.running) > 0 {
				return
			}
			s.refuse(r, ErrPages, step) // it does not fit in an empty model
			continue
		}
		// Setting back may have changed the list, but only behind r.
		s.waiting = slices.Delete(s.waiting, i, i+1)
		s.start(r, now, step)
	}
}

// mustWait reports whether a running request is computing the beginning of r's prompt. That request
// then ranks at least as r.
func (s *Scheduler) mustWait(r *Request) bool {
	if r.Caching == Private {
		return false
	}
	if v := s.c.Store.Version() + 1; r.matched != v {
		r.matched = v
		r.waits = s.c.Store.Match(r.Space, r.Tokens[:r.shared()]).Owner
	}
	if r.waits == nil {
		return false
	}
	i := slices.IndexFunc(s.running, func(o *Request) bool { return o.Sequence == r.waits })
	if i < 0 {
		return false
	}
	if o := s.running[i]; before(r, o) < 0 {
		o.rank = r.rank
		slices.SortFunc(s.running, before)
	}
	return true
}

// makeNumber makes sure that a sequence number is free, if need be that of a request of lower
// priority.
func (s *Scheduler) makeNumber(r *Request, step *Step) bool {
	return len(s.numbers) > 0 || s.displace(r, step)
}

// displace sets back the last running request if it has a lower priority than r and ranks behind it.
func (s *Scheduler) displace(r *Request, step *Step) bool {
	if len(s.running) == 0 {
		return false
	}
	last := s.running[len(s.running)-1]
	if last.Priority >= r.Priority || before(last, r) < 0 {
		return false
	}
	s.setBack(last, step)
	return true
}

// makePages makes sure that the pages of r's prompt are available. It takes those that the prefix
// tree has.
func (s *Scheduler) makePages(r *Request, step *Step) bool {
	s.wake(r.Sequence)
	for {
		had := r.Sequence.Len()
		if r.Caching != Private {
			r.Sequence.Adopt(r.Space, r.Tokens[:r.shared()])
		}
		if s.fits(r) {
			return true
		}
		if r.Sequence.Len() > had {
			r.Sequence.Release() // a request that waits must not keep pages from those that run
		}
		if !s.reclaim() && !s.displace(r, step) {
			s.rest(r.Sequence)
			return false
		}
	}
}

// fits reports whether the pages of r's prompt are available, besides those that the prompts of
// running requests still need and one for each row that decodes and will need more.
func (s *Scheduler) fits(r *Request) bool {
	for kind := range s.c.Store.Kinds() {
		need := s.lacks(kind, r)
		for _, o := range s.running {
			need += max(s.lacks(kind, o), min(1, o.Sequence.Need(kind, o.end())))
		}
		if need > s.c.Store.Available(kind) {
			return false
		}
	}
	return true
}

// lacks returns the number of pages of a kind that a request still needs for its prompt.
func (s *Scheduler) lacks(kind int, r *Request) int {
	return min(r.Sequence.Need(kind, len(r.Tokens)), s.wants(kind, len(r.Tokens)))
}

// start makes a request run.
func (s *Scheduler) start(r *Request, now time.Duration, step *Step) {
	r.Number = s.numbers[len(s.numbers)-1]
	s.numbers = s.numbers[:len(s.numbers)-1]
	if r.state = running; r.SetBacks == 0 {
		r.Admitted, r.Hit = now, r.Sequence.Len()
		s.hits.count(r)
	}
	i, _ := slices.BinarySearchFunc(s.running, r, before)
	s.running = slices.Insert(s.running, i, r)
	if r.Caching != Private && !r.decodes() {
		r.Sequence.Claim(r.Space, r.Tokens)
	}
	s.openCopies(r, now)
	step.Admitted = append(step.Admitted, r)
}

// alone reports whether the next submission is for prompts alone: they were left out of the last
// one and do not fit beside the rows, or they are behind.
func (s *Scheduler) alone(now time.Duration, rows, prompts []*Request, bound time.Duration) bool {
	if len(rows) == 0 || len(prompts) == 0 || s.joined {
		return false
	}
	if !s.owed {
		return !s.left && s.behind(now, rows, prompts, bound)
	}
	r := prompts[0]
	least := []Chunk{s.chunkOf(r, s.least(r))}
	return s.step(rows)+s.c.Cost.Prefill(r.Sequence.Len(), least[0].Rows) > bound &&
		(!s.joins(r) || len(rows)+least[0].Rows > s.c.Joint || s.together(single(rows), least) > bound)
}

// Prompts are behind if submissions without the rows, in turn with others, would compute behindTimes as many of
// their rows a second as submissions with both, or lateTimes if a first token has not come within lateBounds
// bounds.
const (
	behindTimes = 2
	lateTimes   = 1.5
	lateBounds  = 20
)

// behind reports whether prompts wait for more than two submissions of their own, and submissions without the
// rows in turn with others would compute clearly more rows of prompts a second. That is so if the bound has
// little room beside the rows.
func (s *Scheduler) behind(now time.Duration, rows, prompts []*Request, bound time.Duration) bool {
	alone, _ := s.forms(prompts, &Step{Bound: bound})
	n, wait, times := rowsOf(alone.chunks), 0, float64(behindTimes)
	for _, r := range prompts {
		wait += r.left()
		if r.Chosen == 0 && now > r.Arrival+lateBounds*bound {
			times = lateTimes
		}
	}
	if wait <= 2*n {
		return false
	}
	both, _ := s.forms(prompts, &Step{Decode: single(rows), Chain: 1, Bound: bound})
	return float64(n)*float64(both.all) > times*float64(rowsOf(both.chunks))*float64(alone.all+s.step(rows))
}

// step returns the predicted time of one token of all rows.
func (s *Scheduler) step(rows []*Request) time.Duration {
	if len(rows) == 0 {
		return 0
	}
	return s.c.Cost.Decode(len(rows), depth(rows, 0))
}

// depth returns the mean number of positions that rows see after some more tokens.
func depth(rows []*Request, more int) int {
	sum := 0
	for _, r := range rows {
		sum += len(r.Tokens)
	}
	return (sum+len(rows)-1)/len(rows) + more
}

// decode adds the rows to the step: one token if prompts are to be computed too, otherwise as many
// as the bound permits.
func (s *Scheduler) decode(rows []*Request, prompts bool, step *Step) {
	if len(rows) == 0 {
		return
	}
	step.Chain = 1
	if !prompts {
		step.Chain = s.chain(rows, step.Bound)
	}
	for step.Chain > 1 && !s.extendAll(rows, step.Chain) {
		step.Chain /= 2 // nobody is set back for the pages of a longer chain
	}
	for _, r := range rows {
		if r.state != running {
			continue // set back for a row that ranks before it
		}
		n := min(step.Chain, r.Most-r.Chosen)
		if s.extend(r, r.Sequence.Len()+n, step) {
			step.Decode = append(step.Decode, Row{Request: r, Tokens: n})
		}
	}
}

// single returns rows that choose one token.
func single(requests []*Request) []Row {
	rows := make([]Row, len(requests))
	for i, r := range requests {
		rows[i] = Row{Request: r, Tokens: 1}
	}
	return rows
}

// chain returns the number of tokens for which the rows take at most the bound, but at least 1. It returns no
// more than make the device idle for a small part of the time: a prompt that arrives waits for the
// end of the chain, and a row that ends leaves its place empty until then.
func (s *Scheduler) chain(rows []*Request, bound time.Duration) int {
	most := 1
	for _, r := range rows {
		most = max(most, r.Most-r.Chosen)
	}
	if s.c.Chain > 0 {
		most = min(most, s.c.Chain)
	}
	if s.idled > 0 {
		bound = min(bound, brief*s.idled)
	}
	n := 1
	for n < most && time.Duration(n+1)*s.c.Cost.Decode(len(rows), depth(rows, n)) <= bound {
		n++
	}
	return n
}

// brief is the time of a chain as a multiple of the time that the device is idle between submissions.
const brief = 50

// Idle tells how long the device was idle between two submissions.
func (s *Scheduler) Idle(d time.Duration) {
	if s.idled == 0 {
		s.idled = max(d, 1)
	}
	s.idled = max(1, s.idled+(min(d, 2*s.idled)-s.idled)/8) // a pause of the host must not count for much
}

// extendAll reports whether the pages for n tokens of all rows are available together.
func (s *Scheduler) extendAll(rows []*Request, n int) bool {
	for kind := range s.c.Store.Kinds() {
		need := 0
		for _, r := range rows {
			need += r.Sequence.Need(kind, r.Sequence.Len()+min(n, r.Most-r.Chosen))
		}
		if need > s.c.Store.Available(kind) {
			return false
		}
	}
	return true
}

// extend makes room in a request's sequence. If pages have run out, it releases idle sequences and then
// sets back requests that rank behind r, and in the end r itself.
func (s *Scheduler) extend(r *Request, end int, step *Step) bool {
	return s.makeRoom(r, step, func() error { return r.Sequence.Extend(end) })
}

// makeRoom implements extend with a function that extends the sequence.
func (s *Scheduler) makeRoom(r *Request, step *Step, extend func() error) bool {
	for {
		err := extend()
		if err == nil {
			return true
		}
		if s.reclaim() {
			continue
		}
		last := s.running[len(s.running)-1]
		if last != r {
			s.setBack(last, step)
			continue
		}
		if len(s.running) == 1 {
			s.refuse(r, ErrPages, step)
		} else {
			s.setBack(r, step)
		}
		return false
	}
}

// chunks adds chunks of prompts to the step, in the order of ranks: a prompt gets rows only if all
// before it end in the step. The chunks are computed behind the rows that decode, or with them
// in one pass, whichever computes more rows of prompts in the time that it adds.
func (s *Scheduler) chunks(prompts []*Request, step *Step) {
	prompts = slices.DeleteFunc(slices.Clone(prompts), func(r *Request) bool { return r.state != running }) // set back
	if len(prompts) == 0 {
		return
	}
	of, other := s.forms(prompts, step)
	if other.joint && s.again(prompts, step, &other) {
		of, step.Again = other, true
	}
	step.Joint = step.Joint || of.joint
	for _, c := range of.chunks {
		if c.Request.state == running && s.extend(c.Request, c.At+c.Rows, step) {
			step.Chunks = append(step.Chunks, c)
		}
	}
	step.keepJoint()
}

// retryJoint is the number of steps that were not joint because of a doubtful prediction, of which one is joint
// nevertheless.
const retryJoint = 32

// again reports whether a joint pass is to be computed although it is predicted to be slower. If a measurement
// of such a pass was disturbed, the prediction would stay for ever if none was computed again. A pass that is
// predicted to take longer than the bound gets the smallest chunk.
func (s *Scheduler) again(prompts []*Request, step *Step, pass *form) bool {
	if len(pass.chunks) == 0 && s.c.Joint >= decoding(step.Decode)+LeastChunk {
		pass.chunks = s.divide(prompts[:1], LeastChunk)
	}
	c, ok := s.c.Cost.(*Corrected)
	if !ok || len(pass.chunks) == 0 || !c.doubtful(step.Decode, pass.chunks) {
		return false
	}
	s.doubts++
	return s.doubts%retryJoint == 0
}

// form is a way to compute chunks of prompts in a step.
type form struct {
	chunks    []Chunk
	joint     bool          // in one pass with the rows of the step
	all, adds time.Duration // times of the step, and of the chunks in it
}

// faster reports whether f computes more rows of prompts than g in the time that it adds.
func (f *form) faster(g *form) bool {
	n, m := float64(rowsOf(f.chunks)), float64(rowsOf(g.chunks))
	return n > 0 && (m == 0 || n*float64(g.adds) > m*float64(f.adds))
}

// forms returns the faster form of chunks for a step, and the other one. A form without chunks cannot be
// computed.
func (s *Scheduler) forms(prompts []*Request, step *Step) (of, other form) {
	spent, _ := s.predict(step)
	limit := step.Bound
	if len(step.Decode) > 0 {
		limit = min(limit, spent+time.Duration(float64(spent)*s.c.Share))
	}
	apart, pass := form{all: spent}, form{joint: true}
	if s.joined {
		if pass.chunks = s.divide(prompts, s.room(step)); len(pass.chunks) > 0 {
			return pass, apart
		}
	}
	if !step.Joint { // drafts need a joint pass
		apart.chunks, apart.adds = s.apart(prompts, step, spent, limit)
		apart.all += apart.adds
	}
	pass.chunks, pass.all = s.joint(prompts, step, limit)
	if pass.adds = pass.all - spent; pass.faster(&apart) {
		return pass, apart
	}
	return apart, pass
}

// keepJoint makes a step that is not a joint pass for any reason one that is not joint.
func (st *Step) keepJoint() {
	drafts := slices.ContainsFunc(st.Decode, func(r Row) bool { return len(r.Draft) > 0 })
	st.Joint = st.Joint && (drafts || len(st.Chunks) > 0)
}

func rowsOf(chunks []Chunk) (n int) {
	for i := range chunks {
		n += chunks[i].Rows
	}
	return n
}

// least returns the number of rows of the smallest chunk of r.
func (s *Scheduler) least(r *Request) int {
	least := min(LeastChunk, r.left())
	if r.Reads != nil {
		least = min(least, max(0, r.Reads.From-r.Sequence.Len())+r.Reads.Most)
	}
	return least
}

// chunkOf returns the next rows of r's prompt as a chunk.
func (s *Scheduler) chunkOf(r *Request, rows int) Chunk {
	at := r.Sequence.Len()
	return Chunk{r, at, rows, at+rows == len(r.Tokens)}
}

// apart returns chunks that are computed one after another behind a step's rows, which take the time
// spent, and the time of the chunks.
func (s *Scheduler) apart(prompts []*Request, step *Step, spent, limit time.Duration) (chunks []Chunk, took time.Duration) {
	budget := s.c.Budget - len(step.Decode)
	for _, r := range prompts {
		at := r.Sequence.Len()
		rows := s.rows(r, min(budget, s.c.Chunk, r.left()), limit-spent-took)
		// The smallest chunk is permitted beyond the share, but not beyond the bound unless it
		// is all of the submission.
		if least := s.least(r); rows == 0 && len(chunks) == 0 && (spent+s.c.Cost.Prefill(at, least) <= step.Bound || len(step.Decode) == 0) {
			rows = least
		}
		if rows == 0 {
			break // later ones must not pass
		}
		c := s.chunkOf(r, rows)
		chunks, took, budget = append(chunks, c), took+s.c.Cost.Prefill(at, rows), budget-rows
		if !c.Last {
			break
		}
	}
	return chunks, took
}

// joins reports whether rows of r's prompt may be part of a pass with other rows.
func (s *Scheduler) joins(r *Request) bool { return s.c.Joint > 0 && r.Reads == nil }

// room returns the number of rows of prompts that a joint pass may have beside those of a step.
func (s *Scheduler) room(step *Step) int {
	return max(0, min(s.c.Budget, s.c.Joint)-decoding(step.Decode))
}

// joint returns the chunks that are computed in one pass with the rows of a step within a time, and the
// time of the pass. There are none if that is too short, or if the device has no such passes.
func (s *Scheduler) joint(prompts []*Request, step *Step, limit time.Duration) (chunks []Chunk, all time.Duration) {
	rows, most := step.Decode, s.room(step)
	take := func(n int) ([]Chunk, time.Duration) {
		chunks := s.divide(prompts, n)
		return chunks, s.together(rows, chunks)
	}
	limit = max(limit, s.efficient(prompts, step, most))
	sizes := s.sizes(step, most, func(n int) int { return n + LeastChunk })
	// The time grows with the rows.
	n := sort.Search(len(sizes), func(i int) bool { _, d := take(sizes[i]); return d > limit })
	if n > 0 {
		if chunks, all = take(sizes[n-1]); len(chunks) > 0 {
			return chunks, all
		}
	}
	if chunks, all = take(min(most, LeastChunk)); len(chunks) > 0 && all <= step.Bound {
		return chunks[:1], s.together(rows, chunks[:1])
	}
	return nil, 0
}

// efficientPart is the part of the best pass's rows a second that an efficient pass computes.
const efficientPart = 0.7

// efficient returns the time of the smallest pass of a step's rows with up to most rows of prompts that computes
// at least efficientPart as many rows a second as the best one within the bound. A pass that is shorter
// because of the share would keep places from rows that decode for longer than it saves them.
func (s *Scheduler) efficient(prompts []*Request, step *Step, most int) time.Duration {
	rows := step.Decode
	var times []time.Duration
	var rates []float64
	for _, n := range s.sizes(step, most, func(n int) int { return 2 * n }) {
		chunks := s.divide(prompts, n)
		d := s.together(rows, chunks)
		if d > step.Bound {
			break
		}
		times, rates = append(times, d), append(rates, float64(decoding(rows)+rowsOf(chunks))/float64(d))
	}
	for i := range rates {
		if rates[i] >= efficientPart*slices.Max(rates) {
			return times[i]
		}
	}
	return 0
}

// sizes returns numbers of rows of prompts for joint passes with a step's rows, in ascending order, up to most. If the
// device has programs for certain numbers of rows, these are the ones that fill a program; otherwise the first
// is LeastChunk, and next returns the one that follows another.
func (s *Scheduler) sizes(step *Step, most int, next func(int) int) (list []int) {
	for _, rows := range s.c.Passes {
		if n := rows - decoding(step.Decode); n >= LeastChunk && n < most {
			list = append(list, n)
		}
	}
	if len(s.c.Passes) == 0 {
		for n := LeastChunk; n < most; n = next(n) {
			list = append(list, n)
		}
	}
	if most > 0 {
		list = append(list, most)
	}
	return list
}

// divide divides n rows among the first prompts, in the order of ranks. A chunk that is not the end of a prompt has a
// multiple of LeastChunk rows, unless passes have programs for certain numbers of rows.
func (s *Scheduler) divide(prompts []*Request, n int) (chunks []Chunk) {
	for _, r := range prompts {
		rows := min(n, r.left())
		switch {
		case rows == r.left():
		case rows < LeastChunk:
			rows = 0
		case len(s.c.Passes) == 0:
			rows = rows / LeastChunk * LeastChunk
		}
		if rows <= 0 || !s.joins(r) {
			break
		}
		c := s.chunkOf(r, rows)
		chunks, n = append(chunks, c), n-rows
		if !c.Last {
			break
		}
	}
	return chunks
}

// together returns the predicted time of a pass of rows and chunks.
func (s *Scheduler) together(rows []Row, chunks []Chunk) time.Duration {
	all, heads, depth := joint(rows, chunks)
	return s.c.Cost.Joint(all, heads, depth)
}

// joint returns the number of rows of a pass of rows and chunks, the number of those that choose a token, and
// the positions that a row sees on average.
func joint(rows []Row, chunks []Chunk) (all, heads, depth int) {
	all = decoding(rows)
	heads = all
	for _, r := range rows {
		depth += (1 + len(r.Draft)) * len(r.Request.Tokens)
	}
	for i := range chunks {
		c := &chunks[i]
		all, depth = all+c.Rows, depth+c.Rows*(c.At+c.Rows/2)
		if c.Last {
			heads++
		}
	}
	return all, heads, depth / max(all, 1)
}

// rows returns the largest number of rows of a chunk of r that takes at most the given time: the
// rest of the prompt or a multiple of LeastChunk, and 0 if that is too few.
func (s *Scheduler) rows(r *Request, most int, limit time.Duration) int {
	at := r.Sequence.Len()
	if d := r.Reads; d != nil {
		most = min(most, max(0, d.From-at)+d.Most)
	}
	n := most
	if most < r.left() {
		n = most / LeastChunk * LeastChunk
	}
	for n > 0 && s.c.Cost.Prefill(at, n) > limit {
		n = (n - 1) / LeastChunk * LeastChunk
	}
	return n
}

// Prune removes the rows and chunks of requests that do not run any more, because they were set back
// or cancelled after they had been added.
func (st *Step) Prune() {
	st.Decode = slices.DeleteFunc(st.Decode, func(r Row) bool { return r.Request.state != running })
	st.Chunks = slices.DeleteFunc(st.Chunks, func(c Chunk) bool { return c.Request.state != running })
	st.keepJoint()
}

// predict returns the predicted time of a step and the part of it for the rows.
func (s *Scheduler) predict(step *Step) (all, rows time.Duration) {
	list := step.requests()
	if step.Joint {
		return s.together(step.Decode, step.Chunks), 0
	}
	if len(list) > 0 {
		rows = time.Duration(step.Chain) * s.c.Cost.Decode(len(list), depth(list, step.Chain-1))
	}
	all = rows
	for _, c := range step.Chunks {
		all += s.c.Cost.Prefill(c.At, c.Rows)
	}
	return all, rows
}

// requests returns the requests of the rows.
func (st *Step) requests() []*Request {
	list := make([]*Request, len(st.Decode))
	for i, r := range st.Decode {
		list[i] = r.Request
	}
	return list
}

// Requests returns the requests of the rows and then those of the chunks.
func (st *Step) Requests() []*Request {
	all := st.requests()
	for _, c := range st.Chunks {
		all = append(all, c.Request)
	}
	return all
}
