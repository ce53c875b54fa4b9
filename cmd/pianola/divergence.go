package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
)

// divergence compares the distributions of a model with those of a base model, token by token, by the
// measures of llama-perplexity --kl-divergence.
type divergence struct {
	kl     []float64 // sum of p_base * (log p_base - log p) over the vocabulary
	change []float64 // p - p_base of the token that follows
	nll    []float64 // -log p of the token that follows
	base   []float64 // -log p_base
	same   int       // tokens for which both models prefer the same one
}

// add adds the distributions after a token, given as logits, of which the token next follows.
func (d *divergence) add(logits, base []float32, next int) error {
	if len(logits) != len(base) {
		return fmt.Errorf("logits of %d and of %d tokens", len(logits), len(base))
	}
	top, sum := normaliser(logits)
	baseTop, baseSum := normaliser(base)
	kl := 0.0
	for i, b := range base {
		logBase := float64(b) - float64(base[baseTop]) - baseSum
		if p := math.Exp(logBase); p > 0 {
			kl += p * (logBase - (float64(logits[i]) - float64(logits[top]) - sum))
		}
	}
	nll := sum + float64(logits[top]) - float64(logits[next])
	nllBase := baseSum + float64(base[baseTop]) - float64(base[next])
	if math.IsNaN(kl) || math.IsNaN(nll) || math.IsNaN(nllBase) {
		return errors.New("some logits are NaN")
	}
	d.kl = append(d.kl, max(0, kl)) // it is not negative but for rounding
	d.change = append(d.change, math.Exp(-nll)-math.Exp(-nllBase))
	d.nll, d.base = append(d.nll, nll), append(d.base, nllBase)
	if top == baseTop {
		d.same++
	}
	return nil
}

// normaliser returns the index of the largest logit, the first of equals, and the logarithm of the sum of the exponentials
// of the logits, relative to the largest.
func normaliser(logits []float32) (top int, logSum float64) {
	for i, v := range logits {
		if v > logits[top] {
			top = i
		}
	}
	sum := 0.0
	for _, v := range logits {
		sum += math.Exp(float64(v) - float64(logits[top]))
	}
	return top, math.Log(sum)
}

// estimate is a mean and its standard error.
type estimate struct {
	Mean  float64 `json:"mean"`
	Error float64 `json:"error"`
}

// mean returns the mean of values and its standard error.
func mean(values []float64) estimate {
	m := 0.0
	for _, v := range values {
		m += v / float64(len(values))
	}
	return estimate{m, math.Sqrt(covariance(values, values))}
}

// covariance returns the covariance of the means of two lists.
func covariance(a, b []float64) float64 {
	n := float64(len(a))
	if n < 2 {
		return 0
	}
	ma, mb := 0.0, 0.0
	for i := range a {
		ma, mb = ma+a[i]/n, mb+b[i]/n
	}
	sum := 0.0
	for i := range a {
		sum += (a[i] - ma) * (b[i] - mb)
	}
	return sum / n / (n - 1)
}

// quantiles are values that a share of a list does not exceed.
type quantiles struct {
	Max    float64 `json:"max"`
	P999   float64 `json:"p99_9"`
	P99    float64 `json:"p99"`
	P95    float64 `json:"p95"`
	P90    float64 `json:"p90"`
	P75    float64 `json:"p75"`
	Median float64 `json:"median"`
	P25    float64 `json:"p25"`
	P10    float64 `json:"p10"`
	P5     float64 `json:"p5"`
	P1     float64 `json:"p1"`
	P01    float64 `json:"p0_1"`
	Min    float64 `json:"min"`
}

// quantilesOf returns the percentiles of a list that is not empty, interpolated between neighbours.
func quantilesOf(values []float64) quantiles {
	sorted := slices.Sorted(slices.Values(values))
	at := func(share float64) float64 {
		x := share * float64(len(sorted)-1)
		i := int(x)
		if i+1 >= len(sorted) {
			return sorted[len(sorted)-1]
		}
		return sorted[i] + (x-float64(i))*(sorted[i+1]-sorted[i])
	}
	return quantiles{at(1), at(0.999), at(0.99), at(0.95), at(0.9), at(0.75), at(0.5), at(0.25), at(0.1), at(0.05), at(0.01), at(0.001), at(0)}
}

// divergenceResult is the comparison of a model with a base model.
type divergenceResult struct {
	Tokens int      `json:"tokens"` // scored tokens
	PPL    estimate `json:"ppl"`
	Base   estimate `json:"ppl_base"`
	// LogRatio is the logarithm of the ratio of the perplexities, of the model's to the base's.
	LogRatio    estimate `json:"log_ppl_ratio"`
	Correlation float64  `json:"log_ppl_correlation"` // of the logarithms of the tokens' probabilities

	KL            estimate  `json:"kld"`
	KLPercentiles quantiles `json:"kld_percentiles"`

	// Change is the change of the probability of the token that follows, 0 to 1.
	Change            estimate  `json:"delta_p"`
	ChangeRMS         float64   `json:"delta_p_rms"`
	ChangePercentiles quantiles `json:"delta_p_percentiles"`

	Top estimate `json:"top_agreement"` // share of tokens for which both models prefer the same one
}

// result returns the comparison of at least one token.
func (d *divergence) result() divergenceResult {
	n := float64(len(d.kl))
	nll, base := mean(d.nll), mean(d.base)
	perplexity := func(e estimate) estimate { return estimate{math.Exp(e.Mean), math.Exp(e.Mean) * e.Error} }
	both := covariance(d.nll, d.base)
	ratio := estimate{nll.Mean - base.Mean, math.Sqrt(max(0, nll.Error*nll.Error+base.Error*base.Error-2*both))}
	r := divergenceResult{
		Tokens: len(d.kl), PPL: perplexity(nll), Base: perplexity(base), LogRatio: ratio, Correlation: 1,
		KL: mean(d.kl), KLPercentiles: quantilesOf(d.kl), Change: mean(d.change), ChangePercentiles: quantilesOf(d.change),
	}
	if nll.Error*base.Error > 0 {
		r.Correlation = both / (nll.Error * base.Error)
	}
	squares := 0.0
	for _, x := range d.change {
		squares += x * x / n
	}
	r.ChangeRMS = math.Sqrt(squares)
	share := float64(d.same) / n
	r.Top = estimate{share, math.Sqrt(share * (1 - share) / max(1, n-1))}
	return r
}

// write prints the comparison as text.
func (r *divergenceResult) write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, unit string, scale float64, e estimate) {
		fmt.Fprintf(t, "%s\t%.6g ± %.3g%s\n", name, scale*e.Mean, scale*e.Error, unit)
	}
	line("perplexity", "", 1, r.PPL)
	line("perplexity of the base", "", 1, r.Base)
	line("log of their ratio", "", 1, r.LogRatio)
	fmt.Fprintf(t, "correlation of log-probabilities\t%.2f %%\n", 100*r.Correlation)
	line("KL divergence", "", 1, r.KL)
	r.KLPercentiles.write(t, 1, "")
	line("change of the next token's probability", " %", 100, r.Change)
	fmt.Fprintf(t, "  root mean square\t%.4g %%\n", 100*r.ChangeRMS)
	r.ChangePercentiles.write(t, 100, " %")
	line("same most probable token", " %", 100, r.Top)
	return t.Flush()
}

// write prints the percentiles.
func (p *quantiles) write(w io.Writer, scale float64, unit string) {
	for _, v := range []struct {
		name string
		v    float64
	}{
		{"maximum", p.Max}, {"99.9 %", p.P999}, {"99 %", p.P99}, {"95 %", p.P95}, {"90 %", p.P90}, {"75 %", p.P75}, {"median", p.Median},
		{"25 %", p.P25}, {"10 %", p.P10}, {"5 %", p.P5}, {"1 %", p.P1}, {"0.1 %", p.P01}, {"minimum", p.Min},
	} {
		fmt.Fprintf(w, "  %s\t%.4g%s\n", v.name, scale*v.v, unit)
	}
}
