// Package observe tells operators what a service does: metrics for Prometheus, traces and metrics for
// OpenTelemetry, structured logs, health checks and profiles.
//
// An Observer wraps the service's handler. It gives each request an id, follows it from its arrival to
// its end, and counts exactly one outcome for it: done, cancelled or failed. Handlers add what only
// they know, such as the model and the number of tokens, by the Request in the context.
//
// All counters have one lock, so that every page of metrics is consistent: the requests received are
// the requests done, cancelled, failed and in progress.
//
// Nothing here writes what clients send, except the id of a request after a check of its characters.
// Logs, metrics and traces hold no prompt, no generated text, no header field and no API key.
package observe
