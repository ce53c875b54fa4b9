package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// asPianola is the first argument that makes the test binary the program; see TestMain.
const asPianola = "as-pianola"

// process is a running service.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	url  string
	data string // the body of the request that the service proposes
	path string // its path
	log  *strings.Builder
	read sync.WaitGroup
}

// serveGopher starts a service of gopher in a process of its own, and waits until it is ready.
func serveGopher(t *testing.T, args ...string) *process {
	t.Helper()
	args = append([]string{asPianola, "serve", gopher, "--template-file", "../../testdata/gopher/chat.jinja", "--device", "cpu"}, args...)
	p := &process{t: t, cmd: exec.Command(os.Args[0], args...), log: &strings.Builder{}}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	errs, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it has ended already unless the test failed
		_ = p.cmd.Wait()
	})
	p.read.Go(func() { io.Copy(p.log, errs) })
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if m := regexp.MustCompile(`^try   curl .*(https?://[^/ ]+)(/\S+) .* -d '(.*)'$`).FindStringSubmatch(lines.Text()); m != nil {
			p.url, p.path, p.data = m[1], m[2], m[3]
			p.read.Go(func() { io.Copy(io.Discard, out) })
			return p
		}
	}
	p.read.Wait()
	t.Fatalf("the service is not ready: %s", p.log)
	return nil
}

// wait waits for the end of the process and returns its exit status and its log.
func (p *process) wait() (status int, log string) {
	p.t.Helper()
	p.read.Wait() // before Wait, which closes the pipes
	_ = p.cmd.Wait()
	return p.cmd.ProcessState.ExitCode(), p.log.String()
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// post sends a body with a key.
func (p *process) post(client *http.Client, path, key, body string) (int, string) {
	p.t.Helper()
	r, err := http.NewRequest("POST", p.url+path, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := client.Do(r)
	if err != nil {
		p.t.Error(err)
		return 0, ""
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Error(err)
	}
	return resp.StatusCode, string(b)
}

// needSignals skips a test that sends signals on systems that have none.
func needSignals(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no signals that one process sends to another")
	}
}

// TestServe sends the request that the service proposes, asks for a key that comes later, and ends the
// service. A new one serves on the same address.
func TestServe(t *testing.T) {
	needSignals(t)
	file := filepath.Join(t.TempDir(), "keys")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const first, second = "sk-first-0123456789", "sk-second-0123456789"
	write("alice " + first + "\n")
	p := serveGopher(t, "--addr", "127.0.0.1:0", "--api-keys", file, "--ctx", "512")
	if status, reply := p.post(http.DefaultClient, p.path, first, p.data); status != 200 || !strings.Contains(reply, `"usage"`) {
		t.Errorf("the proposed request: status %d: %s", status, reply)
	}
	if status, _ := p.post(http.DefaultClient, p.path, second, p.data); status != 401 {
		t.Errorf("an unknown key: status %d", status)
	}
	write("alice " + first + "\nbob " + second + "\n")
	p.signal(syscall.SIGHUP)
	status := 0
	for end := time.Now().Add(time.Minute); status != 200 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		status, _ = p.post(http.DefaultClient, p.path, second, p.data)
	}
	if status != 200 {
		t.Errorf("a new key: status %d", status)
	}
	p.signal(syscall.SIGTERM)
	status, log := p.wait()
	if status != 0 || strings.Contains(log, "sk-") || strings.Contains(log, "Hello") || !strings.Contains(log, "bob") {
		t.Errorf("status %d, log: %s", status, log)
	}
	again := serveGopher(t, "--addr", strings.TrimPrefix(p.url, "http://"), "--ctx", "512")
	if status, reply := again.post(http.DefaultClient, again.path, "", again.data); status != 200 {
		t.Errorf("after a restart: status %d: %s", status, reply)
	}
	again.signal(os.Interrupt)
	if status, log := again.wait(); status != 0 {
		t.Errorf("after an interrupt: status %d: %s", status, log)
	}
}

// TestServeTerm ends the service during 100 streams. Each stream is complete or ends with an error as its
// last event, and the log has one end for each request.
func TestServeTerm(t *testing.T) {
	needSignals(t)
	const streams = 100
	p := serveGopher(t, "--addr", "127.0.0.1:0", "--parallel", "8", "--drain", "300ms", "--log-format", "json")
	body := strings.Replace(p.data, `"max_tokens":64`, `"stream":true,"max_tokens":3000`, 1)
	var started, ended sync.WaitGroup
	var mu sync.Mutex
	complete, cut := 0, 0
	started.Add(streams)
	for range streams {
		ended.Go(func() {
			resp, err := http.Post(p.url+p.path, "application/json", strings.NewReader(body))
			started.Done() // the header has come, although most streams wait
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Error(err)
			}
			events := strings.Split(strings.TrimSpace(string(text)), "\n\n")
			last := strings.TrimPrefix(events[len(events)-1], "data: ")
			before := ""
			if len(events) > 1 {
				before = strings.TrimPrefix(events[len(events)-2], "data: ")
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case strings.Contains(last, `"error"`) && json.Valid([]byte(last)):
				cut++
			case last == "[DONE]" && strings.Contains(before, `"error"`):
				cut++
			case last == "[DONE]":
				complete++
			default:
				t.Errorf("status %d, the last events are %q and %q", resp.StatusCode, before, last)
			}
		})
	}
	started.Wait()
	p.signal(syscall.SIGTERM)
	ended.Wait()
	status, log := p.wait()
	if status != 0 || complete+cut != streams || cut == 0 {
		t.Errorf("status %d; %d streams are complete, %d were cut", status, complete, cut)
	}
	outcomes := map[string]int{}
	for line := range strings.Lines(log) {
		var r struct{ Msg, Outcome string }
		if json.Unmarshal([]byte(line), &r) == nil && r.Msg == "request" {
			outcomes[r.Outcome]++
		}
	}
	if outcomes["done"] != complete || outcomes["failed"] != cut || outcomes["cancelled"] != 0 {
		t.Errorf("%d complete and %d cut, the log has %v", complete, cut, outcomes)
	}
}

// TestServeSecondSignal ends the service at once although a client does not read its stream.
func TestServeSecondSignal(t *testing.T) {
	needSignals(t)
	p := serveGopher(t, "--addr", "127.0.0.1:0", "--drain", "1h")
	c, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	body := strings.Replace(p.data, `"max_tokens":64`, `"stream":true,"n":16,"logprobs":true,"top_logprobs":20`, 1) // more than the buffers hold
	fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", p.path, len(body), body)
	if _, err := io.ReadFull(c, make([]byte, 500)); err != nil { // the stream has begun
		t.Fatal(err)
	}
	p.signal(syscall.SIGTERM)
	for status := 200; status != http.StatusServiceUnavailable; {
		resp, err := http.Get(p.url + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		status = resp.StatusCode
	}
	p.signal(os.Interrupt)
	if status, log := p.wait(); status != -1 || strings.Contains(log, "stopped") {
		t.Errorf("status %d, not ended by the signal: %s", status, log)
	}
}

// TestServeTLS serves HTTPS and reads a new certificate.
func TestServeTLS(t *testing.T) {
	needSignals(t)
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	pool := writeCertificate(t, 1, certFile, keyFile)
	p := serveGopher(t, "--addr", "127.0.0.1:0", "--tls-cert", certFile, "--tls-key", keyFile, "--ctx", "512")
	serial := func(pool *x509.CertPool) int64 {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}}
		defer client.CloseIdleConnections()
		resp, err := client.Get(p.url + "/readyz")
		if err != nil {
			return 0
		}
		resp.Body.Close()
		if resp.ProtoMajor != 2 || resp.StatusCode != 200 {
			t.Errorf("%s, status %d", resp.Proto, resp.StatusCode)
		}
		return resp.TLS.PeerCertificates[0].SerialNumber.Int64()
	}
	if n := serial(pool); n != 1 {
		t.Errorf("the certificate has the number %d", n)
	}
	pool = writeCertificate(t, 2, certFile, keyFile)
	p.signal(syscall.SIGHUP)
	n := int64(0)
	for end := time.Now().Add(time.Minute); n != 2 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		n = serial(pool)
	}
	if n != 2 {
		t.Errorf("the new certificate has the number %d", n)
	}
	p.signal(syscall.SIGTERM)
	if status, log := p.wait(); status != 0 {
		t.Errorf("status %d: %s", status, log)
	}
}

// writeCertificate writes a certificate for 127.0.0.1 that signs itself.
func writeCertificate(t *testing.T, serial int64, certFile, keyFile string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "pianola"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	pool.AppendCertsFromPEM(text)
	for name, b := range map[string][]byte{certFile: text, keyFile: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})} {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return pool
}

// TestServeHere runs the command in this process: models of a directory, on demand, and an address for
// metrics.
func TestServeHere(t *testing.T) {
	dir := t.TempDir()
	whole, err := filepath.Abs(gopher)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"one.gguf", "two.gguf"} {
		if err := os.Symlink(whole, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	p, stop := serveHere(t, "--models-dir", dir, "--metrics-addr", "127.0.0.1:0", "--alias", "uno=one", "--memory-budget", "200M", "--parallel", "2")
	var first string
	for i, name := range []string{"one", "two", "uno", "one.gguf"} {
		status, reply := p.post(http.DefaultClient, "/v1/completions", "", fmt.Sprintf(`{"model":%q,"prompt":"func main() {","max_tokens":8,"temperature":0}`, name))
		var c struct{ Choices []struct{ Text string } }
		if json.Unmarshal([]byte(reply), &c) != nil || status != 200 || len(c.Choices) != 1 || c.Choices[0].Text == "" {
			t.Fatalf("%s: status %d: %s", name, status, reply)
		}
		if i == 0 {
			first = c.Choices[0].Text
		} else if c.Choices[0].Text != first {
			t.Errorf("%s says %q, one said %q", name, c.Choices[0].Text, first)
		}
	}
	for _, name := range []string{"three", "../one", "/etc/passwd", dir + "/one.gguf", ""} {
		if status, reply := p.post(http.DefaultClient, "/v1/completions", "", fmt.Sprintf(`{"model":%q,"prompt":"x"}`, name)); status != 404 && status != 400 {
			t.Errorf("%s: status %d: %s", name, status, reply)
		}
	}
	resp, err := http.Get(p.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 404 {
		t.Errorf("/metrics: status %d, although it has an address of its own", resp.StatusCode)
	}
	if status, log := stop(); status != 0 || !strings.Contains(log, "model evicted") {
		t.Errorf("status %d: %s", status, log)
	}
}

// TestServeHub serves a model of the hub under the ID of its repository.
func TestServeHub(t *testing.T) {
	gopherHub(t)
	p, stop := serveHere(t, "org/gopher:Q8_0")
	for _, name := range []string{"org/gopher", "org/gopher:Q8_0"} {
		if status, reply := p.post(http.DefaultClient, "/v1/completions", "", fmt.Sprintf(`{"model":%q,"prompt":"x","max_tokens":1}`, name)); status != 200 || !strings.Contains(reply, `"model":"org/gopher"`) {
			t.Errorf("%s: status %d: %s", name, status, reply)
		}
	}
	if status, log := stop(); status != 0 {
		t.Errorf("status %d: %s", status, log)
	}
}

// serveHere runs the command in this process until stop, which returns its exit status and its log.
func serveHere(t *testing.T, args ...string) (p *process, stop func() (int, string)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	r, w := io.Pipe()
	var log bytes.Buffer
	ended := make(chan int, 1)
	args = append([]string{"serve", "--addr", "127.0.0.1:0", "--device", "cpu", "--ctx", "256"}, args...)
	go func() {
		ended <- execute(ctx, args, strings.NewReader(""), w, &log)
		w.Close()
	}()
	p = &process{t: t}
	for out := bufio.NewScanner(r); out.Scan() && !strings.HasPrefix(out.Text(), "try"); {
		if _, at, ok := strings.Cut(out.Text(), " at "); ok {
			p.url = at
		}
	}
	go io.Copy(io.Discard, r)
	return p, func() (int, string) {
		cancel()
		return <-ended, log.String()
	}
}

// TestServeRefusals checks the errors of command lines that cannot be served.
func TestServeRefusals(t *testing.T) {
	empty := t.TempDir()
	for _, c := range []struct {
		args, contains string
		status         int
	}{
		{"serve", "needs a MODEL", statusUsage},
		{"serve MODEL --addr :0", "--insecure-listen", statusFailed},
		{"serve MODEL --addr 0.0.0.0:0", "--api-keys", statusFailed},
		{"serve MODEL --addr 127.0.0.1:99999", "99999", statusFailed},
		{"serve MODEL --tls-cert x", "require each other", statusUsage},
		{"serve MODEL --addr 127.0.0.1:0 --tls-cert x --tls-key y", "--tls-cert x", statusFailed},
		{"serve MODEL --api-keys " + empty + "/none", "none", statusFailed},
		{"serve MODEL --insecure-listen --api-keys x", "exclude each other", statusUsage},
		{"serve MODEL --parallel 0", "at least 1", statusFailed},
		{"serve MODEL --rate 0", "--rate 0", statusFailed},
		{"serve MODEL --drain -1s", "must not be negative", statusFailed},
		{"serve MODEL --cors-origin example.org", "is not an origin", statusFailed},
		{"serve MODEL --log-format xml", "xml", statusFailed},
		{"serve MODEL MODEL", "same name", statusFailed},
		{"serve MODEL --alias a=b", "--alias a=b", statusFailed},
		{"serve --models-dir " + empty, "has no model", statusFailed},
		{"serve MODEL --template-file " + empty + "/none", "none", statusFailed},
		{"serve MODEL --addr 127.0.0.1:0 --metrics-addr 127.0.0.1:99999", "--metrics-addr", statusFailed},
		{"serve MODEL --addr 127.0.0.1:0 --metrics-addr 127.0.0.1:0 --pprof :0", "loopback", statusFailed},
	} {
		wantError(t, runCommand(t, strings.Fields(strings.ReplaceAll(c.args, "MODEL", gopher))...), c.status, c.contains)
	}
}
