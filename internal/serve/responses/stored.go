package responses

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/pianola-engine/pianola/internal/serve/backend"
	"github.com/pianola-engine/pianola/internal/serve/fields"
	"github.com/pianola-engine/pianola/internal/serve/keys"
)

// get serves GET /v1/responses/{id}.
func (h *Handler) get(w http.ResponseWriter, q *http.Request) {
	r := h.find(w, q)
	switch {
	case r == nil:
	case q.URL.Query().Get("stream") == "true":
		fail(w, q.Context(), &fields.Error{Param: "stream", Why: "a stored response cannot be streamed"})
	default:
		reply(w, r.response)
	}
}

// find returns the response that a request names. It answers the request if there is none.
func (h *Handler) find(w http.ResponseWriter, q *http.Request) *stored {
	r := h.store.find(keys.Name(q.Context()), q.PathValue("id"))
	if r == nil {
		fail(w, q.Context(), errNotStored)
	}
	return r
}

// errNotStored is the error of a response that does not exist any more, or is another key's.
var errNotStored = &backend.Error{
	Status: http.StatusNotFound, Kind: backend.Invalid, Code: "response_not_found",
	Message: "there is no such response: responses are kept in memory, and only for a time",
}

// deleted is the reply to the deletion of a response.
type deleted struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Deleted bool   `json:"deleted"`
}

// delete serves DELETE /v1/responses/{id}.
func (h *Handler) delete(w http.ResponseWriter, q *http.Request) {
	id := q.PathValue("id")
	if !h.store.delete(keys.Name(q.Context()), id) {
		fail(w, q.Context(), errNotStored)
		return
	}
	reply(w, deleted{id, "response", true})
}

// Page is a part of a list of items.
type Page struct {
	Object  string `json:"object"`
	Data    []Item `json:"data"`
	FirstID string `json:"first_id"`
	LastID  string `json:"last_id"`
	HasMore bool   `json:"has_more"`
}

// The number of items of a page.
const usualPage, maxPage = 20, 100

// inputItems serves GET /v1/responses/{id}/input_items: the input of the request itself, without that of
// the responses before it.
func (h *Handler) inputItems(w http.ResponseWriter, q *http.Request) {
	r := h.find(w, q)
	if r == nil {
		return
	}
	p, err := page(r.input, q.URL.Query())
	if err != nil {
		fail(w, q.Context(), err)
		return
	}
	reply(w, p)
}

// page returns the page of items that a query asks for: the last ones first, unless the order is asc.
func page(items []Item, query url.Values) (*Page, error) {
	items = slices.Clone(items)
	switch query.Get("order") {
	case "", "desc":
		slices.Reverse(items)
	case "asc":
	default:
		return nil, &fields.Error{Param: "order", Why: "want asc or desc"}
	}
	if after := query.Get("after"); after != "" {
		n := slices.IndexFunc(items, func(i Item) bool { return i.ID == after })
		if n < 0 {
			return nil, &fields.Error{Param: "after", Why: "the input has no such item"}
		}
		items = items[n+1:]
	}
	most := usualPage
	if limit := query.Get("limit"); limit != "" {
		var err error
		if most, err = strconv.Atoi(limit); err != nil || most < 1 || most > maxPage {
			return nil, &fields.Error{Param: "limit", Why: "want a number from 1 to " + strconv.Itoa(maxPage)}
		}
	}
	p := &Page{Object: "list", Data: items[:min(most, len(items))], HasMore: len(items) > most}
	if n := len(p.Data); n > 0 {
		p.FirstID, p.LastID = p.Data[0].ID, p.Data[n-1].ID
	}
	return p, nil
}

// fail answers a request with an error, and reports it.
func fail(w http.ResponseWriter, ctx context.Context, err error) {
	e := backend.ErrorOf(err)
	e.Report(ctx)
	WriteError(w, e)
}

// problem is the reply of a request that has failed.
type problem struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	} `json:"error"`
}

// WriteError writes an error in OpenAI's form.
func WriteError(w http.ResponseWriter, e *backend.Error) {
	var p problem
	p.Error.Message, p.Error.Type = e.Error(), string(e.Kind)
	if e.Param != "" {
		p.Error.Param = &e.Param
	}
	if e.Code != "" {
		p.Error.Code = &e.Code
	}
	e.SetHeader(w.Header())
	send(w, e.Status, p)
}

// reply answers a request.
func reply(w http.ResponseWriter, v any) { send(w, http.StatusOK, v) }

// send writes JSON.
func send(w http.ResponseWriter, status int, v any) {
	if err := backend.Send(w, status, v); err != nil { // the types of this package have a JSON form
		panic(err)
	}
}
