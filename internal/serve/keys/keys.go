package keys

import (
	"crypto/sha256"
	"crypto/subtle"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Limits are the limits of a key. Zero means no limit.
type Limits struct {
	Rate rate.Limit // requests per second
	// Burst is the number of requests that may come at once; 0 means the requests of one second, at
	// least one.
	Burst      int
	Concurrent int // number of requests that are being served
}

// burst returns the effective burst.
func (l Limits) burst() int {
	if l.Burst > 0 {
		return l.Burst
	}
	return int(max(1, min(math.Ceil(float64(l.Rate)), 1e6)))
}

// Keys admits requests. Its methods may be called concurrently.
type Keys struct {
	path     string // "" for Anyone
	defaults Limits
	reload   sync.Mutex
	current  atomic.Pointer[[]*key]
}

// Open reads a file of keys. The defaults apply where a line has no limit.
func Open(path string, defaults Limits) (*Keys, error) {
	k := &Keys{path: path, defaults: defaults}
	if err := k.Reload(); err != nil {
		return nil, err
	}
	return k, nil
}

// Anyone returns keys that admit requests without a key, and with any. All requests share the
// limits and the name "".
func Anyone(limits Limits) *Keys {
	k := &Keys{}
	k.current.Store(&[]*key{newKey(line{limits: limits})})
	return k
}

// Reload reads the file again. After an error, the keys remain as they were. A key that the file
// still has keeps its state: what it has used of its rate, and its requests in progress. Requests in
// progress of a key that is gone continue.
func (k *Keys) Reload() error {
	if k.path == "" {
		return nil
	}
	k.reload.Lock()
	defer k.reload.Unlock()
	lines, err := readFile(k.path, k.defaults)
	if err != nil {
		return err
	}
	known := map[hash]*key{}
	if old := k.current.Load(); old != nil {
		for _, one := range *old {
			known[one.hash] = one
		}
	}
	all := make([]*key, len(lines))
	for i, l := range lines {
		if old := known[l.hash]; old != nil {
			all[i] = old.changed(l)
		} else {
			all[i] = newKey(l)
		}
	}
	k.current.Store(&all)
	return nil
}

// Len returns the number of keys.
func (k *Keys) Len() int { return len(*k.current.Load()) }

// Admit admits a request with a key. The caller must call Release when the request has ended. An
// error is a *Refusal.
func (k *Keys) Admit(presented string) (*Admission, error) {
	one, err := k.find(presented)
	if err != nil {
		return nil, err
	}
	return one.admit(time.Now())
}

// find returns the key that was presented. Its duration depends on the number of keys and on the
// length of the one presented only.
func (k *Keys) find(presented string) (*key, error) {
	all := *k.current.Load()
	if k.path == "" {
		return all[0], nil
	}
	if presented == "" {
		return nil, &Refusal{Reason: Missing}
	}
	h := sha256.Sum256([]byte(presented))
	found := -1
	for i, one := range all {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(one.hash[:], h[:]), i, found)
	}
	if found < 0 {
		return nil, &Refusal{Reason: Unknown}
	}
	return all[found], nil
}

// key is a key with its limits. Keys of the same hash share their use.
type key struct {
	line
	use *use
}

// use is what a key uses of its limits.
type use struct {
	mu      sync.Mutex
	running int
	rate    *rate.Limiter
}

func newKey(l line) *key {
	return &key{l, &use{rate: rate.NewLimiter(l.limits.limit(), l.limits.burst())}}
}

// limit returns the rate for a limiter.
func (l Limits) limit() rate.Limit {
	if l.Rate == 0 {
		return rate.Inf
	}
	return l.Rate
}

// changed returns the key with the name and limits of a line.
func (k *key) changed(l line) *key {
	if k.limits != l.limits {
		k.use.mu.Lock()
		k.use.rate.SetLimit(l.limits.limit())
		k.use.rate.SetBurst(l.limits.burst())
		k.use.mu.Unlock()
	}
	return &key{l, k.use}
}

// admit counts a request, or refuses it. A refused request uses nothing of the rate.
func (k *key) admit(now time.Time) (*Admission, error) {
	u := k.use
	u.mu.Lock()
	defer u.mu.Unlock()
	if most := k.limits.Concurrent; most > 0 && u.running >= most {
		return nil, &Refusal{Reason: Concurrency, Key: k.name, RetryAfter: time.Second}
	}
	r := u.rate.ReserveN(now, 1)
	if wait := r.DelayFrom(now); wait > 0 {
		r.CancelAt(now)
		return nil, &Refusal{Reason: Rate, Key: k.name, RetryAfter: wait}
	}
	u.running++
	return &Admission{name: k.name, use: u}, nil
}

// Admission is an admitted request.
type Admission struct {
	name string
	use  *use
	once sync.Once
}

// Name returns the name of the request's key.
func (a *Admission) Name() string { return a.name }

// Release ends the request. Calling it again has no effect.
func (a *Admission) Release() {
	a.once.Do(func() {
		a.use.mu.Lock()
		a.use.running--
		a.use.mu.Unlock()
	})
}
