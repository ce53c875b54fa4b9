// Package responses serves OpenAI's Responses API: it creates, returns and deletes responses, and
// lists their input. Responses are kept in memory, within a bound, for previous_response_id.
//
// The package knows models only by the packages engine and turn. Authentication, limits and logs are
// the business of others.
package responses
