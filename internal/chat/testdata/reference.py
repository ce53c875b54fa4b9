# Renders conversations.json with each template and writes the texts to NAME.txt. It uses Jinja2,
# configured as in transformers: python3 reference.py. With a directory of shipped templates of the
# same names, it prints where their output differs from the texts: python3 reference.py DIRECTORY
import datetime, glob, json, os, sys
import jinja2
from jinja2 import ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[ext.loopcontrols])
env.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
    x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


env.globals["raise_exception"] = raise_exception
env.globals["strftime_now"] = lambda f: datetime.datetime(2026, 3, 7, 8, 9, 5).strftime(f)


def message(m):
    m = dict(m)
    if "reasoning_content" in m:
        m["thinking"] = m["reasoning_content"]
    if "tool_calls" in m:
        m["tool_calls"] = [
            {"type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}, "id": c["id"]} for c in m["tool_calls"]]
    return m


def render(path):
    template = env.from_string(open(path).read())
    texts = ""
    for c in json.load(open("conversations.json")):
        tools = [{"type": "function", "function": t} for t in c.get("tools", [])] or None
        try:
            text = template.render(messages=[message(m) for m in c["messages"]], tools=tools, documents=None, bos_token="<s>",
                                   eos_token="</s>", add_generation_prompt=c.get("generate", False), **c.get("vars", {}))
        except jinja2.exceptions.TemplateError as e:
            text = "error: " + str(e)
        texts += "==== " + c["name"] + "\n" + text + "\n"
    return texts


for path in sorted(glob.glob("*.jinja")):
    texts = render(path)
    if len(sys.argv) < 2:
        open(path.replace(".jinja", ".txt"), "w").write(texts)
    elif not os.path.exists(os.path.join(sys.argv[1], path)):
        print(path, "has no original")
    elif render(os.path.join(sys.argv[1], path)) != texts:
        print(path, "differs")
