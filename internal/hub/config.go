package hub

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// DefaultEndpoint is the address of the Hugging Face Hub.
const DefaultEndpoint = "https://huggingface.co"

// Client downloads models and finds them in the cache. The zero value of a number selects
// the default, which its comment names.
type Client struct {
	Cache    string // the cache directory
	Endpoint string // the address of the hub or of a mirror
	Token    string // the access token, or ""
	Offline  bool   // uses the cache only

	// Progress receives the number of bytes that are done, including those of earlier runs. Note
	// receives a sentence about something that the user may want to know: a pull waits for another
	// process, or the server cannot be reached. One of the two is called at a time.
	Progress func(done, total uint64)
	Note     func(text string)

	Connections int           // connections at once; 8
	Piece       int64         // bytes of a range; depends on the size of a file
	Attempts    int           // attempts in a row without progress; 5
	Backoff     time.Duration // pause before the second attempt, which then doubles; 500 ms
	Stall       time.Duration // time without a byte after which a connection is closed; 30 s
	LongestWait time.Duration // longest pause that the server may ask for; 5 minutes

	// Tests replace these.
	transport http.RoundTripper
	free      func(dir string) (uint64, error)
	writer    func(io.WriterAt) io.WriterAt
}

// FromEnvironment returns a Client with the settings of the environment variables that other tools
// for the hub use: HF_HUB_CACHE, HF_HOME, HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH and HF_HUB_OFFLINE.
// Without HF_TOKEN the token is read from a file. Cache is "" if the user has no home directory.
func FromEnvironment(getenv func(string) string) *Client {
	userHome, homeErr := os.UserHomeDir()
	dir := func(name string) string {
		v := getenv(name)
		if rest, ok := strings.CutPrefix(v, "~/"); ok {
			v = filepath.Join(userHome, rest)
		}
		return v
	}
	c := &Client{Cache: dir("HF_HUB_CACHE"), Endpoint: getenv("HF_ENDPOINT"), Token: getenv("HF_TOKEN")}
	home, base := dir("HF_HOME"), dir("XDG_CACHE_HOME")
	if base == "" && homeErr == nil {
		base = filepath.Join(userHome, ".cache")
	}
	if home == "" && base != "" {
		home = filepath.Join(base, "huggingface")
	}
	if c.Cache == "" && home != "" {
		c.Cache = filepath.Join(home, "hub")
	}
	if c.Endpoint == "" {
		c.Endpoint = DefaultEndpoint
	}
	c.Offline = slices.Contains([]string{"1", "ON", "YES", "TRUE"}, strings.ToUpper(getenv("HF_HUB_OFFLINE")))
	if c.Token == "" {
		file := dir("HF_TOKEN_PATH")
		if file == "" && home != "" {
			file = filepath.Join(home, "token")
		}
		c.Token = readToken(file)
	}
	c.Token = strings.TrimSpace(c.Token)
	return c
}

// readToken returns the content of the token file, or "" if there is none.
func readToken(path string) string {
	if st, err := os.Stat(path); err != nil || !st.Mode().IsRegular() || st.Size() > 4096 {
		return ""
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(b)
}

// endpoint returns the parsed address of the hub.
func (c *Client) endpoint() (*url.URL, error) {
	u, err := url.Parse(strings.TrimRight(c.Endpoint, "/"))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("hub: the endpoint %.100q is not an address of the form https://host", c.Endpoint)
	}
	return u, nil
}
