package keys

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// Reason is the reason of a refusal. Its text is a value of metrics and logs.
type Reason string

// The reasons.
const (
	Missing     Reason = "missing_key"
	Unknown     Reason = "unknown_key"
	Rate        Reason = "rate"
	Concurrency Reason = "concurrency"
)

// Refusal is the error of a request that is not admitted.
type Refusal struct {
	Reason     Reason
	Key        string        // the key's name, if it is known
	RetryAfter time.Duration // when to try again; 0 if that cannot help
}

// Error describes the refusal to the client.
func (r *Refusal) Error() string {
	switch r.Reason {
	case Missing:
		return "an API key is required: send it as \"Authorization: Bearer KEY\""
	case Unknown:
		return "the API key is not valid"
	case Rate:
		return fmt.Sprintf("the API key's rate limit is reached; try again in %d s", r.seconds())
	}
	return fmt.Sprintf("too many requests of the API key are being served; try again in %d s", r.seconds())
}

// Status returns the refusal's HTTP status.
func (r *Refusal) Status() int {
	if r.Reason == Rate || r.Reason == Concurrency {
		return http.StatusTooManyRequests
	}
	return http.StatusUnauthorized
}

// SetHeader sets the header fields that belong to the refusal: Retry-After or WWW-Authenticate.
func (r *Refusal) SetHeader(h http.Header) {
	if r.Status() == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	} else {
		h.Set("Retry-After", strconv.Itoa(r.seconds()))
	}
}

// seconds returns the seconds after which to try again, at least one.
func (r *Refusal) seconds() int {
	const most = 24 * time.Hour
	return int(max(1, (min(r.RetryAfter, most)+time.Second-1)/time.Second))
}
