package responses

import "github.com/pianola-engine/pianola/internal/serve/backend"

// Response is a response. Its fields are those of OpenAI's Responses API and of Open Responses.
type Response struct {
	ID                 string             `json:"id"`
	Object             string             `json:"object"`
	CreatedAt          int64              `json:"created_at"`
	CompletedAt        *int64             `json:"completed_at"`
	Status             string             `json:"status"`
	Background         bool               `json:"background"`
	Error              *Failure           `json:"error"`
	IncompleteDetails  *IncompleteDetails `json:"incomplete_details"`
	Instructions       *string            `json:"instructions"`
	MaxOutputTokens    *int               `json:"max_output_tokens"`
	MaxToolCalls       *int               `json:"max_tool_calls"`
	Model              string             `json:"model"`
	Output             []Item             `json:"output"`
	ParallelToolCalls  bool               `json:"parallel_tool_calls"`
	PreviousResponseID *string            `json:"previous_response_id"`
	PresencePenalty    float64            `json:"presence_penalty"`
	FrequencyPenalty   float64            `json:"frequency_penalty"`
	PromptCacheKey     *string            `json:"prompt_cache_key"`
	Reasoning          Reasoning          `json:"reasoning"`
	SafetyIdentifier   *string            `json:"safety_identifier"`
	ServiceTier        string             `json:"service_tier"`
	Store              bool               `json:"store"`
	Temperature        float64            `json:"temperature"`
	Text               TextFormat         `json:"text"`
	ToolChoice         string             `json:"tool_choice"`
	Tools              []function         `json:"tools"`
	TopLogProbs        int                `json:"top_logprobs"`
	TopP               float64            `json:"top_p"`
	Truncation         string             `json:"truncation"`
	Usage              *Usage             `json:"usage"`
	User               *string            `json:"user,omitempty"`
	Metadata           map[string]string  `json:"metadata"`
}

// The values of Response.Status and Item.Status.
const (
	inProgress = "in_progress"
	completed  = "completed"
	incomplete = "incomplete"
	failed     = "failed"
)

// Failure is the error of a failed response.
type Failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// IncompleteDetails has the reason for which a response is incomplete.
type IncompleteDetails struct {
	Reason string `json:"reason"`
}

// Reasoning is the configuration of reasoning.
type Reasoning struct {
	Effort  *string `json:"effort"`
	Summary *string `json:"summary"`
}

// TextFormat is the form of the output text.
type TextFormat struct {
	Format struct {
		Type string `json:"type"`
	} `json:"format"`
}

// Usage are the tokens of a response.
type Usage struct {
	InputTokens        int `json:"input_tokens"`
	InputTokensDetails struct {
		CachedTokens     int `json:"cached_tokens"`
		CacheWriteTokens int `json:"cache_write_tokens"` // OpenAI bills these; 0 here
	} `json:"input_tokens_details"`
	OutputTokens        int `json:"output_tokens"`
	OutputTokensDetails struct {
		ReasoningTokens int `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	TotalTokens int `json:"total_tokens"`
}

// response returns the response to a request before the model has answered.
func (r *request) response(now int64) *Response {
	p := &Response{
		ID: backend.NewID("resp"), Object: "response", CreatedAt: now, Status: inProgress,
		Instructions: r.instructions, MaxOutputTokens: r.maxTokens, MaxToolCalls: r.maxCalls,
		Model: r.model, Output: []Item{}, ParallelToolCalls: r.parallel, PreviousResponseID: r.previous,
		PresencePenalty: r.presence, FrequencyPenalty: r.frequency, PromptCacheKey: r.promptCache,
		Reasoning: Reasoning{r.effort, r.summary}, SafetyIdentifier: r.safety, ServiceTier: "default",
		Store: r.store, Temperature: r.temperature, ToolChoice: r.toolChoice, Tools: r.tools,
		TopLogProbs: r.topLogProbs, TopP: r.topP, Truncation: "disabled", User: r.user, Metadata: r.metadata,
	}
	p.Text.Format.Type = "text"
	if p.Tools == nil {
		p.Tools = []function{}
	}
	return p
}
