package main

import (
	"fmt"

	"github.com/pianola-engine/pianola/arch"
)

// infoExperts describes the experts of a model.
type infoExperts struct {
	Layers    int    `json:"layers"` // layers with experts
	Count     int    `json:"count"`  // experts of a layer
	Used      int    `json:"used"`   // experts that a position chooses
	Width     int    `json:"width"`  // feed-forward width of an expert
	Scores    string `json:"scores"` // "softmax" or "sigmoid"
	Biased    bool   `json:"biased"` // the choice adds biases to the scores
	Groups    int    `json:"groups,omitempty"`
	TopGroups int    `json:"top_groups,omitempty"` // groups that a position chooses
	Shared    int    `json:"shared,omitempty"`     // width of the expert that every position uses
}

// describeExperts returns the description of a model's experts, or nil if it has none.
func describeExperts(c *arch.Config) *infoExperts {
	e := &c.Experts
	if e.Count == 0 {
		return nil
	}
	x := &infoExperts{
		Count: e.Count, Used: e.Used, Width: e.FF, Scores: "softmax", Biased: e.RankBias, Groups: e.Groups, TopGroups: e.TopGroups, Shared: e.SharedFF,
	}
	if e.Sigmoid {
		x.Scores = "sigmoid"
	}
	for i := range c.Layer {
		if c.Layer[i].Sparse {
			x.Layers++
		}
	}
	return x
}

// String returns the description as a text of one line.
func (x *infoExperts) String() string {
	text := fmt.Sprintf("%d of width %d in %d layers, %d chosen by %s", x.Count, x.Width, x.Layers, x.Used, x.Scores)
	if x.Biased {
		text += " and bias"
	}
	if x.Groups > 0 {
		text += fmt.Sprintf(" from %d of %d groups", x.TopGroups, x.Groups)
	}
	if x.Shared > 0 {
		text += fmt.Sprintf(", a shared one of width %d", x.Shared)
	}
	return text
}
