package observe

import (
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"
)

// ListenProfiles listens on a loopback address, such as "localhost:6060", for go tool pprof. The
// profiles of a service say much about its requests, so other addresses are refused.
func ListenProfiles(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("observe: profiles: %w", err)
	}
	if a, ok := l.Addr().(*net.TCPAddr); !ok || !a.IP.IsLoopback() {
		l.Close()
		return nil, fmt.Errorf("observe: profiles: the address %q is not a loopback address, such as localhost:6060", address)
	}
	return l, nil
}

// ProfileServer returns a server of the profiles at /debug/pprof/. It answers only requests for a
// loopback host, so that no page in a browser can reach it under another name.
func ProfileServer() *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return &http.Server{Handler: local(mux), ReadHeaderTimeout: 5 * time.Second}
}

// local refuses requests for a host that is not loopback.
func local(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			http.Error(w, "profiles are for the host localhost only", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
