// Command peer measures pianola and llama.cpp on the CPU alternately, on the same files, and prints a
// Markdown table of medians and ratios. It is a development tool: make bench-peer builds its
// dependencies and runs it.
//
//	peer -pianola BIN -peer 'llamapeer LIBDIR' [-r 5] [-p 512] [-d 128] [-n 64] [-t 2] FILE...
//
// In both programs, prefill processes a prompt of -p tokens, and decode generates -n tokens
// after a context of -d tokens. -p 0 omits prefill. For llama.cpp's decode, the table shows
// the better of two medians: with one thread and with -t threads. Before each file, the memory
// bandwidth is measured: -t threads read 1 GiB, and the best of five passes counts.
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

// speeds is the JSON output that both programs print.
type speeds struct {
	Prefill []float64 `json:"pp_tok_s"`
	Decode  []float64 `json:"tg_tok_s"`
	Bytes   float64   `json:"bytes_per_token"`
}

type config struct {
	pianola, peer               string
	runs, prompt, depth, decode int
	threads                     int
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("peer: ")
	var c config
	flag.StringVar(&c.pianola, "pianola", "", "the pianola binary")
	flag.StringVar(&c.peer, "peer", "", "llamapeer and the folder of its library")
	flag.IntVar(&c.runs, "r", 5, "rounds of alternation")
	flag.IntVar(&c.prompt, "p", 512, "prompt tokens")
	flag.IntVar(&c.depth, "d", 128, "tokens of context before decoding")
	flag.IntVar(&c.decode, "n", 64, "decoded tokens")
	flag.IntVar(&c.threads, "t", 2, "threads")
	flag.Parse()
	if c.pianola == "" || c.peer == "" || flag.NArg() == 0 || c.runs < 1 || c.depth < 1 || c.decode < 1 {
		flag.Usage()
		os.Exit(2)
	}
	fmt.Printf("| file, %d threads | read GB/s | prefill %d, tok/s | llama.cpp | ratio | decode at %d, tok/s | llama.cpp | ratio | share of bandwidth |\n", c.threads, c.prompt, c.depth)
	fmt.Println("|---|---|---|---|---|---|---|---|---|")
	for _, file := range flag.Args() {
		row, err := c.compare(file)
		if err != nil {
			log.Fatalf("%s: %v", file, err)
		}
		fmt.Println(row)
	}
}

// measure is one command of a round and the list that collects its rates.
type measure struct {
	into *[]float64
	rate func(*speeds) []float64
	args []string
}

// compare measures the two programs alternately on a file and returns a row of the table.
func (c *config) compare(file string) (string, error) {
	bandwidth := probe(c.threads)
	var prefill, peerPrefill, decode, peerOne, peerMany []float64
	var bytes float64
	ofPrefill := func(s *speeds) []float64 { return s.Prefill }
	ofPeer := func(s *speeds) []float64 { return s.Decode }
	ofDecode := func(s *speeds) []float64 {
		bytes = s.Bytes
		return s.Decode
	}
	round := []measure{
		{&decode, ofDecode, c.args(file, "-p", 0, "-d", c.depth, "-n", c.decode)},
		{&peerMany, ofPeer, c.peerArgs(file, c.threads, c.depth, c.decode)},
	}
	if c.threads > 1 {
		round = append(round, measure{&peerOne, ofPeer, c.peerArgs(file, 1, c.depth, c.decode)})
	}
	if c.prompt > 0 {
		round = append(round,
			measure{&prefill, ofPrefill, c.args(file, "-p", c.prompt, "-d", 0, "-n", 0)},
			measure{&peerPrefill, ofPrefill, c.peerArgs(file, c.threads, c.prompt, 1)})
	}
	for range c.runs {
		for _, m := range round {
			s, err := run(m.args)
			if err != nil {
				return "", err
			}
			*m.into = append(*m.into, m.rate(&s)...)
		}
	}
	peerDecode := max(bench.Median(peerOne), bench.Median(peerMany))
	p, pp, d := bench.Median(prefill), bench.Median(peerPrefill), bench.Median(decode)
	columns := "- | - | -"
	if c.prompt > 0 {
		columns = fmt.Sprintf("%.0f | %.0f | %.2f", p, pp, p/pp)
	}
	return fmt.Sprintf("| %s | %.1f | %s | %.1f | %.1f | %.2f | %.0f %% |", filepath.Base(file), bandwidth, columns,
		d, peerDecode, d/peerDecode, 100*d*bytes/1e9/bandwidth), nil
}

// args returns a command line of pianola with options and their values.
func (c *config) args(file string, options ...any) []string {
	args := []string{c.pianola, "bench", file, "--device", "cpu", "--json", "-r", "1", "-t", strconv.Itoa(c.threads)}
	for _, o := range options {
		args = append(args, fmt.Sprint(o))
	}
	return args
}

func (c *config) peerArgs(file string, threads, prompt, decode int) []string {
	args := append(strings.Fields(c.peer), file, "speed", "-r", "1")
	return append(args, "-t", strconv.Itoa(threads), "-p", strconv.Itoa(prompt), "-n", strconv.Itoa(decode))
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

// probe returns the rate in GB/s at which threads together read 1 GiB from memory. It is the
// best of five passes.
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

// xor reads every word and combines them, so that the compiler cannot omit the reads.
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
