package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestPlan checks the plan of gopher, and that a plan over the budget fails and prints the longest
// context that fits.
func TestPlan(t *testing.T) {
	args := []string{"plan", gopher, "--device", "cpu", "-t", "1", "--sessions", "8"}
	text := succeed(t, args...).stdout
	for _, want := range []string{"cpu, mode encode, 8 sessions of 2048 positions\n", "\nkv       0 B       8.00 MiB     64.0 MiB\n", "\nall  "} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	args = append(args, "--json")
	res := decode[*planResult](t, succeed(t, args...).stdout)
	var sum uint64
	for _, k := range res.Kinds {
		if k.Total != k.Model+8*k.Session {
			t.Errorf("%+v", k)
		}
		sum += k.Total
	}
	if !res.Fits || res.Total != res.Weights+res.Mapped+res.Executor+8*res.Session || sum > res.Total || sum < res.Total/2 {
		t.Errorf("%+v", res)
	}
	o := runCommand(t, append(args, "--budget", "64M")...)
	if err := json.Unmarshal([]byte(o.stdout), res); err != nil || o.status != statusFailed || res.Fits || res.Longest < 1000 || res.Longest >= 2048 {
		t.Errorf("status %d, %v, %+v", o.status, err, res)
	}
	if !strings.Contains(o.stderr, "the memory budget is 67108864 bytes; a context of ") {
		t.Errorf("standard error %q", o.stderr)
	}
	// 8 sequences with all pages that they can need have as much memory as 8 sessions.
	many := decode[*planResult](t, succeed(t, "plan", gopher, "--device", "cpu", "-t", "1", "--parallel", "8", "--json").stdout)
	few := decode[*planResult](t, succeed(t, "plan", gopher, "--device", "cpu", "-t", "1", "--parallel", "8", "--pages", "32", "--json").stdout)
	if many.Sequences != 8 || many.Sessions != 1 || many.Session < 8*res.Session || many.Session > 9*res.Session || few.Session > many.Session/4 {
		t.Errorf("%+v and %+v", many, few)
	}
	if o := runCommand(t, "plan", gopher, "--parallel", "8", "--sequences", "8"); o.status == 0 || !strings.Contains(o.stderr, "exclude each other") {
		t.Errorf("status %d, %q", o.status, o.stderr)
	}
	for budget, want := range map[string]uint64{"1": 1, "3K": 3 << 10, "24G": 24 << 30, "1T": 1 << 40} {
		if got, err := parseBytes(budget); err != nil || got != want {
			t.Errorf("%s: %d, %v", budget, got, err)
		}
	}
	for _, bad := range []string{"M", "-1", "0", "1.5G", "99999999T", "1KB"} {
		wantError(t, runCommand(t, "plan", gopher, "--budget", bad), statusFailed, "not a number of bytes")
	}
	wantError(t, runCommand(t, "plan"), statusUsage, "needs a MODEL")
	wantError(t, runCommand(t, "plan", gopher, "--sessions", "0"), statusFailed, "at least 1")
}
