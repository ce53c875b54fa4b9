# Renders the cases of cases.json with Jinja2, set up as transformers does, and
# writes what they give back into the file:
#   python3 reference.py cases.json cases.json
import sys,json
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2 import nodes
from jinja2.ext import Extension
import jinja2.ext, jinja2
class Gen(Extension):
    tags={"generation"}
    def parse(self,parser):
        line=next(parser.stream).lineno
        body=parser.parse_statements(["name:endgeneration"],drop_needle=True)
        return nodes.CallBlock(self.call_method("_g"),[],[],body).set_lineno(line)
    def _g(self,caller): return caller()
def tojson(x,ensure_ascii=False,indent=None,separators=None,sort_keys=False):
    return json.dumps(x,ensure_ascii=ensure_ascii,indent=indent,separators=separators,sort_keys=sort_keys)
def raise_exception(m): raise jinja2.exceptions.TemplateError(m)
env=ImmutableSandboxedEnvironment(trim_blocks=True,lstrip_blocks=True,extensions=[Gen,jinja2.ext.loopcontrols])
env.filters['tojson']=tojson
env.globals['raise_exception']=raise_exception
import datetime
env.globals['strftime_now']=lambda f: datetime.datetime(2026,3,7,8,9,5).strftime(f)
vars = {"m": {"role": "user", "c": None, "z": 1, "a": [1, 2.5, "x", None, True], "content": " Hi \n"},
        "list": [{"n": 2, "t": "b"}, {"n": 1, "t": "A"}, {"n": 1, "t": "c"}], "s": "héllo wörld", "none_": None}
cases = json.load(open(sys.argv[1]))
for c in cases:
    c.pop("out", None), c.pop("err", None)
    try:
        c["out"] = env.from_string(c["src"]).render(**vars)
    except Exception as e:
        c["err"] = type(e).__name__ + ": " + str(e)
with open(sys.argv[2], "w") as f:
    json.dump(cases, f, ensure_ascii=False, indent=1)
    f.write("\n")
