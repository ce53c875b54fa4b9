package openai

import (
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/pianola-engine/pianola/internal/serve/backend"
	"github.com/pianola-engine/pianola/internal/serve/engine"
	"github.com/pianola-engine/pianola/internal/serve/fields"
	"github.com/pianola-engine/pianola/internal/serve/keys"
)

// common are the fields that chat completions and completions share.
type common struct {
	model                string
	stream, includeUsage bool
	choices              int
	g                    engine.Generation
	seeded               bool
}

// The bounds of lists in requests.
const (
	maxStops    = 16
	maxStopText = 1024 // bytes
	maxBias     = 1024
	maxInt      = 1<<53 - 1 // JSON numbers above it are not exact
)

// commonFields returns the table of the shared fields. of returns the common part of a request.
func commonFields[T any](of func(*T) *common) []fields.Field[T] {
	number := func(name, doc string, least, most float64, at func(*engine.Sampling) *float64) fields.Field[T] {
		return fields.Field[T]{Name: name, Doc: doc, Read: func(t *T, v fields.Value) error {
			return v.Number(at(&of(t).g.Sampling), least, most)
		}}
	}
	ignored := func(name, why string) fields.Field[T] { return fields.Field[T]{Name: name, Doc: why} }
	return []fields.Field[T]{
		{Name: "model", Doc: "an ID or alias of `/v1/models`; optional if the service has one model", Read: func(t *T, v fields.Value) error { return v.Text(&of(t).model) }},
		{Name: "stream", Doc: "server-sent events", Read: func(t *T, v fields.Value) error { return v.Bool(&of(t).stream) }},
		{Name: "stream_options", Doc: "`include_usage`; `include_obfuscation` is ignored", Read: func(t *T, v fields.Value) error {
			return fields.Read(v, streamFields, of(t))
		}},
		{Name: "n", Doc: "1 to 16 answers", Read: func(t *T, v fields.Value) error { return v.Int(&of(t).choices, 1, maxChoices) }},
		{Name: "stop", Doc: "a text or up to 16", Read: func(t *T, v fields.Value) error { return readStop(&of(t).g.Stop, v) }},
		{Name: "seed", Doc: "an integer; answer *i* has the seed plus *i*. Without it the seed is random", Read: func(t *T, v fields.Value) error {
			var seed int
			err := v.Int(&seed, -maxInt, maxInt)
			of(t).g.Sampling.Seed, of(t).seeded = uint64(seed), err == nil
			return err
		}},
		number("temperature", "0 to 2, default 1; 0 is greedy", 0, 2, func(s *engine.Sampling) *float64 { return &s.Temperature }),
		{Name: "top_p", Doc: "0 to 1, default 1", Read: func(t *T, v fields.Value) error {
			at := &of(t).g.Sampling.TopP
			err := v.Number(at, 0, 1)
			if err == nil && *at == 0 {
				*at = 1e-9 // keeps one token, as OpenAI's 0 does; the model's 0 keeps all
			}
			return err
		}},
		{Name: "top_k", Doc: "tokens to draw from; 0 and -1 are all of them", Read: func(t *T, v fields.Value) error {
			at := &of(t).g.Sampling.TopK
			err := v.Int(at, -1, maxInt)
			*at = max(0, *at)
			return err
		}},
		number("min_p", "0 to 1, default 0", 0, 1, func(s *engine.Sampling) *float64 { return &s.MinP }),
		number("presence_penalty", "-2 to 2", -2, 2, func(s *engine.Sampling) *float64 { return &s.PresencePenalty }),
		number("frequency_penalty", "-2 to 2", -2, 2, func(s *engine.Sampling) *float64 { return &s.FrequencyPenalty }),
		number("repetition_penalty", "0.01 to 10, default 1", 0.01, 10, func(s *engine.Sampling) *float64 { return &s.RepeatPenalty }),
		{Name: "logit_bias", Doc: "up to 1,024 tokens with -100 to 100", Read: func(t *T, v fields.Value) error { return readBias(&of(t).g.Sampling, v) }},
		{Name: "ignore_eos", Doc: "goes on after the model's stop tokens", Read: func(t *T, v fields.Value) error { return v.Bool(&of(t).g.IgnoreStops) }},
		{Name: "priority", Doc: "-100 to 100, default 0; requests with larger numbers go first", Read: func(t *T, v fields.Value) error { return v.Int(&of(t).g.Priority, -100, 100) }},
		{Name: "cache_prompt", Doc: "whether the prompt's pages are shared, default true", Read: func(t *T, v fields.Value) error {
			of(t).g.CachePrompt = new(bool)
			return v.Bool(of(t).g.CachePrompt)
		}},
		{Name: "cache_salt", Doc: "pages are shared between prompts with the same salt and API key only", Read: func(t *T, v fields.Value) error { return v.Text(&of(t).g.User) }},
		ignored("user", "the output does not depend on it"),
		ignored("metadata", "nothing is stored"),
		ignored("store", "nothing is stored"),
		ignored("service_tier", "there is one tier"),
		ignored("safety_identifier", "the output does not depend on it"),
		ignored("prompt_cache_key", "prompts are found by their text"),
		ignored("prompt_cache_options", "prompts are found by their text"),
		ignored("prompt_cache_retention", "the memory decides"),
		{Name: "min_tokens", Refused: "stop tokens cannot be suppressed for a time"},
		{Name: "stop_token_ids", Refused: "use stop"},
		{Name: "guided_json", Refused: noConstraint}, {Name: "guided_regex", Refused: noConstraint}, {Name: "guided_choice", Refused: noConstraint},
		{Name: "guided_grammar", Refused: noConstraint}, {Name: "structured_outputs", Refused: noConstraint}, {Name: "grammar", Refused: noConstraint}, {Name: "json_schema", Refused: noConstraint},
	}
}

// maxChoices is the largest n.
const maxChoices = 16

// noConstraint is the reason for which fields that constrain the output are refused.
const noConstraint = "the service has no constrained decoding yet"

var streamFields = []fields.Field[common]{
	{Name: "include_usage", Doc: "a last chunk with the usage", Read: func(c *common, v fields.Value) error { return v.Bool(&c.includeUsage) }},
	{Name: "include_obfuscation", Doc: "it protects against observers of a network"},
}

// readStop reads a text or a list of texts.
func readStop(into *[]string, v fields.Value) error {
	list := []fields.Value{v}
	if v.Kind() == "a list" {
		var err error
		if list, err = v.List(maxStops); err != nil {
			return err
		}
	}
	for _, one := range list {
		var s string
		if err := one.Text(&s); err != nil {
			return err
		}
		if s == "" || len(s) > maxStopText {
			return one.Errorf("a stop text must have 1 to %d bytes", maxStopText)
		}
		*into = append(*into, s)
	}
	return nil
}

// readBias reads the biases of tokens by their ids.
func readBias(s *engine.Sampling, v fields.Value) error {
	members, err := v.Members()
	if err != nil {
		return err
	}
	if len(members) > maxBias {
		return v.Errorf("%d tokens have a bias; at most %d are allowed", len(members), maxBias)
	}
	s.LogitBias = make(map[int32]float64, len(members))
	for name, bias := range members {
		id, err := strconv.ParseInt(name, 10, 32)
		if err != nil || id < 0 {
			return v.Errorf("%.20q is not a token", name)
		}
		var f float64
		if err := bias.Number(&f, -100, 100); err != nil {
			return err
		}
		s.LogitBias[int32(id)] = f
	}
	return nil
}

// newCommon returns the defaults of OpenAI.
func newCommon() common {
	return common{choices: 1, g: engine.Generation{Sampling: engine.Sampling{Temperature: 1, TopP: 1}}}
}

// prepare checks what depends on the model, and sets what does not come from fields.
func (q *common) prepare(c *call, m engine.Model) error {
	info, s := m.Info(), &q.g.Sampling
	if !q.seeded {
		s.Seed = rand.Uint64()
	}
	if q.choices > c.o.Limits.Choices {
		return &fields.Error{Param: "n", Why: "the service gives at most " + strconv.Itoa(c.o.Limits.Choices) + " answers to a request"}
	}
	if s.LogProbs > info.MaxLogProbs {
		return &backend.Error{Status: 400, Kind: backend.Invalid, Code: "unsupported", Param: "logprobs", Message: "the model gives at most " + strconv.Itoa(max(0, info.MaxLogProbs-1)) + " alternatives"}
	}
	for id := range s.LogitBias {
		if int(id) >= info.Vocabulary {
			return &fields.Error{Param: "logit_bias", Why: "the token " + strconv.Itoa(int(id)) + " is not in the vocabulary of " + strconv.Itoa(info.Vocabulary) + " tokens"}
		}
	}
	// A key cannot find out by the time of a reply which prompts others have sent.
	salt := q.g.User
	if q.g.User = keys.Name(c.ctx); salt != "" {
		q.g.User += "\x00" + salt
	}
	if end, ok := c.ctx.Deadline(); ok {
		q.g.Within = max(time.Until(end), time.Nanosecond)
	}
	return nil
}
