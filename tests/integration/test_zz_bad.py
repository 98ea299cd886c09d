import httpx, pytest
@pytest.mark.parametrize("g", [{"kind":"choices","source":"no"},{"kind":"reasoning","source":"{}"},{"kind":"json_schema","source":"{"},{"kind":"ebnf","source":"[1]"},{"kind":"lark","source":"1"},{"kind":"structural_tag","source":"{}"},{"kind":"json_schema","source":"{}","options":"zz"},{"kind":"choices","source":"[3]"},{"kind":"reasoning","source":'{"begin":1,"end":2,"begun":0,"required":0,"inner":["choices","[1]"]}'}, {"kind":"nope","source":""}, "x", {"kind":"choices","source":'["a","b"]'}])
def test_bad(tiny_server, g):
    r = httpx.post(f"{tiny_server.url}/v1/chat/completions", json={"messages":[{"role":"user","content":"x"}],"max_tokens":4,"grammar":g}, timeout=60)
    print(r.status_code, r.text[:300])
    r = httpx.post(f"{tiny_server.url}/v1/responses", json={"input":"x","max_output_tokens":20,"grammar":g}, timeout=60)
    print(r.status_code, r.text[:300])
