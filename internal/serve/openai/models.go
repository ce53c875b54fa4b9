package openai

import (
	"github.com/pianola-engine/pianola/internal/serve/backend"
	"github.com/pianola-engine/pianola/internal/serve/fleet"
)

// modelReply is a model in the form of OpenAI.
type modelReply struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	Owner   string   `json:"owned_by"`
	Aliases []string `json:"aliases,omitempty"`
	Loaded  bool     `json:"loaded"`
	Context int      `json:"max_model_len,omitempty"`
}

func modelOf(m *backend.ModelInfo) modelReply {
	of := modelReply{ID: m.ID, Object: "model", Owner: "pianola", Aliases: m.Aliases, Loaded: m.Loaded, Context: m.Context}
	if !m.Created.IsZero() {
		of.Created = m.Created.Unix()
	}
	return of
}

// models serves GET /v1/models.
func (c *call) models() error {
	list := []modelReply{}
	for _, m := range c.o.Models.List() {
		list = append(list, modelOf(&m))
	}
	return c.reply(map[string]any{"object": "list", "data": list})
}

// model serves GET /v1/models/{id...}.
func (c *call) model() error {
	for _, m := range c.o.Models.List() {
		if m.Names(c.r.PathValue("id")) {
			return c.reply(modelOf(&m))
		}
	}
	return fleet.ErrUnknown
}
