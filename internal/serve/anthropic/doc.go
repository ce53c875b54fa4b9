// Package anthropic serves Anthropic's Messages API: it creates messages and counts the tokens of
// their prompts. It translates between that API and the turns of the service.
//
// The package knows models only by the packages engine and turn. Authentication, limits and logs are
// the business of others.
package anthropic
