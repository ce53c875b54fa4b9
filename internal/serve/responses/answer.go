package responses

import (
	"strings"

	"github.com/pianola-engine/pianola/internal/serve/backend"
	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/turn"
)

// event is an event of a stream.
type event struct {
	Type           string     `json:"type"`
	SequenceNumber int        `json:"sequence_number"`
	Response       *Response  `json:"response,omitempty"`
	OutputIndex    *int       `json:"output_index,omitempty"`
	Item           *Item      `json:"item,omitempty"`
	ItemID         string     `json:"item_id,omitempty"`
	ContentIndex   *int       `json:"content_index,omitempty"`
	Part           *Text      `json:"part,omitempty"`
	Delta          *string    `json:"delta,omitempty"`
	Text           *string    `json:"text,omitempty"`
	LogProbs       *[]LogProb `json:"logprobs,omitempty"`
	Name           string     `json:"name,omitempty"`
	Arguments      *string    `json:"arguments,omitempty"`
	Code           string     `json:"code,omitempty"`
	Message        string     `json:"message,omitempty"`
	Param          *null      `json:"param,omitempty"`
}

// null is the JSON null of a field that is not left out.
type null struct{}

// MarshalJSON implements json.Marshaler.
func (null) MarshalJSON() ([]byte, error) { return []byte("null"), nil }

// answer builds a response from the events of a turn, and sends the events of its stream.
type answer struct {
	response *Response
	// send sends an event. It does nothing for a response that is not streamed.
	send func(*event) error
	// probs returns the log-probabilities of tokens; nil without any.
	probs func([]engine.Token) []LogProb

	sequence int
	begun    bool
	call     int  // index of the open call among the calls
	calls    int  // number of calls
	open     bool // the last item of the output is in progress

	// said is the text or the arguments of the open item.
	said strings.Builder
}

// begin sends the events that precede the output, once.
func (a *answer) begin() error {
	if a.begun {
		return nil
	}
	a.begun = true
	if err := a.put(&event{Type: "response.created", Response: a.response}); err != nil {
		return err
	}
	return a.put(&event{Type: "response.in_progress", Response: a.response})
}

// put sends an event with the next sequence number.
func (a *answer) put(e *event) error {
	e.SequenceNumber = a.sequence
	a.sequence++
	return a.send(e)
}

// add adds an event of the turn.
func (a *answer) add(e turn.Event) error {
	if err := a.begin(); err != nil {
		return err
	}
	switch d := e.Delta; {
	case d.Reasoning != "":
		return a.text(reasoningItem, d.Reasoning, nil)
	case d.Content != "":
		return a.text(messageItem, d.Content, e.Tokens)
	case d.Call != nil:
		return a.arguments(d.Call)
	}
	return nil
}

// at returns an event about the last item of the output.
func (a *answer) at(kind string) *event {
	index := len(a.response.Output) - 1
	return &event{Type: kind, OutputIndex: &index, ItemID: a.response.Output[index].ID}
}

// part returns an event about the part of the last item of the output.
func (a *answer) part(kind string) *event {
	e := a.at(kind)
	e.ContentIndex = new(int)
	return e
}

// last returns the last item of the output.
func (a *answer) last() *Item { return &a.response.Output[len(a.response.Output)-1] }

// text adds a text to a message or to reasoning.
func (a *answer) text(kind, delta string, tokens []engine.Token) error {
	if !a.open || a.last().Type != kind {
		i := Item{Type: kind, ID: itemID(kind)}
		part := Text{Type: "reasoning_text"}
		if kind == messageItem {
			i.Role, part.Type = "assistant", "output_text"
		}
		if err := a.next(i); err != nil {
			return err
		}
		a.last().Text = []Text{part}
		e := a.part("response.content_part.added")
		e.Part = &part
		if err := a.put(e); err != nil {
			return err
		}
	}
	a.said.WriteString(delta)
	e := a.part("response.reasoning_text.delta")
	if kind == messageItem {
		e.Type = "response.output_text.delta"
		probs := []LogProb{}
		if a.probs != nil {
			probs = append(probs, a.probs(tokens)...)
		}
		t := &a.last().Text[0]
		t.LogProbs = append(t.LogProbs, probs...)
		e.LogProbs = &probs
	}
	e.Delta = &delta
	return a.put(e)
}

// arguments adds a piece of a call.
func (a *answer) arguments(d *engine.CallDelta) error {
	if !a.open || a.last().Type != callItem || a.call != d.Index {
		i := Item{Type: callItem, ID: itemID(callItem), CallID: d.ID, Name: d.Name}
		if i.CallID == "" {
			i.CallID = backend.NewID("call")
		}
		if err := a.next(i); err != nil {
			return err
		}
		a.call = d.Index
		a.calls++
	}
	if d.Arguments == "" {
		return nil
	}
	a.said.WriteString(d.Arguments)
	e := a.at("response.function_call_arguments.delta")
	e.Delta = &d.Arguments
	return a.put(e)
}

// next ends the open item, and begins another one.
func (a *answer) next(i Item) error {
	if err := a.close(completed); err != nil {
		return err
	}
	i.Status = inProgress
	a.response.Output = append(a.response.Output, i)
	a.open = true
	e := a.at("response.output_item.added")
	e.Item, e.ItemID = &i, ""
	return a.put(e)
}

// close ends the open item.
func (a *answer) close(status string) error {
	if !a.open {
		return nil
	}
	i := a.seal(status)
	if i.Type == callItem {
		e := a.at("response.function_call_arguments.done")
		e.Name, e.Arguments = i.Name, &i.Arguments
		if err := a.put(e); err != nil {
			return err
		}
	} else {
		t := &i.Text[0]
		e := a.part("response.reasoning_text.done")
		if i.Type == messageItem {
			e.Type = "response.output_text.done"
			probs := append([]LogProb{}, t.LogProbs...)
			e.LogProbs = &probs
		}
		e.Text = &t.Text
		if err := a.put(e); err != nil {
			return err
		}
		e = a.part("response.content_part.done")
		e.Part = t
		if err := a.put(e); err != nil {
			return err
		}
	}
	e := a.at("response.output_item.done")
	e.Item, e.ItemID = i, ""
	return a.put(e)
}

// seal gives the open item its status, and the text or the arguments that have come.
func (a *answer) seal(status string) *Item {
	i := a.last()
	i.Status = status
	if i.Type == callItem {
		i.Arguments = a.said.String()
	} else {
		i.Text[0].Text = a.said.String()
	}
	a.said.Reset()
	a.open = false
	return i
}

// end ends the response. Nothing is sent after it but the event of finish.
func (a *answer) end(reason engine.Reason, u turn.Usage, now int64) error {
	if len(a.response.Output) == 0 {
		if err := a.text(messageItem, "", nil); err != nil {
			return err
		}
	}
	status := completed
	if reason == engine.Length {
		status = incomplete
		a.response.IncompleteDetails = &IncompleteDetails{Reason: "max_output_tokens"}
	} else {
		a.response.CompletedAt = &now
	}
	if err := a.close(status); err != nil {
		return err
	}
	a.response.Status = status
	a.response.Usage = usage(u)
	return nil
}

// finish sends the last event.
func (a *answer) finish() error {
	return a.put(&event{Type: "response." + a.response.Status, Response: a.response})
}

// fail ends a stream with an error.
func (a *answer) fail(f Failure) error {
	if err := a.begin(); err != nil {
		return err
	}
	if a.open {
		a.seal(incomplete)
	}
	a.response.Status, a.response.Error = failed, &f
	if err := a.put(&event{Type: "error", Code: f.Code, Message: f.Message, Param: &null{}}); err != nil {
		return err
	}
	return a.finish()
}

// usage returns the tokens of a response.
func usage(t turn.Usage) *Usage {
	u := &Usage{InputTokens: t.Prompt, OutputTokens: t.Generated, TotalTokens: t.Prompt + t.Generated}
	u.InputTokensDetails.CachedTokens = t.Cached
	u.OutputTokensDetails.ReasoningTokens = t.Reasoning
	return u
}
