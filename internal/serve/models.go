package server

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/pianola-engine/pianola/internal/serve/backend"
	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/fleet"
	"github.com/pianola-engine/pianola/internal/serve/observe"
	"github.com/pianola-engine/pianola/table"
)

// newFleet returns the fleet of the options' models.
func (s *Server) newFleet() (err error) {
	o := s.o
	s.models, err = fleet.New(fleet.Options[engine.Model]{
		Budget: o.MemoryBudget, Keep: o.Keep, Size: o.Size, Event: s.modelEvent,
		Load: func(ctx context.Context, e fleet.Entry) (engine.Model, error) {
			m, err := o.Load(ctx, e)
			if err == nil && o.MaxTokens > 0 {
				m = &limited{m, o.MaxTokens}
			}
			return m, err
		},
	}, o.Models)
	return err
}

// modelEvent counts and logs a change of a model.
func (s *Server) modelEvent(e fleet.Event) {
	s.observer.ModelEvent(e.Entry.ID, string(e.Kind), e.Took)
	level, attrs := slog.LevelInfo, []slog.Attr{slog.String("model", e.Entry.ID), slog.Int64("bytes", e.Bytes)}
	if e.Took > 0 {
		attrs = append(attrs, slog.Float64("seconds", e.Took.Seconds()))
	}
	if e.Err != nil {
		level = slog.LevelError
		attrs = append(attrs, slog.String("error", e.Err.Error()))
	}
	s.log.LogAttrs(context.Background(), level, "model "+string(e.Kind), attrs...)
}

// state returns the state of the models for metrics, health checks and the page.
func (s *Server) state() observe.State {
	st := observe.State{MemoryBudget: s.o.MemoryBudget}
	loads := map[string]*observe.ModelState{}
	s.models.Visit(func(e fleet.Entry, m engine.Model) {
		load := observe.Load(m.Load())
		loads[e.ID] = &observe.ModelState{Load: &load, PagePositions: m.Info().PagePositions}
	})
	for _, one := range s.models.Status() {
		of := observe.ModelState{ID: one.Entry.ID, State: one.State, Bytes: one.Bytes, Required: one.Entry.Pinned, Loaders: one.Waiting}
		if l := loads[one.Entry.ID]; l != nil {
			of.Load, of.PagePositions = l.Load, l.PagePositions
		}
		st.Models = append(st.Models, of)
	}
	return st
}

// Preload loads the models that are pinned, in their order. The service is ready afterwards.
func (s *Server) Preload(ctx context.Context) error {
	for _, e := range s.o.Models {
		if !e.Pinned {
			continue
		}
		lease, err := s.models.Acquire(ctx, e.ID)
		if err != nil {
			return fmt.Errorf("serve: the model %s: %w", e.ID, err)
		}
		lease.Release()
	}
	return nil
}

// Info returns the properties of a model, if it is loaded.
func (s *Server) Info(id string) (info engine.Info, loaded bool) {
	s.models.Visit(func(e fleet.Entry, m engine.Model) {
		if e.ID == id {
			info, loaded = m.Info(), true
		}
	})
	return info, loaded
}

// table returns the dispatch table of a loaded model, or nil.
func (s *Server) table(_ context.Context, name string) (t *table.Table) {
	of, err := s.models.Resolve(name)
	if err != nil || s.o.Table == nil {
		return nil
	}
	s.models.Visit(func(e fleet.Entry, m engine.Model) {
		if l, ok := m.(*limited); ok {
			m = l.Model
		}
		if e.ID == of.ID {
			t = s.o.Table(m)
		}
	})
	return t
}

// catalog gives handlers the models of the service.
type catalog struct{ s *Server }

var _ backend.Models = catalog{}

// Acquire returns a model for use; it loads the model if necessary.
func (c catalog) Acquire(ctx context.Context, name string) (engine.Model, string, func(), error) {
	lease, err := c.s.models.Acquire(ctx, name)
	if err != nil {
		return nil, "", nil, err
	}
	return lease.Model(), lease.Entry().ID, lease.Release, nil
}

// List returns the models in the order of the options.
func (c catalog) List() []backend.ModelInfo {
	contexts := map[string]int{}
	c.s.models.Visit(func(e fleet.Entry, m engine.Model) { contexts[e.ID] = m.Info().Context })
	var all []backend.ModelInfo
	for _, e := range c.s.o.Models {
		context, loaded := contexts[e.ID]
		info := backend.ModelInfo{ID: e.ID, Aliases: e.Aliases, Loaded: loaded, Context: context}
		if c.s.o.Created != nil {
			info.Created = c.s.o.Created(e)
		}
		all = append(all, info)
	}
	return all
}

// limits returns the bounds of handlers.
func (s *Server) limits() backend.Limits {
	return backend.Limits{Body: s.o.MaxBody, Write: s.o.WriteTimeout}
}

// limited is a model that bounds the tokens of an answer.
type limited struct {
	engine.Model
	tokens int
}

// Generate generates at most the service's number of tokens.
func (m *limited) Generate(ctx context.Context, g engine.Generation, yield func(engine.Token) bool) (engine.Result, error) {
	if g.MaxTokens == 0 || g.MaxTokens > m.tokens {
		g.MaxTokens = m.tokens
	}
	return m.Model.Generate(ctx, g, yield)
}
