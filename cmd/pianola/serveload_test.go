package main

import (
	"strings"
	"testing"
)

// TestServeLoad measures requests of clients and requests that arrive at random times.
func TestServeLoad(t *testing.T) {
	type result struct {
		Clients  int
		Rate     float64
		Requests int
		Prompt   int         `json:"prompt_tokens"`
		Tokens   int         `json:"tokens"`
		TokS     float64     `json:"tok_s"`
		Goodput  float64     `json:"goodput_requests_s"`
		First    percentiles `json:"ttft_ms"`
		Whole    percentiles `json:"request_ms"`
	}
	args := []string{"bench", gopher, "--serve-load", "--parallel", "4", "-p", "20", "-n", "8", "--json"}
	res := decode[result](t, succeed(t, append(args, "--clients", "3", "--load-requests", "7")...).stdout)
	if res.Clients != 3 || res.Requests != 7 || res.Prompt != 7*20 || res.Tokens != 7*8 || res.TokS <= 0 || res.First.P50 <= 0 || res.First.Max > res.Whole.Max {
		t.Errorf("%+v", res)
	}
	res = decode[result](t, succeed(t, append(args, "--rate", "200", "--mixed", "--load-requests", "9", "--first-ms", "1e9", "--token-ms", "1e9")...).stdout)
	if res.Rate != 200 || res.Requests != 9 || res.Prompt == 9*20 && res.Tokens == 9*8 || res.Goodput <= 0 {
		t.Errorf("%+v", res)
	}
	text := succeed(t, append(args[:len(args)-1], "--clients", "1,2")...).stdout
	for _, part := range []string{"1 clients, at most 4 together: 4 requests, 80 + 32 tokens", "2 clients", "inter-token", "goodput"} {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing in\n%s", part, text)
		}
	}
}

// TestBenchBatch measures sequences that decode together.
func TestBenchBatch(t *testing.T) {
	type result struct {
		Rows        int
		Prompt      int       `json:"prompt_tokens"`
		Tokens      int       `json:"tokens"`
		PrefillTokS []float64 `json:"pp_tok_s"`
		DecodeTokS  []float64 `json:"tg_tok_s"`
		Together    float64   `json:"rows_together"`
	}
	args := []string{"bench", gopher, "-p", "20", "-n", "100", "-r", "2", "--batch"}
	res := decode[result](t, succeed(t, append(args, "3", "--json")...).stdout)
	if res.Rows != 3 || res.Prompt != 20 || res.Tokens != 100 || len(res.PrefillTokS) != 2 || len(res.DecodeTokS) != 2 || res.DecodeTokS[0] <= 0 || res.Together < 1 || res.Together > 3 {
		t.Errorf("%+v", res)
	}
	if text := succeed(t, append(args, "1,2")...).stdout; strings.Count(text, "\n") != 4 || !strings.Contains(text, "rows together") {
		t.Errorf("%q", text)
	}
	for _, c := range []struct{ args, want string }{
		{"--batch 0", "--batch 0: must be 1 to 4096"}, {"--batch 2 --serve-load", "exclude each other"}, {"--batch 2 -n 0", "requires -p and -n of at least 1"},
	} {
		if out := runCommand(t, append([]string{"bench", gopher}, strings.Fields(c.args)...)...); !strings.Contains(out.stderr, c.want) || out.status == 0 {
			t.Errorf("%s: status %d, %q, want %q", c.args, out.status, out.stderr, c.want)
		}
	}
}

// TestServeLoadUsage checks the errors of the flags.
func TestServeLoadUsage(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--clients 3", "--clients requires --serve-load"}, {"--serve-load --latency", "exclude each other"},
		{"--serve-load --rate 3 --clients 2", "--rate is positive and excludes --clients"}, {"--serve-load -n 1", "requires -p of at least 1 and -n of at least 2"},
		{"--serve-load --clients 0", "--clients 0: must be 1 to 16384"}, {"--serve-load --parallel 0", "--parallel"},
	} {
		if out := runCommand(t, append([]string{"bench", gopher}, strings.Fields(c.args)...)...); !strings.Contains(out.stderr, c.want) || out.status == 0 {
			t.Errorf("%s: status %d, %q, want %q", c.args, out.status, out.stderr, c.want)
		}
	}
}
