package keys

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const (
	alice = "sk-alice-0123456789"
	bob   = "sk-bob-0123456789ab"
	carol = "sk-carol-0123456789"
)

// write writes a file of keys and returns its path.
func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t *testing.T, text string, defaults Limits) *Keys {
	t.Helper()
	k, err := Open(write(t, text), defaults)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// admitted admits a request that must be admitted.
func admitted(t *testing.T, k *Keys, presented string) *Admission {
	t.Helper()
	a, err := k.Admit(presented)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// refused checks that a request is refused, and returns the refusal.
func refused(t *testing.T, k *Keys, presented string, reason Reason) *Refusal {
	t.Helper()
	_, err := k.Admit(presented)
	var r *Refusal
	if !errors.As(err, &r) || r.Reason != reason {
		t.Fatalf("got %v, want a refusal: %s", err, reason)
	}
	return r
}

func TestFind(t *testing.T) {
	digest := sha256.Sum256([]byte(bob))
	k := open(t, "# comment\n\nalice "+alice+"\n\tbob  sha256:"+hex.EncodeToString(digest[:])+"\r\ncarol "+carol, Limits{})
	for name, key := range map[string]string{"alice": alice, "bob": bob, "carol": carol} {
		if a := admitted(t, k, key); a.Name() != name {
			t.Errorf("the name is %q, want %q", a.Name(), name)
		}
	}
	refused(t, k, "", Missing)
	for _, wrong := range []string{alice + "x", alice[1:], strings.ToUpper(alice), "sha256:" + hex.EncodeToString(digest[:]), "alice", strings.Repeat("x", 1<<20)} {
		if r := refused(t, k, wrong, Unknown); r.Status() != http.StatusUnauthorized || r.Key != "" {
			t.Errorf("%q: %+v", wrong[:min(20, len(wrong))], r)
		}
	}
}

func TestFileErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                 "no key",
		"# alice " + alice: "no key",
		"alice":            "line 1: want NAME KEY",
		"\nalice short":    "line 2: the key has less than 16 characters",
		"alice sha256:12":  "64 hexadecimal digits",
		"alice sha256:" + strings.Repeat("g", 64):       "64 hexadecimal digits",
		"alice " + alice + "\nalice " + bob:             `line 2: the name "alice" is in line 1 too`,
		"alice " + alice + "\nbob " + alice:             "line 2: the key is in line 1 too",
		"alice " + alice + " " + bob:                    "field 3: want rate, burst or concurrent",
		"alice " + alice + " concurrent=2 rate=0/s":     "field 4: rate: want a positive number",
		"alice " + alice + " rate=5":                    "want a positive number per s, m or h",
		"alice " + alice + " rate=NaN/s":                "want a positive number",
		"alice " + alice + " rate=Inf/s":                "want a positive number",
		"alice " + alice + " rate=-1/m":                 "want a positive number",
		"alice " + alice + " concurrent=0":              "want a number from 1",
		"alice " + alice + " concurrent=99999999999999": "want a number from 1",
		"alice " + alice + " burst=3":                   "burst has no effect without rate",
		strings.Repeat("n", 65) + " " + alice:           "the name must have at most 64",
		"al\x00ice " + alice:                            "printable ASCII",
		"älice " + alice:                                "printable ASCII",
		strings.Repeat("#", maxFile+1):                  "more than 4194304 bytes",
	} {
		_, err := Open(write(t, text), Limits{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: got %v, want %s", text, err, want)
		} else if strings.Contains(err.Error(), alice) || strings.Contains(err.Error(), bob) {
			t.Errorf("the error has a key: %v", err)
		}
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none"), Limits{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := open(t, "alice "+alice+" rate=30/m burst=2\nbob "+bob+" rate=4/s\ncarol "+carol, Limits{})
		for range 2 {
			admitted(t, k, alice).Release()
		}
		r := refused(t, k, alice, Rate)
		if r.RetryAfter != 2*time.Second || r.Key != "alice" || r.Status() != http.StatusTooManyRequests {
			t.Errorf("refusal: %+v", r)
		}
		time.Sleep(r.RetryAfter - time.Millisecond)
		refused(t, k, alice, Rate) // refused requests use nothing of the rate
		time.Sleep(time.Millisecond)
		admitted(t, k, alice).Release()
		for range 4 { // a burst is the requests of a second
			admitted(t, k, bob).Release()
		}
		if r := refused(t, k, bob, Rate); r.RetryAfter != time.Second/4 {
			t.Errorf("refusal: %+v", r)
		}
		for range 1000 {
			admitted(t, k, carol).Release()
		}
	})
}

func TestConcurrency(t *testing.T) {
	k := open(t, "alice "+alice+" concurrent=2 rate=3/h burst=3\nbob "+bob, Limits{Concurrent: 1})
	first, second := admitted(t, k, alice), admitted(t, k, alice)
	if r := refused(t, k, alice, Concurrency); r.RetryAfter != time.Second || r.Status() != http.StatusTooManyRequests {
		t.Errorf("refusal: %+v", r)
	}
	first.Release()
	first.Release() // has no effect
	third := admitted(t, k, alice)
	refused(t, k, alice, Concurrency)
	second.Release()
	third.Release()
	refused(t, k, alice, Rate) // the requests that were refused did not count
	a := admitted(t, k, bob)
	refused(t, k, bob, Concurrency) // by default
	a.Release()
	admitted(t, k, bob)
}

func TestReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := open(t, "alice "+alice+" concurrent=1 rate=1/s\nbob "+bob, Limits{})
		a, b := admitted(t, k, alice), admitted(t, k, bob)
		change := func(text string) error {
			if err := os.WriteFile(k.path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			return k.Reload()
		}
		if err := change("alice"); err == nil {
			t.Fatal("a damaged file was accepted")
		}
		if k.Len() != 2 {
			t.Fatalf("%d keys after an error", k.Len())
		}
		if err := change("carol " + carol + "\nalicia " + alice + " concurrent=2 rate=1/s"); err != nil {
			t.Fatal(err)
		}
		refused(t, k, bob, Unknown)
		refused(t, k, alice, Rate) // its request before the change counts
		time.Sleep(time.Second)
		if second := admitted(t, k, alice); second.Name() != "alicia" {
			t.Errorf("the name is %q", second.Name())
		}
		time.Sleep(time.Second)
		refused(t, k, alice, Concurrency) // a is in progress
		a.Release()
		admitted(t, k, alice)
		b.Release()
		if err := change("alice " + alice); err != nil {
			t.Fatal(err)
		}
		for range 100 { // without limits
			admitted(t, k, alice)
		}
	})
}

func TestAnyone(t *testing.T) {
	k := Anyone(Limits{Concurrent: 2})
	a := admitted(t, k, "")
	admitted(t, k, "any key")
	refused(t, k, "", Concurrency)
	a.Release()
	admitted(t, k, "")
	if err := k.Reload(); err != nil || k.Len() != 1 {
		t.Errorf("reload: %v, %d keys", err, k.Len())
	}
}

// TestConcurrentUse admits requests from many goroutines while the file changes. The limit holds at
// every moment, and nothing is in use at the end.
func TestConcurrentUse(t *testing.T) {
	const most = 3
	k := open(t, "alice "+alice+" concurrent=3", Limits{})
	var (
		mu           sync.Mutex
		running, all int
		askers       sync.WaitGroup
		stop         = make(chan struct{})
		reloading    sync.WaitGroup
	)
	reloading.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := k.Reload(); err != nil {
				t.Error(err)
			}
		}
	})
	count := func(n int) {
		mu.Lock()
		defer mu.Unlock()
		running += n
		all += max(n, 0)
		if running > most {
			t.Errorf("%d requests at once", running)
		}
	}
	for range 16 {
		askers.Go(func() {
			for range 200 {
				a, err := k.Admit(alice)
				if err != nil {
					continue
				}
				count(1)
				count(-1)
				a.Release()
			}
		})
	}
	askers.Wait()
	close(stop)
	reloading.Wait()
	if one := (*k.current.Load())[0]; one.use.running != 0 || all == 0 {
		t.Errorf("%d requests in use, %d were admitted", one.use.running, all)
	}
}

func TestPresented(t *testing.T) {
	for _, c := range []struct {
		authorization, key []string
		want               string
	}{
		{nil, nil, ""},
		{[]string{"Bearer abc"}, nil, "abc"},
		{[]string{"bearer  abc "}, nil, "abc"},
		{nil, []string{" abc"}, "abc"},
		{[]string{"Bearer abc"}, []string{"abc"}, "abc"},
		{[]string{"Bearer abc"}, []string{"def"}, ""},
		{[]string{"Bearer abc", "Bearer def"}, nil, ""},
		{[]string{"Basic abc"}, nil, ""},
		{[]string{"abc"}, nil, ""},
		{[]string{"Bearer"}, nil, ""},
		{[]string{""}, []string{"abc"}, ""},
	} {
		if got := Presented(http.Header{"Authorization": c.authorization, "X-Api-Key": c.key}); got != c.want {
			t.Errorf("%q %q: got %q, want %q", c.authorization, c.key, got, c.want)
		}
	}
}

func TestMiddleware(t *testing.T) {
	k := open(t, "alice "+alice+" concurrent=1 rate=1/h burst=2", Limits{})
	refuse := func(w http.ResponseWriter, _ *http.Request, r *Refusal) { http.Error(w, r.Error(), r.Status()) }
	var inside func()
	h := k.Middleware(refuse)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := Name(r.Context()); got != "alice" {
			t.Errorf("the name is %q", got)
		}
		if inside != nil {
			inside()
		}
	}))
	ask := func(key string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("POST", "/v1/completions", nil)
		if key != "" {
			r.Header.Set("Authorization", "Bearer "+key)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if strings.Contains(w.Body.String(), key) && key != "" {
			t.Errorf("the answer has the key: %s", w.Body)
		}
		return w
	}
	if w := ask(""); w.Code != 401 || w.Header().Get("WWW-Authenticate") != "Bearer" || w.Header().Get("Retry-After") != "" {
		t.Errorf("without a key: %d %v", w.Code, w.Header())
	}
	if w := ask(bob); w.Code != 401 {
		t.Errorf("with an unknown key: %d", w.Code)
	}
	inside = func() {
		inside = nil
		if w := ask(alice); w.Code != 429 || w.Header().Get("Retry-After") != "1" {
			t.Errorf("a second request at the same time: %d %v", w.Code, w.Header())
		}
	}
	if w := ask(alice); w.Code != 200 {
		t.Errorf("with a key: %d %s", w.Code, w.Body)
	}
	inside = func() { panic(http.ErrAbortHandler) }
	func() {
		defer func() { _ = recover() }()
		ask(alice)
	}()
	if w := ask(alice); w.Code != 429 || w.Header().Get("Retry-After") != "3600" {
		t.Errorf("above the rate, after a panic: %d %v", w.Code, w.Header())
	}
}

func FuzzParse(f *testing.F) {
	f.Add("alice " + alice + " rate=5/s burst=10 concurrent=4\n# comment\nbob sha256:8d969eef6ecad3c29a3a629280e686cf0c3f5d5a86aff3ca12020c923adc6c92")
	f.Fuzz(func(t *testing.T, text string) {
		lines, err := parse([]byte(text), Limits{})
		if err != nil {
			return
		}
		for _, l := range lines {
			if l.name == "" || l.limits.Rate < 0 || l.limits.Burst < 0 || l.limits.Concurrent < 0 || l.limits.burst() < 1 {
				t.Errorf("%+v", l)
			}
		}
	})
}
