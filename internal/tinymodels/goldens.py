"""Computes the reference results of the tests' small models with transformers.

    python3 goldens.py MODELS OUT [--known KNOWN] [--only NAME ...]

MODELS is the output of `go run ./internal/tinymodels/cmd -o MODELS`: a folder for each model with
config.json, the weights and golden.json, whose prompts the script reuses. The script writes
goldens.tar.gz, which contains files such as tiny/llama/golden.json, and table.txt to OUT.

KNOWN contains models whose golden.json is known to be correct. The script computes them first and
compares the results, to check that it and the installed transformers work as expected.

Logits are computed in float32 on the CPU. Each greedy token is computed by a forward pass over all
tokens before it, so that no KV cache is involved.
"""

import argparse
import hashlib
import io
import json
import os
import sys
import tarfile
import time
import traceback

import torch
import transformers
from transformers import AutoModelForCausalLM

DIGITS = 5  # of logits and gaps


def load(folder):
    """Returns the model of a folder in float32, its configuration, and what was missing or left over."""
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    kwargs = dict(dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    model = None
    if any(k in config for k in ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")):
        try:
            model, info = AutoModelForCausalLM.from_pretrained(folder, experts_implementation="eager", **kwargs)
        except Exception as e:  # of a version that has no such choice
            print(f"{folder}: experts_implementation: {e!r}", flush=True)
    if model is None:
        model, info = AutoModelForCausalLM.from_pretrained(folder, **kwargs)
    info = info if isinstance(info, dict) else vars(info)
    faults = []
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        keys = sorted(map(str, info.get(kind) or []))
        if keys and not (keys == ["lm_head.weight"] and config.get("tie_word_embeddings")):
            faults.append(f"{kind}: {keys[:4]}")
    if {p.dtype for p in model.parameters()} != {torch.float32}:
        faults.append("parameters are not all float32")
    return model.eval(), config, faults


def last_logits(model, ids):
    out = model(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), use_cache=False)
    return out.logits[0, -1].double()


def case(model, prompt, count):
    ids, gaps, first = list(prompt), [], None
    for _ in range(count):
        logits = last_logits(model, ids)
        if not torch.isfinite(logits).all():
            raise RuntimeError("logits are not finite")
        if first is None:
            first = logits
        best = torch.topk(logits, 2)
        gaps.append(round((best.values[0] - best.values[1]).item(), DIGITS))
        ids.append(int(best.indices[0]))
    return {
        "prompt_ids": list(prompt),
        "last_prompt_logits": [round(x, DIGITS) for x in first.tolist()],
        "greedy_ids": ids[len(prompt):],
        "top2_gap": gaps,
    }


def checksums(folder):
    sums = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            with open(os.path.join(folder, name), "rb") as f:
                sums[name] = hashlib.sha256(f.read()).hexdigest()
    return sums


def compute(folder):
    with open(os.path.join(folder, "golden.json")) as f:
        old = json.load(f)
    model, config, faults = load(folder)
    dtype = config.get("dtype") or config.get("torch_dtype")
    with torch.inference_mode():
        cases = [case(model, c["prompt_ids"], len(c["greedy_ids"])) for c in old["cases"]]
    new = {
        "source": f"transformers {transformers.__version__}, float32 arithmetic on {dtype} weights",
        "weights_sha256": checksums(folder),
        "cases": cases,
    }
    return old, new, faults


def models(root):
    found = []
    for folder, _, files in sorted(os.walk(root)):
        if "config.json" in files and "golden.json" in files:
            found.append((os.path.relpath(folder, root), folder))
    return sorted(found)


def difference(old, new):
    """Describes how results differ: the largest difference of a logit, and greedy ids."""
    worst, tokens = 0.0, 0
    for a, b in zip(old["cases"], new["cases"], strict=True):
        worst = max([worst] + [abs(x - y) for x, y in zip(a["last_prompt_logits"], b["last_prompt_logits"], strict=True)])
        tokens += sum(x != y for x, y in zip(a["greedy_ids"], b["greedy_ids"], strict=True))
    return worst, tokens


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("models")
    parser.add_argument("out")
    parser.add_argument("--known")
    parser.add_argument("--only", nargs="*")
    args = parser.parse_args()
    torch.set_num_threads(min(4, os.cpu_count() or 1))
    torch.manual_seed(0)
    os.makedirs(args.out, exist_ok=True)
    lines, failed = [], 0

    def say(line):
        print(line, flush=True)
        lines.append(line)

    say(f"torch {torch.__version__}, transformers {transformers.__version__}")
    for name, folder in models(args.known) if args.known else []:
        start = time.time()
        try:
            old, new, faults = compute(folder)
            worst, tokens = difference(old, new)
            verdict = "same" if worst <= 2e-4 and tokens == 0 and not faults else "DIFFERENT"
            failed += verdict != "same"
            say(f"known {name:30} {time.time() - start:6.1f} s  {verdict}: logits differ by at most {worst:.1e}, {tokens} greedy tokens {' '.join(faults)}")
        except Exception:
            failed += 1
            say(f"known {name:30} FAILED\n{traceback.format_exc()}")

    with tarfile.open(os.path.join(args.out, "goldens.tar.gz"), "w:gz") as tar:
        for name, folder in models(args.models):
            if args.only and name not in args.only:
                continue
            start = time.time()
            try:
                _, new, faults = compute(folder)
            except Exception:
                failed += 1
                say(f"      {name:30} FAILED\n{traceback.format_exc()}")
                continue
            failed += bool(faults)
            data = json.dumps(new).encode()
            info = tarfile.TarInfo(f"{name}/golden.json")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
            gap = min(min(c["top2_gap"]) for c in new["cases"])
            kinds = [len(set(c["greedy_ids"])) for c in new["cases"]]
            largest = max(abs(x) for c in new["cases"] for x in c["last_prompt_logits"])
            say(f"      {name:30} {time.time() - start:6.1f} s  least gap {gap:.5f}  kinds of tokens {kinds}  largest logit {largest:.2f} {' '.join(faults)}")
    say(f"{failed} failed")
    with open(os.path.join(args.out, "table.txt"), "w") as f:
        f.write("\n".join(lines) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
