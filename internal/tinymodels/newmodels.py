"""Makes small models of the tests from configurations alone.

    python3 newmodels.py CONFIGS OUT TINYMODELS [--jobs N] [--first-seed SEED]

CONFIGS has a folder with a config.json for each new model, and TINYMODELS is the compiled command
internal/tinymodels/cmd. The script writes newmodels.tar.gz to OUT, with config.json, weights.json and
golden.json for each model, and table.txt.

The names, types and shapes of the tensors come from transformers, which instantiates the model and saves
it. Of several seeds, the script keeps one whose greedy tokens vary and whose second-best logits are not
too close to the best ones.
"""

import argparse
import functools
import json
import math
import multiprocessing
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
import traceback

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

import goldens

NAMES = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32"}
SEEDS = 4  # tried
KINDS, GAP = 8, 5e-4  # of the greedy tokens that end the search for a seed
GREEDY = 48  # tokens of each case


def factor(text):
    """Returns the factor by which a model multiplies its embeddings, or None if it has none."""
    if text.model_type.startswith("gemma"):
        return math.sqrt(text.hidden_size)
    return getattr(text, "embedding_multiplier", None)


def distribution(name, tensor, text):
    """Returns the mean and the standard deviation of a tensor's values, from those that transformers chooses."""
    t = tensor.float()
    if not torch.isfinite(t).all():
        t = torch.zeros(t.shape)
    if t.ndim >= 2 and t.numel() > max(t.shape):
        if "embed" in name and factor(text):
            # Larger values of the input embedding would outweigh what the layers add, and a model with tied
            # embeddings would repeat its input.
            return 0, round(0.4 / factor(text), 4)
        if "embed" in name:
            return 0, round(1.5 / math.sqrt(t.shape[-1]), 3) if text.tie_word_embeddings else 1
        inputs = t.shape[-1] if t.ndim == 2 or t.shape[1] == 1 else math.sqrt(t.shape[-1] * t.shape[-2])
        return 0, round(min(0.6, 1.5 / math.sqrt(inputs)), 3)
    if t.max() == t.min():
        return round(t.mean().item(), 3), 0.15
    if name.endswith(("A_log", "dt_bias", ".D")):
        return round(t.mean().item(), 3), round(t.std().item(), 3)
    return 0, 0.15


def tensors(folder):
    """Returns the entries of weights.json of a model that has only a config.json, and its vocabulary's size."""
    config = AutoConfig.from_pretrained(folder)
    with open(os.path.join(folder, "config.json")) as f:
        raw = json.load(f)
    dtype = getattr(torch, raw.get("dtype") or raw.get("torch_dtype") or "float16")
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    text = config.get_text_config()
    found = []
    with tempfile.TemporaryDirectory() as saved:
        model.save_pretrained(saved)
        for file in sorted(f for f in os.listdir(saved) if f.endswith(".safetensors")):
            with safe_open(os.path.join(saved, file), "pt") as weights:
                for name in sorted(weights.keys()):
                    t = weights.get_tensor(name)
                    mean, std = distribution(name, t, text)
                    found.append({"name": name, "dtype": NAMES[t.dtype], "shape": list(t.shape), "mean": mean, "std": std})
    return found, text.vocab_size


def prompts(vocab):
    """Returns a golden.json with prompts of 1, 7 and 40 tokens and no results."""
    lists = [[vocab - 4], [5, 17, 3, 101, 7, 60, 9], [(i * 37 + 11) % (vocab - 8) + 4 for i in range(40)]]
    return {"cases": [{"prompt_ids": ids, "greedy_ids": [0] * GREEDY} for ids in lists]}


def attempt(root, config, name, entries, vocab, seed, tinymodels):
    """Writes a model with the weights of a seed, and computes its results."""
    folder = os.path.join(root, "testdata", "variants", name)
    shutil.copytree(config, folder)
    with open(os.path.join(folder, "weights.json"), "w") as f:
        lines = ",\n".join(json.dumps(t, separators=(",", ":")) for t in entries)
        f.write(f'{{"seed": {seed},\n"files": [{{"name": "model.safetensors", "sha256": "", "tensors": [\n{lines}\n]}}]}}\n')
    with open(os.path.join(folder, "golden.json"), "w") as f:
        json.dump(prompts(vocab), f)
    for action in (["-sums"], ["-o", os.path.join(root, "models")]):
        run = subprocess.run([tinymodels, "-testdata", os.path.join(root, "testdata"), *action], capture_output=True, text=True)
        if run.returncode:
            raise RuntimeError(f"tinymodels {action[0]}: {run.stderr.strip()}")
    _, new, faults = goldens.compute(os.path.join(root, "models", "variants", name))
    with open(os.path.join(folder, "golden.json"), "w") as f:
        json.dump(new, f)
    return folder, new, faults


def make(args, name):
    """Makes a model and returns its line of the table. OUT/models/NAME has its files."""
    start = time.time()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    torch.manual_seed(1)
    try:
        config = os.path.join(args.configs, name)
        entries, vocab = tensors(config)
        best = None
        with tempfile.TemporaryDirectory() as root:
            for seed in range(args.first_seed, args.first_seed + SEEDS):
                folder, new, faults = attempt(os.path.join(root, str(seed)), config, name, entries, vocab, seed, args.tinymodels)
                gap = min(min(c["top2_gap"]) for c in new["cases"])
                kinds = min(KINDS, min(len(set(c["greedy_ids"])) for c in new["cases"]))
                if best is None or (kinds, gap) > best[:2]:
                    largest = max(abs(x) for c in new["cases"] for x in c["last_prompt_logits"])
                    best = (kinds, gap, seed, folder, largest, faults)
                if kinds == KINDS and gap > GAP:
                    break
            kinds, gap, seed, folder, largest, faults = best
            shutil.copytree(folder, os.path.join(args.out, "models", name))
        verdict = "FAULT" if faults else "ok   "
        return f"{verdict} {name:28} {time.time() - start:5.1f} s  seed {seed}  kinds {kinds}  gap {gap:.5f}  largest logit {largest:.2f} {' '.join(faults)}"
    except Exception:
        return f"FAIL  {name}\n" + "\n".join(traceback.format_exc().strip().splitlines()[-6:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("configs")
    parser.add_argument("out")
    parser.add_argument("tinymodels")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--first-seed", type=int, default=1)
    args = parser.parse_args()
    args.tinymodels = os.path.abspath(args.tinymodels)
    os.makedirs(args.out, exist_ok=True)
    names = sorted(n for n in os.listdir(args.configs) if os.path.exists(os.path.join(args.configs, n, "config.json")))
    with multiprocessing.Pool(args.jobs) as pool, open(os.path.join(args.out, "table.txt"), "w") as table:
        for line in pool.imap_unordered(functools.partial(make, args), names):
            print(line, flush=True)
            table.write(line + "\n")
    models = os.path.join(args.out, "models")
    with tarfile.open(os.path.join(args.out, "newmodels.tar.gz"), "w:gz") as tar:
        if os.path.exists(models):
            tar.add(models, "variants")
    shutil.rmtree(models, ignore_errors=True)


if __name__ == "__main__":
    main()
