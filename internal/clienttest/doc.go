// Package clienttest tests the service with clients that others write, unchanged: the Go module
// openai-go, and the npm packages openai, ai with @ai-sdk/openai-compatible, and @anthropic-ai/sdk. It
// also checks that replies have exactly the form that the types of openai-go declare, and the scenarios
// of Open Responses. It is a module of its own, so that programs that import pianola do not depend on
// the clients. `make clients` runs it.
package clienttest
