"""Routers without I/O: what is declared, what HAProxy and nginx write, metrics by labels."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from pitstop.fleet.routers.factory import router_for
from pitstop.fleet.routers.haproxy_answers import parse_in_flight, parse_replica, parse_state
from pitstop.fleet.routers.metrics import total
from pitstop.fleet.routers.nginx_conf import find_server, set_down, upstream_servers
from pitstop.fleet.routers.router import Before, NotUnderstood, Router
from pitstop.fleet.routers.vllm_stack import VllmStackRouter, taken, where, with_entry, without
from pitstop.model.errors import BadInput, PermanentError
from pitstop.model.router import RouterSpec, VllmStack, counts
from pitstop.model.site import Site

HAPROXY = {"kind": "haproxy", "socket": "/run/haproxy/admin.sock"}
NGINX = {"kind": "nginx", "file": "/etc/nginx/upstreams/llm.conf"}
CALL = {"url": "http://r/x"}
HTTP = {
    "kind": "http",
    "close": CALL,
    "open": CALL,
    "admission": {"url": "http://r/x", "json_field": "a", "open": "1", "closed": "0"},
}
GAUGE = {"url": "http://127.0.0.1:1/", "json_field": "n"}
URL = {"url": "http://r:1"}
SPECS: dict[str, dict[str, Any]] = {
    "haproxy": HAPROXY,
    "nginx": NGINX,
    "nginx-plus": {"kind": "nginx-plus", "upstream": "be", **URL},
    "sglang-gateway": {"kind": "sglang-gateway", **URL},
    "vllm-production-stack": {"kind": "vllm-production-stack", "config": "/etc/d.json", **URL},
    "litellm": {"kind": "litellm", "token_file": "/etc/key", **URL},
    "http": HTTP,
}
adapter: TypeAdapter[RouterSpec] = TypeAdapter(RouterSpec)


def site(router: dict[str, Any], drain: dict[str, Any]) -> Site:
    return Site.model_validate(
        {
            "schema": "pitstop/site/v1",
            "name": "lab",
            "nodes": {"a": {}},
            "routers": {"lb": router},
            "workloads": {
                "llm": {
                    "placement": {"a": 1},
                    "launch": {"command": ["serve"]},
                    "ready": {"command": ["true"]},
                    "drain": drain,
                }
            },
        }
    )


# --- declared


@pytest.mark.parametrize("kind", SPECS)
def test_every_kind_is_declared_built_and_written_again(kind: str) -> None:
    spec = adapter.validate_python(SPECS[kind])
    assert spec.kind == kind
    assert adapter.validate_json(adapter.dump_json(spec)) == spec
    with router_for("lb", spec) as router:
        assert isinstance(router, Router)
        assert router.counts == counts(spec)


def test_workload_behind_a_router_that_is_not_declared() -> None:
    with pytest.raises(ValidationError, match="behind router 'other', which is not declared"):
        site(HAPROXY, {"router": {"name": "other", "replica": "be/s"}})


@pytest.mark.parametrize("kind", SPECS)
def test_somebody_must_be_able_to_count(kind: str) -> None:
    at = {"router": {"name": "lb", "replica": "r"}}
    site(SPECS[kind], {**at, "in_flight": GAUGE})
    if kind in ("nginx", "litellm", "http"):
        with pytest.raises(ValidationError, match=r"needs drain\.in_flight"):
            site(SPECS[kind], at)
    else:
        site(SPECS[kind], at)
    site({**HTTP, "in_flight": GAUGE}, at)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("haproxy", {"socket": "relative.sock"}),
        ("haproxy", {"socket": "tcp:host"}),
        ("haproxy", {"close_with": "stop"}),
        ("haproxy", {"token": "secret"}),
        ("nginx", {"file": "upstream.conf"}),
        ("nginx", {"program": []}),
        ("nginx-plus", {"url": "ftp://r"}),
        ("nginx-plus", {"upstream": "a/../b"}),
        ("litellm", {"token_file": "key"}),
        ("http", {"admission": {"url": "http://r", "json_field": "a", "open": "1", "closed": "1"}}),
        ("http", {"in_flight": {"url": "http://r"}}),
        ("http", {"in_flight": {"url": "http://r", "json_field": "a", "labels": {"a": "b"}}}),
        ("http", {"kind": "envoy"}),
    ],
)
def test_what_is_declared_wrongly_is_refused(kind: str, change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        adapter.validate_python({**SPECS[kind], **change})


@given(
    st.booleans(),
    st.text(max_size=20),
    st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=5)),
)
def test_before_comes_back_from_the_journal(is_open: bool, words: str, detail: Any) -> None:
    before = Before(is_open, words, detail)
    assert Before.from_json(before.to_json()) == before


# --- HAProxy

HEAD = (
    "1\n# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight "
    "srv_iweight srv_time_since_last_change srv_check_status\n"
)


def server_line(admin: object, weight: object = 1, operation: object = 2) -> str:
    other = "3 be 1 other 127.0.0.1 2 0 1 1 5 6"
    return f"{HEAD}{other}\n3 be 2 s 127.0.0.1 {operation} {admin} {weight} 1 5 6\n\n"


@pytest.mark.parametrize(
    ("admin", "weight", "is_open", "sealed", "words"),
    [
        (0, 1, True, False, "READY"),
        (0x40, 1, True, False, "READY"),
        (0x08, 1, False, False, "DRAIN, forced"),
        (0x01, 1, False, True, "MAINT, forced"),
        (0x09, 1, False, True, "MAINT, forced; DRAIN, forced"),
        (0x04, 1, False, True, "MAINT, by its configuration"),
        (0x20, 1, False, True, "MAINT, its name is not resolved"),
        (0x100, 1, False, False, "administrative state 0x100, which is not known"),
        (0, 0, False, False, "weight 0"),
    ],
)
def test_haproxy_states(admin: int, weight: int, is_open: bool, sealed: bool, words: str) -> None:
    found = parse_state(server_line(admin, weight), "be", "s")
    assert (found.open, found.sealed, str(found)) == (is_open, sealed, f"{words}; running")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2\n# be_name srv_name\n",
        "1\nbe s\n",
        server_line("x"),
        server_line(0, weight=-1),
        server_line(0, operation=9),
        server_line(""),
        f"{HEAD}3 be 2 s\n",
    ],
)
def test_haproxy_states_that_are_not_understood(text: str) -> None:
    with pytest.raises(NotUnderstood):
        parse_state(text, "be", "s")


def test_haproxy_without_such_a_server() -> None:
    with pytest.raises(BadInput, match="no such server"):
        parse_state(server_line(0), "be", "nobody")
    with pytest.raises(BadInput, match="no such backend"):
        parse_state("Can't find backend.\n", "be", "s")


STAT = (
    "# pxname,svname,qcur,qmax,scur,smax,last_agt,\n"
    'be,s,{q},0,{s},9,"a,b",\nbe,BACKEND,9,0,9,9,,\n\n'
)


def test_haproxy_counts_sessions_and_the_queue() -> None:
    assert parse_in_flight(STAT.format(q=2, s=3), "be", "s") == 5
    for q, s in (("", 1), (1, ""), ("-1", 1), ("1.5", 0)):
        with pytest.raises(NotUnderstood):
            parse_in_flight(STAT.format(q=q, s=s), "be", "s")
    with pytest.raises(NotUnderstood, match="no line for be/t"):
        parse_in_flight(STAT.format(q=0, s=0), "be", "t")
    with pytest.raises(NotUnderstood):
        parse_in_flight("Unknown command.\n", "be", "s")


@given(st.text(max_size=12))
def test_haproxy_names_hold_nothing_that_ends_a_command(text: str) -> None:
    try:
        backend, server = parse_replica(text)
    except BadInput:
        return
    assert text == f"{backend}/{server}"
    assert re.fullmatch(r"[A-Za-z0-9_.:-]+/[A-Za-z0-9_.:-]+", text)


# --- nginx

CONF = """\
# upstream no { server 1.1.1.1; }
upstream llm {
    zone llm 64k; server 10.0.0.1:80 weight=2; # server 10.0.0.9;
    server	"10.0.0.2:80"   backup
        down;
    server unix:/run/a.sock fail_timeout=5s;
}
upstream 'other one' { server 10.0.0.1:80; }
map $a $b { default "};"; x ${b}; }
server { listen 80; server_name a; location / { proxy_pass http://llm; set $x "{"; } }
"""


def test_nginx_servers_are_those_of_upstreams_alone() -> None:
    assert [(s.upstream, s.address, s.down) for s in upstream_servers(CONF)] == [
        ("llm", "10.0.0.1:80", False),
        ("llm", "10.0.0.2:80", True),
        ("llm", "unix:/run/a.sock", False),
        ("other one", "10.0.0.1:80", False),
    ]
    [included] = upstream_servers("server 10.0.0.1:80;\n")
    assert included.upstream == ""


def test_nginx_down_is_put_and_taken_with_every_other_byte_kept() -> None:
    down = set_down(CONF, "10.0.0.1:80", "llm", True)
    assert down == CONF.replace("weight=2;", "weight=2 down;", 1)
    assert set_down(down, "10.0.0.1:80", "llm", False) == CONF
    assert set_down(down, "10.0.0.1:80", "llm", True) == down
    up = set_down(CONF, "10.0.0.2:80", None, False)
    assert up == CONF.replace("backup\n        down;", "backup;")


@pytest.mark.parametrize(
    ("address", "upstream", "words"),
    [
        ("10.0.0.1:80", None, "2 servers of that address in the file: llm, other one"),
        ("10.0.0.9", None, "0 servers"),
        ("1.1.1.1", None, "0 servers"),
        ("10.0.0.1:80", "no", "0 servers of that address in upstream no"),
    ],
)
def test_nginx_server_must_be_one(address: str, upstream: str | None, words: str) -> None:
    with pytest.raises(BadInput, match=re.escape(words)):
        find_server(CONF, address, upstream)


@pytest.mark.parametrize(
    "text", ["upstream a {", "}", "server a", 'server "a;', "upstream a { server b }", "x ${a;"]
)
def test_nginx_text_that_does_not_end_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        upstream_servers(text)


word = st.text("abc0.:=-$", min_size=1, max_size=6).filter(lambda w: w not in ("down", "server"))
gap = st.text(" \t\n", min_size=1, max_size=3) | st.just(" # x; {down}\n")


@given(st.lists(st.tuples(gap, word), max_size=4), st.text("xy \n", max_size=9), st.booleans())
def test_nginx_there_and_back_is_the_same_text(
    parameters: list[tuple[str, str]], before: str, quoted: bool
) -> None:
    address = '"10.0.0.1:80"' if quoted else "10.0.0.1:80"
    rest = "".join(f"{space}{text}" for space, text in parameters)
    text = f"# {before.strip()}\nupstream u {{ server {address}{rest} ; server b; }}\n"
    text = text.replace("# \n", "#\n") if "\n" not in before.strip() else text[text.index("up") :]
    down = set_down(text, "10.0.0.1:80", "u", True)
    assert find_server(down, "10.0.0.1:80", "u").down
    assert not find_server(down, "b", "u").down
    assert set_down(down, "10.0.0.1:80", "u", False) == text


# --- metrics

PAGE = """\
# TYPE busy gauge
busy{server="http://a:1",model="m"} 2
busy{server="http://a:1",model="n"} 1.0 1395066363000
busy{server="http://b:1",odd="}\\"{ \\\\"} 4
busy_total{server="http://a:1"} 99
# TYPE idle gauge
"""


def test_metric_is_added_up_over_the_series_with_these_labels() -> None:
    assert total(PAGE, "busy", {"server": "http://a:1"}, "m") == 3
    assert total(PAGE, "busy", {"server": "http://a:1", "model": "n"}, "m") == 1
    assert total(PAGE, "busy", {"odd": '}"{ \\'}, "m") == 4
    assert total(PAGE, "busy", {}, "m") == 7
    assert total(PAGE, "busy", {"server": "http://c:1"}, "m") is None
    assert total(PAGE, "idle", {"server": "http://a:1"}, "m") is None


@pytest.mark.parametrize(
    "text", ["", "other 1", "busy{a=1} 0", 'busy{a="b} 0', "busy NaN", "busy -1", "busy", "busy x"]
)
def test_metric_that_is_not_understood(text: str) -> None:
    with pytest.raises(NotUnderstood):
        total(text, "busy", {}, "m")


# --- vLLM's production stack


@given(
    st.lists(st.from_regex(r"\Ahttp://[a-z]{1,8}:[0-9]{2}\Z"), min_size=2, max_size=5, unique=True),
    st.data(),
    st.booleans(),
)
def test_vllm_backend_comes_back_where_it_was(
    urls: list[str], data: st.DataObject, models: bool
) -> None:
    config = {"routing_logic": "x", "static_backends": ",".join(urls), "other": [1]}
    if models:
        config["static_models"] = ",".join(f"m{n}" for n in range(len(urls)))
    replica = data.draw(st.sampled_from(urls))
    place = where(config, replica, "f")
    assert place is not None
    back = taken(config, place)
    less = without(config, place, replica)
    assert where(less, replica, "f") is None
    assert with_entry(less, back) == config


def test_vllm_lists_that_changed_meanwhile_are_for_a_person() -> None:
    back = taken({"static_backends": "http://a:1,http://b:1"}, 0)
    with pytest.raises(PermanentError, match="static_models"):
        with_entry({"static_backends": "http://b:1", "static_models": "m"}, back)


def test_vllm_backend_of_a_workload_that_moved_is_the_same_with_another_address() -> None:
    config = {"static_backends": "http://a:1,http://b:1", "static_models": "m0,m1"}
    spec = VllmStack(kind="vllm-production-stack", url="http://router:1", config="/etc/config.json")
    with VllmStackRouter("lb", spec) as router:
        moved = router.detail_for("http://c:1", {"entry": taken(config, 1)})
    assert with_entry(without(config, 1, "http://b:1"), moved["entry"]) == {
        "static_backends": "http://a:1,http://c:1",
        "static_models": "m0,m1",
    }
