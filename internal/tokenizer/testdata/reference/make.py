#!/usr/bin/env python3
"""Trains small tokenizers of every kind and writes what the reference libraries make of a list of texts.

    OUT=DIR python3 make.py        writes $OUT/out.tar.gz

heldout.txt and corpus.txt, of testdata/gopher and tokenizer/testdata, lie beside it.
"""
import base64, copy, io, json, os, random, struct, sys, tarfile, time, traceback

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.environ.get("OUT", ".")
START = time.time()
os.environ["TOKENIZERS_PARALLELISM"] = "false"

heldout = open(os.path.join(HERE, "heldout.txt"), encoding="utf-8").read()
corpus = open(os.path.join(HERE, "corpus.txt"), encoding="utf-8").read()

EXTRA = [
    "", " ", "  ", "   ", "\n", "\r\n", "\t", "\u3000", "a", " a", "a ", " a ", "  a  b  ", "a\nb", "a\n\n\nb\n", "\n a", "▁", "▁▁a", "a▁b", " ▁ ", "a  ", "  leading", "trailing  ",
    "Hello, world!", "hello world hello", "HELLO World", "it's we're IT'S don't can't I'm", "do not n't 's 've 're 'm ' . , ! ?", "a . b , c ! d ? e ' f",
    "x=1;y=22;z=333;w=4444", "3.14159 1,000,000", "0xFF 1e-9", "½²³Ⅷ٣٤٥१२३①", "１２３ＡＢＣ　ａｂｃ", "ﬁ ﬂ ﬃ ſ ǅ ℌ ㎏ ㌔ ﷺ",
    "é e\u0301 E\u0301 ñ n\u0303 Å A\u030a", "İstanbul ıI İ", "ΑΣ ΣΑΣ Σ ὈΔΥΣΣΕΎΣ", "Straße STRASSE ẞ", "naïve café résumé", "Ünïcödé Ångström",
    "中文字符和English混合", "日本語カタカナーひらがな漢字", "한국어 조선말 가각 \u1100\u1161\u11a8", "ﾊﾝｶｸ ｶﾞ", "ไทยไม่มีช่องว่าง", "हिन्दी क्षत्रिय", "שָׁלוֹם مرحبا", "ế ề e\u0302\u0301",
    "😀😃👨‍👩‍👧‍👦👩🏽‍💻🏳️‍🌈🇩🇪🇫🇷❤️1️⃣", "a\u200bb\u200cc\u200dd\u2060e\ufefff\u00adg", "a\u00a0b\u2003c\u2028d\u2029e\u0085f\u1680g", "\x00\x01\x02\x1f\x7f\x80\x9f", "\ufffd repl \ufffd",
    "\ue000 private \U000f0000", "\u0378 unassigned \U0001fabf", "<s> </s> <unk> <0x41> <pad>", "<mask> a <mask>b<mask>  <mask>\n", "[CLS] x [SEP] [MASK]", "<0xE4><0xB8>",
    "_a_b__c_ -d- --e-- a-b", "foo(bar[baz]{qux}) += *p->x;", "if err != nil {\n\treturn nil, err\n}\n", "http://example.com/a?b=c&d=e#f user@host", "C:\\Windows\\System32 /usr/bin",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "ab" * 60, "return" * 20, "                                        x", "=" * 70, "1" * 30,
    "a" + "\u0301\u0323\u0308" * 20 + "b", "a" + "\u0323\u0301" * 14 + "b", "e" + "\u0301" * 40, "\u0344\u0f73 \u0958 \u2126 \u212b \ufb1d", "𝕳𝖊𝖑𝖑𝖔 𐍈 𠀀𠮷 𞤀𞤢", "Ꭰ ꭰ ა Ა ß ŉ ǰ ΐ", "ǆ Ǆ ǅ Ж ж",
    "CamelCaseHTTPServer XMLHttpRequest iPhone ABCdefGHI", "A'S B'll I'D 'Tis rock'n'roll l'été", "tab\tand  two   three    four", "line1\r\nline2\rline3\n", "。，、！？「」", "…—–‘q’“q”«q»¿q?¡q!", "$+<=>^`|~ ¢£¤¥ ©®™ §¶†‡•", "∀x∈ℝ: ∃y ≤ ∑ᵢ xᵢ² ≠ √π",
    "«a»b", "a,b.c!d?e:f;g", "don't stop, won't stop.", "e\u0301\u0301 a\u0300\u0316", "\r\n\r\n", " \n \n ", "zz azz zz. _zz zz", "<tool>x</tool> a<tool>", " <tool>  b",
]
CASES = EXTRA + corpus.split("\n") + [corpus, heldout[5000:7000]]
CASES = list(dict.fromkeys(CASES))
LINES = (heldout.split("\n") + corpus.split("\n") * 3)

report = {"versions": {"python": sys.version}, "errors": []}
files = {}


def attempt(name, f, *args):
    t = time.time()
    try:
        return f(*args)
    except Exception:
        report["errors"].append([name, traceback.format_exc()[-1500:]])
        return None
    finally:
        print("%6.1f %6.1f %s" % (time.time() - START, time.time() - t, name), flush=True)


# Parts of published tokenizer.json files.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CL100K = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN35 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK3 = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"


def seq(key, *parts):
    return {"type": "Sequence", key: list(parts)}


def pre(*parts):
    return seq("pretokenizers", *parts) if len(parts) != 1 else parts[0]


def norm(*parts):
    return seq("normalizers", *parts) if len(parts) != 1 else parts[0]


def dec(*parts):
    return seq("decoders", *parts) if len(parts) != 1 else parts[0]


def split(regex=None, string=None, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": regex} if regex is not None else {"String": string}, "behavior": behavior, "invert": invert}


def bl(regex=True, prefix=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def meta(scheme="always", do_split=True, rep="▁"):
    return {"type": "Metaspace", "replacement": rep, "prepend_scheme": scheme, "split": do_split}


def replace(content, string=None, regex=None):
    return {"type": "Replace", "pattern": {"String": string} if string is not None else {"Regex": regex}, "content": content}


def digits(individual):
    return {"type": "Digits", "individual_digits": individual}


def punct(behavior="Isolated"):
    return {"type": "Punctuation", "behavior": behavior}


def bertnorm(clean=True, chinese=True, accents=None, lower=True):
    return {"type": "BertNormalizer", "clean_text": clean, "handle_chinese_chars": chinese, "strip_accents": accents, "lowercase": lower}


BEHAVIORS = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
PRE = {
    "gpt2": bl(), "bytelevel no regex": bl(False), "bytelevel prefix": bl(True, True), "bytelevel no regex prefix": bl(False, True),
    "llama3": pre(split(LLAMA3), bl(False)), "cl100k": pre(split(CL100K, behavior="Removed", invert=True), bl(False)), "cl100k isolated": pre(split(CL100K), bl(False)),
    "qwen2": pre(split(QWEN2), bl(False)), "qwen35": pre(split(QWEN35), bl(False)), "o200k": pre(split(O200K, behavior="Removed", invert=True), bl(False)), "o200k isolated": pre(split(O200K), bl(False)),
    "tekken": pre(split(TEKKEN), bl(False)),
    "starcoder": pre(digits(True), bl()), "falcon": pre(punct("Contiguous"), bl(), digits(False), split("[0-9][0-9][0-9]")),
    "smollm3": pre(split(LLAMA3), bl(False)), "olmo2": pre(split(CL100K.replace("?+", "?").replace("++", "+")), bl(False)),
    "deepseek3": pre(split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK3), bl(False)),
    "deepseek llm": pre(split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"), digits(True), bl(False)),
    "bloom": pre(split(BLOOM), bl(False)),
    "phi3": meta("first", False), "whitespace": {"type": "Whitespace"}, "whitespace split": {"type": "WhitespaceSplit"},
    "bert": {"type": "BertPreTokenizer"}, "scripts": {"type": "UnicodeScripts"}, "char": {"type": "CharDelimiterSplit", "delimiter": "a"},
    "digits": digits(False), "digits individual": digits(True),
    "xlmr": pre({"type": "WhitespaceSplit"}, meta("always")), "xlmr first": pre({"type": "WhitespaceSplit"}, meta("first")), "xlmr never": pre({"type": "WhitespaceSplit"}, meta("never")),
    "whitespace digits punctuation": pre({"type": "Whitespace"}, digits(True), punct()), "metaspace underscore": meta("always", True, "_"),
    "gemma": split(string=" ", behavior="MergedWithPrevious"), "nested": pre(pre(digits(True), punct()), {"type": "WhitespaceSplit"}),
    "bert scripts": pre({"type": "UnicodeScripts"}, {"type": "Whitespace"}), "regex dot": split("."), "regex crlf": split("\r\n|\n"), "regex word": split(r"\w+|[^\w\s]+", behavior="Removed", invert=True),
    "regex i": split(r"(?i)HE|ſ"), "regex posix": split(r"[[:alpha:]]+|[[:space:]]"), "regex d": split(r"\d+"), "regex lazy": split(r"a+?b|\bthe\b"), "regex hex": split("[\\x{4e00}-\\x{9fff}]|[^\\W\\d]+"),
}
for scheme in ("always", "first", "never"):
    for do_split in (True, False):
        PRE["metaspace %s %s" % (scheme, do_split)] = meta(scheme, do_split)
for b in BEHAVIORS:
    PRE["punctuation " + b] = punct(b)
    for invert in (False, True):
        PRE["space %s %s" % (b, invert)] = split(string=" ", behavior=b, invert=invert)
        PRE["regex %s %s" % (b, invert)] = split(r"[0-9]|[a-z]+", behavior=b, invert=invert)

NORM = {
    "NFC": {"type": "NFC"}, "NFD": {"type": "NFD"}, "NFKC": {"type": "NFKC"}, "NFKD": {"type": "NFKD"}, "Lowercase": {"type": "Lowercase"},
    "StripAccents": {"type": "StripAccents"}, "NFD StripAccents": norm({"type": "NFD"}, {"type": "StripAccents"}), "Nmt": {"type": "Nmt"},
    "Strip": {"type": "Strip", "strip_left": True, "strip_right": True}, "Strip left": {"type": "Strip", "strip_left": True, "strip_right": False}, "Strip right": {"type": "Strip", "strip_left": False, "strip_right": True},
    "Prepend": {"type": "Prepend", "prepend": "▁"}, "Replace": replace("▁", " "), "Replace many": replace("xyz", "aa"), "Replace nothing": replace("", "e"), "Replace regex": replace(" ", regex=" {2,}"),
    "Replace regex class": replace("#", regex=r"[\p{Lu}0-9]+"), "Replace group": replace("$1", regex="(a)b"), "llama": norm({"type": "Prepend", "prepend": "▁"}, replace("▁", " ")),
    "bert": bertnorm(), "bert cased": bertnorm(lower=False), "bert cased accents": bertnorm(lower=False, accents=True), "bert accents kept": bertnorm(accents=False), "bert nothing": bertnorm(False, False, False, False), "bert clean": bertnorm(True, False, False, False), "bert chinese": bertnorm(False, True, False, False),
    "albert": norm(replace("\"", "``"), replace("\"", "''"), {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}), "NFKC lower": norm({"type": "NFKC"}, {"type": "Lowercase"}),
    "nested": norm(norm({"type": "NFKC"}, {"type": "Nmt"}), {"type": "Lowercase"}),
}


def tokenizers_part():
    import tokenizers
    from tokenizers import Tokenizer, models, trainers, pre_tokenizers, normalizers, decoders
    report["versions"]["tokenizers"] = tokenizers.__version__

    def empty(model):
        return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": model}

    wordlevel = {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}

    def with_pre(p):
        return Tokenizer.from_str(json.dumps({**empty(wordlevel), "pre_tokenizer": p})).pre_tokenizer

    def with_norm(n):
        return Tokenizer.from_str(json.dumps({**empty(wordlevel), "normalizer": n})).normalizer

    def trained(model, trainer, normalizer=None, pre_tokenizer=None, lines=None):
        t = Tokenizer(model)
        j = json.loads(t.to_str())
        j["normalizer"], j["pre_tokenizer"] = normalizer, pre_tokenizer
        t = Tokenizer.from_str(json.dumps(j))
        t.train_from_iterator(lines or LINES, trainer)
        return json.loads(t.to_str())

    BYTES = ["<0x%02X>" % b for b in range(256)]

    def byte_fallback(j, specials):
        keep = set(specials)
        j["added_tokens"] = [a for a in j["added_tokens"] if a["content"] in keep]
        j["normalizer"] = j["pre_tokenizer"] = None
        return j

    bases = {}

    def base_bytelevel():
        t = trained(models.BPE(), trainers.BpeTrainer(vocab_size=900, special_tokens=["<|endoftext|>", "<|im_start|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
                    pre_tokenizer=pre(split("\n", behavior="MergedWithPrevious"), bl(False)))
        return t

    def base_llama():
        j = trained(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True), trainers.BpeTrainer(vocab_size=900, special_tokens=["<unk>", "<s>", "</s>"] + BYTES, limit_alphabet=150, show_progress=False), pre_tokenizer=meta())
        return byte_fallback(j, ["<unk>", "<s>", "</s>"])

    def base_gemma():
        j = trained(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True), trainers.BpeTrainer(vocab_size=900, special_tokens=["<pad>", "<eos>", "<bos>", "<unk>"] + BYTES, limit_alphabet=200, show_progress=False),
                    normalizer=replace("▁", " "), pre_tokenizer=split("\n", behavior="MergedWithPrevious"), lines=LINES[:3000])
        return byte_fallback(j, ["<pad>", "<eos>", "<bos>", "<unk>"])

    def base_unk():
        return trained(models.BPE(unk_token="<unk>"), trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>", "<s>", "</s>"], limit_alphabet=70, show_progress=False), pre_tokenizer={"type": "Whitespace"})

    def base_affix():
        return trained(models.BPE(unk_token="[UNK]", continuing_subword_prefix="##", end_of_word_suffix="</w>"),
                       trainers.BpeTrainer(vocab_size=700, special_tokens=["[UNK]"], limit_alphabet=90, continuing_subword_prefix="##", end_of_word_suffix="</w>", show_progress=False), pre_tokenizer={"type": "Whitespace"})

    def base_suffix():
        return trained(models.BPE(unk_token="[UNK]", end_of_word_suffix="</w>"), trainers.BpeTrainer(vocab_size=600, special_tokens=["[UNK]"], limit_alphabet=90, end_of_word_suffix="</w>", show_progress=False), pre_tokenizer={"type": "BertPreTokenizer"})

    def base_unigram():
        return trained(models.Unigram(), trainers.UnigramTrainer(vocab_size=700, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False), pre_tokenizer=meta())

    def base_unigram_wide():
        j = trained(models.Unigram(), trainers.UnigramTrainer(vocab_size=500, special_tokens=["<s>", "<unk>"], unk_token="<unk>", show_progress=False), pre_tokenizer=split("\n", behavior="MergedWithPrevious"), lines=[l[:60] for l in LINES[:2500]])
        j["model"]["vocab"] += [[b, 0.0] for b in BYTES]
        return j

    def base_wordpiece():
        return trained(models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(vocab_size=800, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], limit_alphabet=160, show_progress=False), normalizer=bertnorm(), pre_tokenizer={"type": "BertPreTokenizer"})

    def base_wordpiece_cased():
        return trained(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20), trainers.WordPieceTrainer(vocab_size=800, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], limit_alphabet=120, show_progress=False), pre_tokenizer={"type": "Whitespace"})

    for f in (base_bytelevel, base_llama, base_gemma, base_unk, base_affix, base_suffix, base_unigram, base_unigram_wide, base_wordpiece, base_wordpiece_cased):
        j = attempt(f.__name__, f)
        if j is not None:
            bases[f.__name__[5:]] = j
    files["bases.json"] = json.dumps(bases, ensure_ascii=False).encode()

    # Components: every normalizer and pre-tokenizer on every case.
    def component(kind, table):
        names, results = [], []
        for name, p in table.items():
            def one():
                if kind == "pre":
                    t = with_pre(p)
                    return [[s for s, _ in t.pre_tokenize_str(c)] for c in CASES]
                t = with_norm(p)
                return [t.normalize_str(c) for c in CASES]
            r = attempt(kind + " " + name, one)
            if r is not None:
                names.append([name, p])
                results.append(r)
        # Case by case, so that what is alike lies together.
        files[kind + ".json"] = json.dumps({"parts": names, "results": [[r[i] for r in results] for i in range(len(CASES))]}, ensure_ascii=False).encode()

    charsmap = report.get("charsmap")
    if charsmap:
        NORM["Precompiled"] = {"type": "Precompiled", "precompiled_charsmap": charsmap}
        NORM["t5"] = norm(NORM["Precompiled"], {"type": "Strip", "strip_left": False, "strip_right": True}, replace("▁", regex=" {2,}"))
        NORM["xlmr"] = norm(NORM["Precompiled"], replace(" ", regex=" {2,}"))
    component("pre", PRE)
    component("norm", NORM)

    def special(i, content, **kw):
        return {"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True, **kw}

    def template(before, after):
        toks = {}
        single = [{"SpecialToken": {"id": t, "type_id": 0}} for t, _ in before] + [{"Sequence": {"id": "A", "type_id": 0}}] + [{"SpecialToken": {"id": t, "type_id": 0}} for t, _ in after]
        for t, i in before + after:
            toks[t] = {"id": t, "ids": [i], "tokens": [t]}
        return {"type": "TemplateProcessing", "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": toks}

    llama_norm = norm({"type": "Prepend", "prepend": "▁"}, replace("▁", " "))
    llama_dec = dec(replace(" ", "▁"), {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0})
    gemma_dec = dec(replace(" ", "▁"), {"type": "ByteFallback"}, {"type": "Fuse"})
    xlmr_dec = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    V = []

    def variant(name, base, template=None, model=None, added=None, **parts):
        V.append({"name": name, "base": base, "parts": parts, "model": model or {}, "added": added or [], "template": template})

    for name in ("gpt2", "bytelevel prefix", "llama3", "cl100k", "qwen2", "qwen35", "o200k", "tekken", "starcoder", "falcon", "smollm3", "olmo2", "deepseek3", "deepseek llm", "bloom"):
        variant(name, "bytelevel", pre_tokenizer=PRE[name], decoder=bl(), normalizer={"type": "NFC"} if name.startswith("qwen") else None, model={"ignore_merges": name in ("llama3", "tekken")},
                added=[special(900, "<tool>", special=False), special(901, "<mask>", lstrip=True), special(902, "zz", single_word=True, special=False)] if name in ("gpt2", "llama3") else None)
    variant("llama2", "llama", normalizer=llama_norm, decoder=llama_dec, post_processor=template([("<s>", 1)], []), template=True)
    variant("llama2 template", "llama", normalizer=llama_norm, decoder=llama_dec, post_processor=template([("<s>", 1)], [("</s>", 2)]), template=True)
    variant("phi3", "llama", normalizer=llama_norm, decoder=llama_dec, added=[special(2, "</s>", rstrip=True, special=False), special(900, "<tool>", rstrip=True), special(901, "<mask>", rstrip=True)])
    variant("llama2 normalized added", "llama", normalizer=llama_norm, decoder=llama_dec, added=[special(1, "<s>", normalized=True), special(900, "<tool>", normalized=True, special=False)])
    variant("mistral", "llama", pre_tokenizer=meta("first", False), decoder=llama_dec, added=[special(900, "<tool>"), special(901, "<mask>", lstrip=True)])
    variant("metaspace always", "llama", pre_tokenizer=meta("always", True), decoder=dec(meta("always", True)), added=[special(900, "<tool>")])
    variant("metaspace never", "llama", pre_tokenizer=meta("never", True), decoder=dec({"type": "ByteFallback"}, meta("never", True)), added=[special(900, "<tool>")])
    variant("gemma", "gemma", normalizer=replace("▁", " "), pre_tokenizer=PRE["gemma"], decoder=gemma_dec, post_processor=template([("<bos>", 2)], []), template=True, added=[special(900, "\n\n", special=False), special(901, "▁▁", special=False), special(902, "  ", special=False)])
    variant("gemma plain", "gemma", normalizer=replace("▁", " "), decoder=gemma_dec)
    variant("gemma ignore merges", "gemma", normalizer=replace("▁", " "), decoder=gemma_dec, pre_tokenizer=split(string="▁", behavior="MergedWithNext"), model={"ignore_merges": True})
    for fuse in (False, True):
        variant("unk fuse %s" % fuse, "unk", pre_tokenizer={"type": "WhitespaceSplit"}, model={"fuse_unk": fuse}, decoder={"type": "Fuse"})
        variant("unk line fuse %s" % fuse, "unk", model={"fuse_unk": fuse})
    variant("affix", "affix", pre_tokenizer={"type": "Whitespace"}, decoder={"type": "WordPiece", "prefix": "##", "cleanup": False})
    variant("suffix", "suffix", pre_tokenizer={"type": "BertPreTokenizer"}, normalizer=norm({"type": "NFC"}, {"type": "Lowercase"}))
    variant("unigram metaspace", "unigram", pre_tokenizer=meta(), decoder=xlmr_dec, post_processor=template([], [("</s>", 1)]), template=True)
    variant("unigram line", "unigram", normalizer=replace("▁", " "))
    variant("unigram bert post", "unigram", pre_tokenizer=PRE["xlmr"], decoder=xlmr_dec, post_processor={"type": "BertProcessing", "sep": ["</s>", 1], "cls": ["<pad>", 0]}, template=True)
    variant("unigram wide", "unigram_wide", decoder=dec({"type": "ByteFallback"}, {"type": "Fuse"}))
    variant("unigram wide bytes", "unigram_wide", decoder=dec({"type": "ByteFallback"}, {"type": "Fuse"}), model={"byte_fallback": True})
    if charsmap:
        ref = {"type": "Precompiled", "precompiled_charsmap": "$charsmap"}
        variant("t5", "unigram", normalizer=norm(ref, {"type": "Strip", "strip_left": False, "strip_right": True}, replace("▁", regex=" {2,}")), pre_tokenizer=meta("always", True), decoder=xlmr_dec, post_processor=template([], [("</s>", 1)]), template=True, added=[special(700, "<mask>", lstrip=True)])
        variant("xlmr", "unigram", normalizer=norm(ref, replace(" ", regex=" {2,}")), pre_tokenizer=PRE["xlmr"], decoder=xlmr_dec, added=[special(700, "<mask>", lstrip=True, normalized=True)])
    wp_dec = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    variant("bert", "wordpiece", normalizer=bertnorm(), pre_tokenizer={"type": "BertPreTokenizer"}, decoder=wp_dec, post_processor=template([("[CLS]", 2)], [("[SEP]", 3)]), template=True)
    variant("bert roberta post", "wordpiece", normalizer=bertnorm(), pre_tokenizer={"type": "BertPreTokenizer"}, decoder=wp_dec, post_processor={"type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2], "trim_offsets": True, "add_prefix_space": False}, template=True)
    variant("bert cased", "wordpiece_cased", normalizer=bertnorm(lower=False), pre_tokenizer={"type": "BertPreTokenizer"}, decoder={"type": "WordPiece", "prefix": "##", "cleanup": False})
    variant("wordpiece no decoder", "wordpiece_cased", pre_tokenizer={"type": "Whitespace"})

    rng = random.Random(7)
    out = []
    for v in V:
        def one():
            j = copy.deepcopy(bases[v["base"]])
            for k in ("normalizer", "pre_tokenizer", "decoder", "post_processor"):
                j[k] = v["parts"].get(k)
            text = json.dumps(j).replace("$charsmap", charsmap or "")
            j = json.loads(text)
            j["model"].update(v["model"])
            have = {a["id"]: a for a in v["added"]}
            size = len(j["model"]["vocab"])
            j["added_tokens"] = [a for a in j["added_tokens"] if a["id"] not in have] + list(have.values())
            # Ids of new tokens follow the vocabulary.
            new = [a for a in j["added_tokens"] if a["id"] >= 700 and a["id"] not in (j["model"]["vocab"].values() if isinstance(j["model"]["vocab"], dict) else [])]
            for n, a in enumerate(new):
                a["id"] = size + n
            v["added_tokens"] = j["added_tokens"]
            t = Tokenizer.from_str(json.dumps(j))
            special_too = bool(v["template"])
            ids = [t.encode(c, add_special_tokens=special_too).ids for c in CASES]
            v["ids"] = ids
            v["decoded"] = [t.decode(i, skip_special_tokens=True) for i in ids]
            n = t.get_vocab_size()
            v["random"] = [[rng.randrange(n) for _ in range(9)] for _ in range(12)]
            v["random_decoded"] = [t.decode(i, skip_special_tokens=True) for i in v["random"]]
            del v["added"]
            out.append(v)
        attempt("variant " + v["name"], one)
    files["variants.json"] = json.dumps(out, ensure_ascii=False).encode()


def fields(b):
    """The fields of a protobuf message: (number, value)."""
    i, out = 0, []

    def varint():
        nonlocal i
        n = s = 0
        while True:
            c = b[i]
            i += 1
            n |= (c & 127) << s
            s += 7
            if c < 128:
                return n
    while i < len(b):
        key = varint()
        if key & 7 == 0:
            v = varint()
        elif key & 7 == 2:
            n = varint()
            v = b[i:i + n]
            i += n
        elif key & 7 == 5:
            v = b[i:i + 4]
            i += 4
        else:
            v = b[i:i + 8]
            i += 8
        out.append((key >> 3, v))
    return out


def sentencepiece_part():
    import sentencepiece as spm
    report["versions"]["sentencepiece"] = getattr(spm, "__version__", "?")
    lines = [l for l in LINES if l.strip()]
    tsv = os.path.join(OUT, "rules.tsv")
    with open(tsv, "w", encoding="utf-8") as f:
        for a, b in (("A", "a"), ("É", "e"), ("\t", " "), ("\n", " "), ("ﬁ", "fi"), ("½", "1 2"), ("e\u0301", "é"), ("\u200b", ""), ("\u3000", " "), ("...", "…")):
            f.write(" ".join("%04X" % ord(c) for c in a) + "\t" + " ".join("%04X" % ord(c) for c in b) + "\n")
    common = dict(num_threads=1, minloglevel=2, character_coverage=0.995, hard_vocab_limit=False, input_sentence_size=0)
    kinds = {
        "llama": dict(model_type="bpe", vocab_size=900, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True),
        "gemma": dict(model_type="bpe", vocab_size=900, byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=False, split_digits=True, allow_whitespace_only_pieces=True,
                      pad_id=0, eos_id=1, bos_id=2, unk_id=3, user_defined_symbols=["<mask>", "\n\n", "\n", "▁▁", "▁▁▁", "▁▁▁▁", "<tool>"], control_symbols=["<start_of_turn>"]),
        "bpe": dict(model_type="bpe", vocab_size=700, normalization_rule_tsv=tsv),
        "bpe wide": dict(model_type="bpe", vocab_size=600, normalization_rule_name="identity", remove_extra_whitespaces=False, split_by_whitespace=False, split_by_unicode_script=False, split_by_number=False, byte_fallback=True, max_sentencepiece_length=12),
        "bpe suffix": dict(model_type="bpe", vocab_size=600, treat_whitespace_as_suffix=True, normalization_rule_name="identity"),
        "unigram": dict(model_type="unigram", vocab_size=700, normalization_rule_name="nmt_nfkc", pad_id=0, eos_id=1, unk_id=2, bos_id=-1),
        "unigram bytes": dict(model_type="unigram", vocab_size=900, normalization_rule_name="identity", byte_fallback=True, remove_extra_whitespaces=False, user_defined_symbols=["<mask>", "the", "    "], control_symbols=["<tool>"]),
        "unigram tsv": dict(model_type="unigram", vocab_size=600, normalization_rule_tsv=tsv, split_by_whitespace=False, max_sentencepiece_length=10),
        "unigram suffix": dict(model_type="unigram", vocab_size=600, normalization_rule_name="identity", treat_whitespace_as_suffix=True, byte_fallback=True),
        "char": dict(model_type="char", vocab_size=200), "word": dict(model_type="word", vocab_size=300),
    }
    out = []
    rng = random.Random(8)
    for name, kw in kinds.items():
        def one():
            w = io.BytesIO()
            ls = lines if "wide" not in name else [l[:60] for l in lines[:2500]]
            spm.SentencePieceTrainer.train(sentence_iterator=iter(ls), model_writer=w, **{**common, **kw})
            data = w.getvalue()
            files["spm/%s.model" % name.replace(" ", "_")] = data
            if name == "unigram":
                for n, v in fields(data):
                    if n == 3:
                        for m, u in fields(v):
                            if m == 2:
                                report["charsmap"] = base64.b64encode(u).decode()
            p = spm.SentencePieceProcessor(model_proto=data)
            ids = [p.encode(c) for c in CASES]
            r = [[rng.randrange(p.get_piece_size()) for _ in range(9)] for _ in range(12)]
            long = p.encode(heldout[:20000])
            out.append({"name": name, "file": name.replace(" ", "_") + ".model", "ids": ids, "decoded": [p.decode(i) for i in ids], "random": r, "random_decoded": [p.decode(i) for i in r], "long": long,
                        "bos": p.bos_id(), "eos": p.eos_id(), "unk": p.unk_id(), "size": p.get_piece_size()})
        attempt("spm " + name, one)
    # An unused piece is cut up again: set the type of some pieces in the file.
    def unused():
        data = bytearray(files["spm/llama.model"])
        # pieces: field 1 {1: piece, 2: score, 3: type}; rebuild with type UNUSED (5) on every ninth normal piece of three letters or more
        res, n = b"", 0

        def vi(x):
            o = b""
            while True:
                c = x & 127
                x >>= 7
                if x:
                    o += bytes([c | 128])
                else:
                    return o + bytes([c])
        for k, v in fields(bytes(data)):
            if k == 1:
                f = dict(fields(v))
                if f.get(3, 1) == 1 and len(f[1]) >= 3:
                    n += 1
                    if n % 9 == 0:
                        v = b"\x0a" + vi(len(f[1])) + f[1] + b"\x15" + f[2] + b"\x18\x05"
            res += vi(k << 3 | 2) + vi(len(v)) + v
        p = spm.SentencePieceProcessor(model_proto=res)
        files["spm/unused.model"] = res
        ids = [p.encode(c) for c in CASES]
        out.append({"name": "unused", "file": "unused.model", "ids": ids, "decoded": [p.decode(i) for i in ids], "random": [], "random_decoded": [], "long": p.encode(heldout[:20000]), "bos": p.bos_id(), "eos": p.eos_id(), "unk": p.unk_id(), "size": p.get_piece_size()})
    attempt("spm unused", unused)
    files["spm.json"] = json.dumps(out, ensure_ascii=False).encode()


attempt("sentencepiece", sentencepiece_part)
attempt("tokenizers", tokenizers_part)
files["cases.json"] = json.dumps(CASES, ensure_ascii=False).encode()
charsmap = report.pop("charsmap", None)
report["seconds"] = time.time() - START
files["report.json"] = json.dumps(report, indent=1).encode()
with tarfile.open(os.path.join(OUT, "out.tar.gz"), "w:gz") as tar:
    for name, data in files.items():
        info = tarfile.TarInfo(name)
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
print("errors:", [e[0] for e in report["errors"]], "files:", {k: len(v) for k, v in files.items()})
