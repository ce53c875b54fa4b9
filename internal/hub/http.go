package hub

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	maxRedirects = 10
	maxJSON      = 32 << 20 // bytes of one answer of the API
	maxMessage   = 200      // bytes of a server's message that an error shows
)

// session is the connection of a Client to its server.
type session struct {
	*Client
	base     *url.URL
	http     *http.Client
	slots    chan struct{} // has one element for each open connection
	answered atomic.Bool   // the server has answered once
}

func (c *Client) session() (*session, error) {
	base, err := c.endpoint()
	if err != nil {
		return nil, err
	}
	n := cmp.Or(c.Connections, 8)
	transport := c.transport
	if transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.MaxIdleConnsPerHost = n
		// HTTP/2 would send all ranges through one TCP connection.
		t.Protocols = new(http.Protocols)
		t.Protocols.SetHTTP1(true)
		transport = t
	}
	keep := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &session{Client: c, base: base, http: &http.Client{Transport: transport, CheckRedirect: keep}, slots: make(chan struct{}, n)}, nil
}

// temporary is an error after which the same request may succeed.
type temporary struct {
	err         error
	after       time.Duration // the pause that the server asks for
	unreachable bool          // no connection was made
}

func (t *temporary) Error() string { return t.err.Error() }
func (t *temporary) Unwrap() error { return t.err }

var errStalled = errors.New("the server sends nothing")

// do sends a request and follows redirects, for HEAD until one has the header X-Linked-Etag. Only requests to the endpoint's origin have the token,
// and none does after a redirect to another origin. The body ends with an error when no byte comes
// for a while.
func (s *session) do(ctx context.Context, method string, u *url.URL, ranges string) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	stall := cmp.Or(s.Stall, 30*time.Second)
	timer := time.AfterFunc(stall, func() { cancel(errStalled) })
	stop := func() { timer.Stop(); cancel(nil) }
	home := true
	for range maxRedirects {
		home = home && sameOrigin(u, s.base)
		resp, err := s.send(ctx, method, u, ranges, home)
		if err != nil {
			stop()
			return nil, err
		}
		s.answered.Store(true)
		next, err := redirect(resp)
		if err == nil && (next == nil || method == http.MethodHead && resp.Header.Get(linkedHash) != "") {
			resp.Body = &watchedBody{ReadCloser: resp.Body, ctx: ctx, timer: timer, stall: stall, stop: stop}
			return resp, nil
		}
		resp.Body.Close()
		if err != nil {
			stop()
			return nil, err
		}
		u = next
	}
	stop()
	return nil, fmt.Errorf("more than %d redirects", maxRedirects)
}

// send sends one request.
func (s *session) send(ctx context.Context, method string, u *url.URL, ranges string, home bool) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "pianola")
	req.Header.Set("Accept-Encoding", "identity") // ranges are those of the file
	if ranges != "" {
		req.Header.Set("Range", ranges)
	}
	if home && s.Token != "" {
		req.Header.Set("Authorization", "Bearer "+s.Token)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, networkError(ctx, u, err)
	}
	return resp, nil
}

// networkError describes a request without an answer. The URL of the request is left out: that of a
// redirect may contain a signature.
func networkError(ctx context.Context, u *url.URL, err error) error {
	if cause := context.Cause(ctx); cause != nil && cause != errStalled {
		return cause
	} else if cause != nil {
		return &temporary{err: fmt.Errorf("%s: %w", u.Host, cause)}
	}
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok || strings.Contains(err.Error(), "invalid header field value") {
		return fmt.Errorf("%s: %w", u.Host, err)
	}
	dial, ok := errors.AsType[*net.OpError](err)
	_, dns := errors.AsType[*net.DNSError](err)
	return &temporary{err: fmt.Errorf("%s: %w", u.Host, err), unreachable: dns || ok && dial.Op == "dial"}
}

// sameOrigin reports whether two addresses have the same scheme, host and port.
func sameOrigin(a, b *url.URL) bool {
	port := func(u *url.URL) string {
		if p := u.Port(); p != "" || u.Scheme == "http" {
			return cmp.Or(p, "80")
		}
		return "443"
	}
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}

// redirect returns the target of a redirect, or nil for another answer.
func redirect(resp *http.Response) (*url.URL, error) {
	switch resp.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
	default:
		return nil, nil
	}
	from := resp.Request.URL
	to, err := resp.Location()
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: a redirect has no valid target", from.Host)
	case to.Host == "" || to.User != nil || to.Scheme != "https" && to.Scheme != "http":
		return nil, fmt.Errorf("%s: a redirect has a target that is not accepted", from.Host)
	case from.Scheme == "https" && to.Scheme != "https":
		return nil, fmt.Errorf("%s: a redirect leaves https", from.Host)
	}
	return to, nil
}

// watchedBody is the body of an answer. Reading it restarts the timer that cancels ctx.
type watchedBody struct {
	io.ReadCloser
	ctx   context.Context
	timer *time.Timer
	stall time.Duration
	stop  func()
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.timer.Reset(b.stall)
	}
	if err != nil && err != io.EOF {
		if cause := context.Cause(b.ctx); cause != nil {
			err = cause
		}
		err = &temporary{err: fmt.Errorf("the connection broke: %w", err)}
	}
	return n, err
}

func (b *watchedBody) Close() error {
	b.stop()
	return b.ReadCloser.Close()
}

// check returns the error that an answer stands for, or nil.
func (s *session) check(resp *http.Response) error {
	code := resp.StatusCode
	if code == http.StatusOK || code == http.StatusPartialContent {
		return nil
	}
	text := "the server answers " + strconv.Itoa(code)
	if message := resp.Header.Get("X-Error-Message"); message != "" {
		text += fmt.Sprintf(" (%.*q)", maxMessage, message)
	}
	if !sameOrigin(resp.Request.URL, s.base) {
		// A storage server has no repositories. Its links expire, and the next attempt gets a new one.
		if code == http.StatusRequestedRangeNotSatisfiable {
			return fail(resp.Request.URL.Host+": "+text, ErrContent)
		}
		return &temporary{err: errors.New(resp.Request.URL.Host + ": " + text), after: retryAfter(resp)}
	}
	reason := resp.Header.Get("X-Error-Code")
	switch {
	case code == http.StatusTooManyRequests, code == http.StatusRequestTimeout, code >= 500:
		return &temporary{err: errors.New(text), after: retryAfter(resp)}
	case reason == "GatedRepo":
		return fail("access requires accepting the repository's terms on its page, and a token of that account in HF_TOKEN", ErrGated)
	case code == http.StatusUnauthorized && s.Token == "":
		return fail("the repository does not exist, or it is private or gated and requires a token in HF_TOKEN", ErrGated, ErrNotFound)
	case code == http.StatusUnauthorized && reason == "RepoNotFound":
		return fail("the repository does not exist, or the token does not give access to it", ErrGated, ErrNotFound)
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return fail(text+": the token does not give access", ErrGated)
	case code == http.StatusNotFound && reason == "RevisionNotFound":
		return fail("the repository has no such revision", ErrNotFound)
	case code == http.StatusNotFound, code == http.StatusMethodNotAllowed:
		return fail("the server has no such repository, revision or file", ErrNotFound)
	case code == http.StatusRequestedRangeNotSatisfiable:
		return fail(text, ErrContent)
	}
	return errors.New(text)
}

// retryAfter returns the pause that an answer asks for, or 0.
func retryAfter(resp *http.Response) time.Duration {
	v := resp.Header.Get("Retry-After")
	if n, err := strconv.ParseUint(v, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if at, err := http.ParseTime(v); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}

// retry calls attempt until it succeeds, fails for good, or has failed several times in a row
// without progress.
func (s *session) retry(ctx context.Context, attempt func() (progress bool, err error)) error {
	for failures := 0; ; {
		progress, err := attempt()
		again, ok := errors.AsType[*temporary](err)
		if !ok {
			return err
		}
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		if again.unreachable && !s.answered.Load() {
			return fail("the hub cannot be reached: "+err.Error(), ErrOffline)
		}
		if failures++; progress {
			failures = 0
		}
		switch {
		case failures >= cmp.Or(s.Attempts, 5) && again.unreachable:
			return fail("the hub can no longer be reached: "+err.Error(), ErrOffline)
		case failures >= cmp.Or(s.Attempts, 5):
			return fmt.Errorf("%w, %d times in a row", again.err, failures)
		case again.after > cmp.Or(s.LongestWait, 5*time.Minute):
			return fmt.Errorf("%w and asks for a pause of %v", again.err, again.after)
		}
		pause := again.after
		if failures > 0 {
			pause = max(pause, cmp.Or(s.Backoff, 500*time.Millisecond)<<min(failures-1, 6))
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// getJSON decodes an answer of the API into v and returns its header.
func (s *session) getJSON(ctx context.Context, u *url.URL, v any) (header http.Header, err error) {
	err = s.retry(ctx, func() (bool, error) {
		resp, err := s.do(ctx, http.MethodGet, u, "")
		if err != nil {
			return false, err
		}
		defer resp.Body.Close()
		if err := s.check(resp); err != nil {
			return false, err
		}
		text, err := io.ReadAll(io.LimitReader(resp.Body, maxJSON+1))
		if err != nil {
			return false, err
		}
		if len(text) > maxJSON {
			return false, fmt.Errorf("the listing has more than %d MiB", maxJSON>>20)
		}
		if err := json.Unmarshal(text, v); err != nil {
			return false, errors.New("the server's answer is not the expected JSON")
		}
		header = resp.Header
		return false, nil
	})
	return header, err
}
