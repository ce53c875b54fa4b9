package responses

import (
	"github.com/pianola-engine/pianola/internal/serve/fields"
)

// param is an item of the input while it is read.
type param struct {
	Item
	content bool // a reasoning item has its text, not only a summary
}

// items returns the input of a request, a text or a list of items. find returns an item of a stored
// response.
func (r *request) items(find func(id string) (Item, bool)) ([]Item, error) {
	v := r.input
	switch {
	case v.Null():
		return nil, &fields.Error{Param: "input", Why: "an input is required"}
	case v.Kind() == "a string":
		i := Item{Type: messageItem, ID: itemID(messageItem), Status: completed, Role: "user", Text: []Text{{Type: "input_text"}}}
		return []Item{i}, v.Text(&i.Text[0].Text)
	}
	list, err := v.List(maxItems)
	items := make([]Item, 0, len(list))
	for _, one := range list {
		i, err := readItem(one, find)
		if err != nil {
			return nil, err
		}
		items = append(items, i)
	}
	return items, err
}

// readItem reads an item.
func readItem(v fields.Value, find func(id string) (Item, bool)) (Item, error) {
	members, err := v.Members()
	if err != nil {
		return Item{}, err
	}
	p := param{Item: Item{Type: messageItem, Status: completed}}
	if of := members["type"]; !of.Null() {
		if err := of.Text(&p.Type); err != nil {
			return Item{}, err
		}
	}
	table, ok := itemFields[p.Type]
	if !ok {
		return Item{}, members["type"].Errorf("items of type %.80q are not supported", p.Type)
	}
	if err := fields.Read(v, table, &p); err != nil {
		return Item{}, err
	}
	if p.Type == referenceItem {
		if i, ok := find(p.ID); ok {
			return i, nil
		}
		return Item{}, v.Errorf("no stored response has the item %.80q; send the item itself", p.ID)
	}
	if p.ID == "" {
		p.ID = itemID(p.Type)
	}
	return p.Item, p.check(v)
}

// check returns the first fault of an item.
func (p *param) check(v fields.Value) error {
	for _, f := range []struct {
		name string
		bad  bool
	}{
		{"role", p.Type == messageItem && p.Role == ""},
		{"content", p.Type == messageItem && p.Text == nil},
		{"call_id", (p.Type == callItem || p.Type == outputItem) && p.CallID == ""},
		{"name", p.Type == callItem && p.Name == ""},
		{"output", p.Type == outputItem && p.Text == nil},
	} {
		if f.bad {
			return &fields.Error{Param: v.Path + "." + f.name, Why: "an item of type " + p.Type + " needs this field"}
		}
	}
	if p.Role == "assistant" && p.Plain {
		p.Text[0].Type = "output_text"
	}
	p.Plain = p.Plain && p.Type == outputItem
	return nil
}

// The fields that items of several types have.
var (
	typeField   = fields.Field[param]{Name: "type", Doc: "read before the other fields"}
	idField     = fields.Field[param]{Name: "id", Read: func(p *param, v fields.Value) error { return v.Text(&p.ID) }}
	statusField = fields.Field[param]{Name: "status", Read: func(p *param, v fields.Value) error {
		return v.Choice(&p.Status, inProgress, completed, incomplete)
	}}
	callField = fields.Field[param]{Name: "call_id", Read: func(p *param, v fields.Value) error { return v.Text(&p.CallID) }}
)

// noPlace explains why a field is ignored.
const noPlace = "chat templates have no place for it"

// itemFields are the fields of the items of the input by their type.
var itemFields = map[string][]fields.Field[param]{
	messageItem: {
		typeField, idField, statusField,
		{Name: "role", Doc: "user, assistant, system, or developer, which means system", Read: func(p *param, v fields.Value) error {
			err := v.Choice(&p.Role, "user", "assistant", "system", "developer")
			if p.Role == "developer" {
				p.Role = "system"
			}
			return err
		}},
		{Name: "content", Doc: "a text or parts", Read: readContent},
		{Name: "phase", Doc: noPlace},
	},
	reasoningItem: {
		typeField, idField, statusField,
		{Name: "content", Read: func(p *param, v fields.Value) error {
			p.content = true
			return readContent(p, v)
		}},
		{Name: "summary", Doc: "used without a content", Read: func(p *param, v fields.Value) error {
			if p.content {
				return nil
			}
			return readContent(p, v)
		}},
		{Name: "encrypted_content", Refused: "reasoning is not encrypted here"},
	},
	callItem: {
		typeField, idField, statusField, callField,
		{Name: "name", Read: func(p *param, v fields.Value) error { return v.Text(&p.Name) }},
		{Name: "arguments", Read: func(p *param, v fields.Value) error { return v.Text(&p.Arguments) }},
		{Name: "caller", Doc: noPlace},
		{Name: "namespace", Doc: noPlace},
	},
	outputItem: {
		typeField, idField, statusField, callField,
		{Name: "output", Doc: "a text or parts", Read: readContent},
		{Name: "name", Doc: "the call has it"},
		{Name: "caller", Doc: noPlace},
		{Name: "namespace", Doc: noPlace},
	},
	referenceItem: {typeField, idField},
}

// readContent reads a text or a list of parts.
func readContent(p *param, v fields.Value) error {
	if v.Kind() == "a string" {
		p.Plain, p.Text = true, []Text{{Type: "input_text"}}
		return v.Text(&p.Text[0].Text)
	}
	list, err := v.List(maxParts)
	p.Text = make([]Text, 0, len(list))
	for _, one := range list {
		kind, err := typeOf(one)
		if err != nil {
			return err
		}
		t := Text{Type: kind}
		switch {
		case p.Type == reasoningItem && (kind == "reasoning_text" || kind == "summary_text"):
			t.Type = "reasoning_text"
		case p.Type != reasoningItem && (kind == "input_text" || kind == "output_text" || kind == "refusal"):
		default:
			return &fields.Error{Param: one.Path + ".type", Why: "parts of this type are not supported here"}
		}
		if err := fields.Read(one, partFields, &t); err != nil {
			return err
		}
		p.Text = append(p.Text, t)
	}
	return err
}

// partFields are the fields of a part.
var partFields = []fields.Field[Text]{
	{Name: "type", Doc: "`input_text`, `output_text` or `refusal`, and of reasoning `reasoning_text` or `summary_text`; it is read before the other fields"},
	{Name: "text", Read: func(t *Text, v fields.Value) error { return v.Text(&t.Text) }},
	{Name: "refusal", Read: func(t *Text, v fields.Value) error { return v.Text(&t.Text) }},
	{Name: "annotations", Doc: noPlace},
	{Name: "logprobs", Doc: noPlace},
}
