// Command peer measures pianola beside llama.cpp on the same files, in
// alternation, and prints a Markdown table of medians and ratios. It serves
// development; make bench-peer builds what it needs and runs it.
//
//	peer -pianola BIN -peer 'llamapeer LIBDIR' [-r 5] [-p 512] [-n 64] [-t 2] FILE...
//
// llama.cpp's decode figure is the better median of one thread and of -t. The
// bandwidth is that of -t threads reading 1 GiB, best of five, before each
// file.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pianola-engine/pianola/bench"
)

// speeds are what both programs print.
type speeds struct {
	Prefill []float64 `json:"pp_tok_s"`
	Decode  []float64 `json:"tg_tok_s"`
	Bytes   float64   `json:"bytes_per_token"`
}

type config struct {
	pianola, peer        string
	runs, prompt, decode int
	threads              int
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("peer: ")
	var c config
	flag.StringVar(&c.pianola, "pianola", "", "the pianola binary")
	flag.StringVar(&c.peer, "peer", "", "llamapeer and the folder of its library")
	flag.IntVar(&c.runs, "r", 5, "rounds of alternation")
	flag.IntVar(&c.prompt, "p", 512, "prompt tokens")
	flag.IntVar(&c.decode, "n", 64, "decoded tokens")
	flag.IntVar(&c.threads, "t", 2, "threads")
	flag.Parse()
	if c.pianola == "" || c.peer == "" || flag.NArg() == 0 || c.runs < 1 {
		flag.Usage()
		os.Exit(2)
	}
	fmt.Printf("| file | read GB/s | prefill %d, tok/s | llama.cpp | ratio | decode, tok/s | llama.cpp | ratio | share of bandwidth |\n", c.prompt)
	fmt.Println("|---|---|---|---|---|---|---|---|---|")
	for _, file := range flag.Args() {
		row, err := c.compare(file)
		if err != nil {
			log.Fatalf("%s: %v", file, err)
		}
		fmt.Println(row)
	}
}

// compare alternates the two programs on a file.
func (c *config) compare(file string) (string, error) {
	bandwidth := probe(c.threads)
	var ours, one, many speeds
	for range c.runs {
		for _, side := range []struct {
			into *speeds
			args []string
		}{
			{&ours, []string{c.pianola, "bench", file, "--json", "-r", "1", "-p", strconv.Itoa(c.prompt), "-n", strconv.Itoa(c.decode), "-t", strconv.Itoa(c.threads)}},
			{&many, c.peerArgs(file, c.threads, c.prompt)},
			{&one, c.peerArgs(file, 1, 1)},
		} {
			s, err := run(side.args)
			if err != nil {
				return "", err
			}
			side.into.Prefill = append(side.into.Prefill, s.Prefill...)
			side.into.Decode = append(side.into.Decode, s.Decode...)
			side.into.Bytes = s.Bytes
		}
	}
	prefill, decode := bench.Median(ours.Prefill), bench.Median(ours.Decode)
	peerPrefill := bench.Median(many.Prefill)
	peerDecode := max(bench.Median(many.Decode), bench.Median(one.Decode))
	return fmt.Sprintf("| %s | %.1f | %.0f | %.0f | %.2f | %.1f | %.1f | %.2f | %.0f %% |", filepath.Base(file), bandwidth,
		prefill, peerPrefill, prefill/peerPrefill, decode, peerDecode, decode/peerDecode, 100*decode*ours.Bytes/1e9/bandwidth), nil
}

func (c *config) peerArgs(file string, threads, prompt int) []string {
	args := strings.Fields(c.peer)
	return append(args, file, "speed", "-t", strconv.Itoa(threads), "-p", strconv.Itoa(prompt), "-n", strconv.Itoa(c.decode), "-r", "1")
}

func run(args []string) (speeds, error) {
	var s speeds
	out, err := exec.Command(args[0], args[1:]...).Output()
	if err != nil {
		return s, fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	if err := json.Unmarshal(out, &s); err != nil {
		return s, fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return s, nil
}

// probe returns how many GB/s threads read from memory together: 1 GiB, best
// of five.
func probe(threads int) float64 {
	const words = 1 << 27
	data := make([]uint64, words)
	for i := range data {
		data[i] = uint64(i)
	}
	best := time.Duration(1 << 62)
	sums := make(chan uint64, threads)
	for range 5 {
		start := time.Now()
		for t := range threads {
			go func() { sums <- xor(data[t*words/threads : (t+1)*words/threads]) }()
		}
		for range threads {
			<-sums
		}
		best = min(best, time.Since(start))
	}
	return words * 8 / best.Seconds() / 1e9
}

// xor reads every word.
func xor(data []uint64) uint64 {
	var a, b, c, d uint64
	for ; len(data) >= 16; data = data[16:] {
		p := (*[16]uint64)(data)
		a ^= p[0] ^ p[4] ^ p[8] ^ p[12]
		b ^= p[1] ^ p[5] ^ p[9] ^ p[13]
		c ^= p[2] ^ p[6] ^ p[10] ^ p[14]
		d ^= p[3] ^ p[7] ^ p[11] ^ p[15]
	}
	return a ^ b ^ c ^ d
}
