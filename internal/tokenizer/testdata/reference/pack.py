#!/usr/bin/env python3
"""Converts the output of make.py to the form that the tests read.

    python3 pack.py DIR        DIR is the unpacked out.tar.gz; the files are written to this folder
"""
import gzip, json, os, struct, sys

IN, OUT = sys.argv[1], os.path.dirname(os.path.abspath(__file__))


def load(name):
    return json.load(open(os.path.join(IN, name), encoding="utf-8"))


def raw(name, data):
    with open(os.path.join(OUT, name + ".gz"), "wb") as f, gzip.GzipFile("", "wb", 9, f, 0) as g:
        g.write(data)


def put(name, value):
    raw(name, json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def without_map(o):
    if isinstance(o, dict):
        return {k: "$charsmap" if k == "precompiled_charsmap" else without_map(v) for k, v in o.items()}
    return [without_map(v) for v in o] if isinstance(o, list) else o


def repeats(rows):
    """Puts None for what equals the value before it in a row."""
    out = []
    for row in rows:
        last, line = None, []
        for i, v in enumerate(row):
            line.append(None if i and v == last else v)
            last = v
        out.append(line)
    return out


def fnv(ids):
    h = 0xCBF29CE484222325
    for i in ids:
        for b in struct.pack("<i", i):
            h = (h ^ b) * 0x100000001B3 & (1 << 64) - 1
    return h


put("cases.json", load("cases.json"))
put("bases.json", load("bases.json"))
for name in ("norm.json", "pre.json"):
    file = load(name)
    put(name, {"parts": without_map(file["parts"]), "results": repeats(file["results"])})

variants, texts = load("variants.json"), range(len(load("cases.json")))
for v in variants:
    v["special"] = bool(v.pop("template"))
    if v["name"] == "llama2 normalized added":
        # 0.23.2 decodes added tokens that are normalized as their normalised texts.
        v.update(lossy=True, decoded=[""] * len(texts), random=[], random_decoded=[])
    for a in v["added_tokens"]:
        # The ids that tokenizers gave, where make.py asked for others.
        if v["name"] == "gemma":
            a["id"] = {"▁▁": 352, "  ": 901}.get(a["content"], a["id"])
put("variants.json", {
    "variants": [{k: x for k, x in v.items() if k not in ("ids", "decoded")} for v in variants],
    "ids": repeats([[v["ids"][i] for v in variants] for i in texts]),
    "decoded": repeats([[v["decoded"][i] for v in variants] for i in texts]),
})

pieces = [m for m in load("spm.json") if m["name"] not in ("char", "word")]
for m in pieces:
    m["long"] = {"Count": len(m["long"]), "FNV": fnv(m["long"])}
    raw(m["file"], open(os.path.join(IN, "spm", m["file"]), "rb").read())
put("spm.json", pieces)
