"""The files that people write and the plan: what is taken, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from pitstop.model.base import Argument, Model, Name
from pitstop.model.maintenance import Maintenance
from pitstop.model.plain import canonical_json, digest_of
from pitstop.model.plan import Plan
from pitstop.model.result import RunResult
from pitstop.model.runbook import FrontMatter, RunbookStep
from pitstop.model.site import DEFAULT_RETRIES, Node, Retry, Site, SitePolicy
from pitstop.model.ssh import Ssh
from pitstop.model.words import Outcome, Verb
from pitstop.model.workload import Action, Gauge, HttpProbe, Launch, Probe, Ready, Stop, Workload

quick = settings(deadline=None, max_examples=150)

LAUNCH = {"command": ["serve"]}
READY = {"http": {"url": "http://127.0.0.1:8000/ready"}}
WORKLOAD: dict[str, Any] = {"placement": {"gpu-a": 1}, "launch": LAUNCH, "ready": READY}
SITE: dict[str, Any] = {
    "schema": "pitstop/site/v1",
    "name": "lab",
    "nodes": {"gpu-a": {}, "gpu-b": {}},
    "workloads": {"llm": WORKLOAD},
}


def refused(kind: type[BaseModel], data: Mapping[str, Any], *words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(data)
    for word in words:
        assert word in str(caught.value)


# --- names and arguments


class Named(Model):
    name: Name


class Called(Model):
    argument: Argument


@pytest.mark.parametrize("name", ["a", "A-1", "gpu-a.example", "0", "a" * 63, "a_b", "1.2.3"])
def test_names(name: str) -> None:
    assert Named(name=name).name == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        ".hidden",
        "-rf",
        "_x",
        "a/b",
        "a b",
        "a\n",
        "a\0",
        "a;b",
        "$(x)",
        "ä",
        "٣",
        "a" * 64,
    ],
)
def test_names_that_are_not_safe_as_file_names(name: str) -> None:
    refused(Named, {"name": name})


@quick
@given(st.text())
def test_a_name_that_is_taken_is_one_harmless_path_component(name: str) -> None:
    try:
        Named.model_validate({"name": name})
    except ValidationError:
        return
    assert name.isascii()
    assert name not in (".", "..")
    assert not set(name) & set("/\0\n \t'\"\\$`;&|<>()*?[]{}~!#")
    assert not name.startswith("-")


@quick
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_arguments_are_passed_as_they_are_but_for_nul(text: str) -> None:
    if "\0" in text:
        refused(Called, {"argument": text}, "NUL")
    else:
        assert Called(argument=text).argument == text


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (Launch, {"command": ["a\0b"]}),
        (Launch, {"command": ["a"], "env": {"X": "1\0"}}),
        (Ready, {"command": ["a", "\0"]}),
        (Action, {"command": ["\0"]}),
        (Probe, {"command": ["x\0"]}),
        (Node, {"engine": ["e\0"]}),
        (Node, {"reboot": ["r\0"]}),
        (Ssh, {"address": "h", "proxy_command": ["a\0"]}),
        (RunbookStep, {"step": "s", "kind": "command", "timeout": 1, "command": ["a\0"]}),
        (
            RunbookStep,
            {"step": "s", "kind": "command", "timeout": 1, "command": ["a"], "rollback": ["\0"]},
        ),
    ],
)
def test_nul_in_no_command(kind: type[BaseModel], data: dict[str, Any]) -> None:
    refused(kind, data, "NUL")


@pytest.mark.parametrize("command", [[], "rm -rf /", [1], [None], None])
def test_a_command_is_a_list_of_texts_with_a_program(command: Any) -> None:
    refused(Launch, {"command": command})


# --- exactly one of


@pytest.mark.parametrize("kind", [Ready, Action])
def test_http_or_command(kind: type[BaseModel]) -> None:
    http = {"url": "http://x/"}
    kind.model_validate({"http": http})
    kind.model_validate({"command": ["true"]})
    refused(kind, {}, "exactly one")
    refused(kind, {"http": http, "command": ["true"]}, "exactly one")


def test_gauge() -> None:
    Gauge.model_validate({"url": "http://x/", "metric": "m"})
    Gauge.model_validate({"url": "http://x/", "json_field": "a.b"})
    refused(Gauge, {"url": "http://x/"}, "exactly one")
    refused(Gauge, {"url": "http://x/", "metric": "m", "json_field": "a"}, "exactly one")


SOURCES = {
    "value": "1.2",
    "command": ["x", "--version"],
    "file": "/models/m.gguf",
    "package": "python3:vllm",
    "container": "podman:llm",
}


@quick
@given(st.sets(st.sampled_from(sorted(SOURCES))))
def test_probe_has_exactly_one_source(chosen: set[str]) -> None:
    data = {name: SOURCES[name] for name in chosen}
    if len(chosen) == 1:
        Probe.model_validate(data)
    else:
        refused(Probe, data, "exactly one")


@pytest.mark.parametrize("package", ["vllm", ":vllm", "python:", "python:a b", "python:a;b"])
def test_package_names_interpreter_and_package(package: str) -> None:
    refused(Probe, {"package": package})


@pytest.mark.parametrize("container", ["llm", "runc:llm", "docker:", "docker:a b", "docker:--x y"])
def test_container_names_runtime_and_container(container: str) -> None:
    refused(Probe, {"container": container})


@pytest.mark.parametrize(
    "url", ["file:///etc/shadow", "ftp://x/", "x", "", "http://", "http://a b/", "HTTP://x/ "]
)
def test_probes_are_http_only(url: str) -> None:
    refused(HttpProbe, {"url": url})


@pytest.mark.parametrize("status", [99, 600, -1, "ok"])
def test_status_is_one_of_http(status: Any) -> None:
    refused(HttpProbe, {"url": "http://x/", "status": status})


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 8 * 86400, "soon"])
def test_times_are_positive_and_end(seconds: Any) -> None:
    refused(Stop, {"grace": seconds})
    refused(Ready, {"command": ["x"], "deadline": seconds})


def test_stop_signals() -> None:
    Stop.model_validate({"signal": "INT"})
    refused(Stop, {"signal": "KILL"})
    refused(Stop, {"signal": "SIGTERM"})


# --- site


def test_a_small_site() -> None:
    site = Site.model_validate(SITE)
    assert site.workloads["llm"].launch.command == ("serve",)
    assert site.nodes["gpu-a"].engine == ("pitstop-node",)


def with_(data: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a copy with one value set at a dotted path."""
    copy: dict[str, Any] = json.loads(json.dumps(data))
    at = copy
    *front, last = path.split("/")
    for part in front:
        at = at.setdefault(part, {})
    at[last] = value
    return copy


def test_a_placement_on_an_undeclared_node_is_refused() -> None:
    data = with_(SITE, "workloads/llm/placement", {"gpu-a": 1, "gpu-z": 1})
    refused(Site, data, "'llm'", "'gpu-z'", "not declared")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema", "pitstop/site/v2"),
        ("name", "a/b"),
        ("nodes", {}),
        ("nodes/..", {}),
        ("workloads/a b", WORKLOAD),
        ("workloads/llm/placement", {}),
        ("workloads/llm/placement", {"gpu-a": -1}),
        ("workloads/llm/placement", {"gpu-a": 1.5}),
        ("workloads/llm/polici", {}),
        ("workloads/llm/spares", [{"node": "gpu-z"}]),
        ("workloads/llm/spares", [{"node": "gpu-a"}]),
        ("workloads/llm/spares", [{"node": "gpu-b"}, {"node": "gpu-b"}]),
        ("workloads/llm/spares", [{"node": "gpu-b", "replica": "b/server"}]),
        ("workloads/llm/spares", ["gpu-b"]),
        ("workloads/llm/policy/transfer_deadline", 0),
        ("workloads/llm/policy/on_checkpoint_failure", "ignore"),
        ("workloads/llm/policy/connections", "drop"),
        ("workloads/llm/launch/io_uring", "maybe"),
        ("nodes/gpu-a/state_dir", "relative"),
        ("nodes/gpu-a/ssh", {"address": ""}),
        ("nodes/gpu-a/ssh", {"address": "x", "port": 0}),
        ("nodes/gpu-a/ssh", {"address": "x", "port": 65536}),
        ("nodes/gpu-a/ssh", {"address": "x", "host_keys": ["nonsense"]}),
        ("nodes/gpu-a/ssh", {"address": "x", "keepalive": 0}),
        ("policy/tolerate", ["driver.version"]),
        ("policy/tolerate", ["hostile"]),
        ("policy/retries", {"reboot": {}}),
        ("policy/retries/restore/count", 21),
    ],
)
def test_what_a_site_must_not_say(path: str, value: Any) -> None:
    refused(Site, with_(SITE, path, value))


def test_spares_are_of_workloads_that_lie_on_one_node() -> None:
    spares = [{"node": "gpu-b", "replica": "b/server"}]
    one = with_(SITE, "workloads/llm/spares", spares)
    data = with_(one, "workloads/llm/drain", {"router": {"name": "lb", "replica": "a/server"}})
    data["routers"] = {"lb": {"kind": "haproxy", "socket": "/run/haproxy.sock"}}
    site = Site.model_validate(data)
    assert [spare.node for spare in site.workloads["llm"].spares] == ["gpu-b"]
    spread = with_(one, "nodes/gpu-c", {})
    spread = with_(spread, "workloads/llm/spares", [{"node": "gpu-c"}])
    spread = with_(spread, "workloads/llm/placement", {"gpu-a": 1, "gpu-b": 1})
    refused(Site, spread, "'llm'", "several nodes")


@pytest.mark.parametrize("where", ["", "nodes/gpu-a", "workloads/llm", "workloads/llm/ready/http"])
def test_a_misspelt_key_is_never_ignored(where: str) -> None:
    path = f"{where}/misspelt" if where else "misspelt"
    refused(Site, with_(SITE, path, 1), "misspelt")


def test_models_are_frozen() -> None:
    site = Site.model_validate(SITE)
    with pytest.raises(ValidationError):
        site.name = "other"


def test_every_site_survives_its_own_dump() -> None:
    site = Site.model_validate(SITE)
    assert Site.model_validate(site.model_dump(mode="json", by_alias=True)) == site


def test_retries() -> None:
    assert Retry(count=3, delay=1, factor=3).delays() == [1, 3, 9]
    assert Retry().delays() == []
    policy = SitePolicy.model_validate({"retries": {"restore": {"count": 7}}})
    assert policy.retry(Verb.RESTORE).count == 7
    assert policy.retry(Verb.DRAIN) == DEFAULT_RETRIES[Verb.DRAIN]
    assert policy.retry(Verb.ROLLBACK).count == 0


@quick
@given(
    st.integers(0, 20),
    st.floats(0, 3600, allow_subnormal=False),
    st.floats(1, 10, allow_subnormal=False),
)
def test_there_is_one_delay_per_retry_and_they_do_not_shrink(
    count: int, delay: float, factor: float
) -> None:
    delays = Retry(count=count, delay=delay, factor=factor).delays()
    assert len(delays) == count
    assert delays == sorted(delays)


# --- maintenance and runbook

MAINTENANCE = {
    "schema": "pitstop/maintenance/v1",
    "title": "Patch",
    "runbook": "patch-and-restart",
    "nodes": ["gpu-a"],
}


def test_a_small_maintenance() -> None:
    assert Maintenance.model_validate(MAINTENANCE).nodes == ("gpu-a",)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema", "pitstop/maintenance/v2"),
        ("title", ""),
        ("title", "x" * 201),
        ("runbook", ""),
        ("nodes", []),
        ("nodes", ["a b"]),
        ("nodes", "gpu-a"),
        ("changes", {"driver.version": None}),
        ("changes", ["driver.version"]),
        ("change", {}),
    ],
)
def test_what_a_maintenance_must_not_say(path: str, value: Any) -> None:
    refused(Maintenance, with_(MAINTENANCE, path, value))


FRONT = {"schema": "pitstop/runbook/v1", "title": "Patch"}


@pytest.mark.parametrize(
    ("path", "value"), [("schema", "x"), ("title", ""), ("risk", "none"), ("steps", [])]
)
def test_what_front_matter_must_not_say(path: str, value: Any) -> None:
    FrontMatter.model_validate(FRONT)
    refused(FrontMatter, with_(FRONT, path, value))


STEP = {"step": "s", "kind": "command", "command": ["true"], "timeout": 60}


@pytest.mark.parametrize(
    "data",
    [
        STEP,
        {**STEP, "rollback": ["false"], "retries": 3, "expect": "ok"},
        {"step": "s", "kind": "check", "command": ["true"], "timeout": 1, "phase": "validate"},
        {"step": "s", "kind": "reboot", "timeout": 600},
    ],
)
def test_steps(data: dict[str, Any]) -> None:
    RunbookStep.model_validate(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"step": "s", "kind": "command", "timeout": 1}, "has a command"),
        ({"step": "s", "kind": "check", "timeout": 1}, "has a command"),
        ({"step": "s", "kind": "reboot", "timeout": 1, "command": ["x"]}, "a reboot has none"),
        ({"step": "s", "kind": "reboot", "timeout": 1, "expect": "x"}, "neither expect"),
        ({"step": "s", "kind": "reboot", "timeout": 1, "rollback": ["x"]}, "nor rollback"),
        ({**STEP, "kind": "check", "rollback": ["x"]}, "no rollback"),
        ({**STEP, "phase": "validate"}, "only checks"),
        ({"step": "s", "kind": "reboot", "timeout": 1, "phase": "validate"}, "only checks"),
        ({**STEP, "timeout": 0}, "greater than 0"),
        ({"step": "s", "kind": "command", "command": ["x"]}, "timeout"),
        ({**STEP, "retries": 11}, "retries"),
        ({**STEP, "step": "../s"}, "a name is"),
        ({**STEP, "shell": "x"}, "shell"),
    ],
)
def test_what_a_step_must_not_say(data: dict[str, Any], words: str) -> None:
    refused(RunbookStep, data, words)


# --- the plan and its digest


def plan() -> dict[str, Any]:
    data = {
        "schema": "pitstop/plan/v1",
        "site": "lab",
        "policy": {"tolerate": ["host.kernel"], "retries": {"restore": {"count": 1}}},
        "title": "Patch",
        "reason": "CVE",
        "node": "gpu-a",
        "node_spec": {"ssh": {"address": "10.0.0.1"}},
        "boot_id": "b",
        "runbook": {
            "name": "patch",
            "title": "Patch",
            "digest": "sha256:1",
            "source": "text",
            "risk": "low",
            "variables": {"package": "x", "limit": 60},
            "changes": {"host.kernel": "6.2"},
            "steps": [{**STEP, "rollback": ["undo"]}],
        },
        "workloads": [
            {
                "name": "llm",
                "spec": {**WORKLOAD, "proof": {"http": {"url": "http://x/"}, "field": "a"}},
                "shape": "single-gpu",
                "strategy": "checkpoint-restore",
                "reason": "r",
                "running": True,
                "fingerprint": {"host.kernel": {"value": "6.1"}},
                "predicted": {"valid": True, "differences": []},
                "blockers": [],
                "target": {
                    "node": "gpu-b",
                    "node_spec": {},
                    "predicted": {"valid": True},
                    "router": {"name": "lb", "replica": "b/server"},
                },
            }
        ],
        "go": True,
        "no_go": [],
    }
    return Plan.model_validate(data).model_dump(mode="json", by_alias=True)


def leaves(data: Any, path: str = "") -> list[str]:
    """Return the paths of all scalars in plain data."""
    if isinstance(data, dict):
        return [p for key, value in data.items() for p in leaves(value, f"{path}/{key}")]
    if isinstance(data, list):
        return [p for n, value in enumerate(data) for p in leaves(value, f"{path}/{n}")]
    return [path]


def changed(data: dict[str, Any], path: str) -> dict[str, Any]:
    """Return a copy whose scalar at a path is another one of its kind."""
    copy: dict[str, Any] = json.loads(json.dumps(data))
    at: Any = copy
    *front, last = path.lstrip("/").split("/")
    for part in front:
        at = at[int(part)] if isinstance(at, list) else at[part]
    key: Any = int(last) if isinstance(at, list) else last
    value = at[key]
    if isinstance(value, bool):
        at[key] = not value
    elif isinstance(value, int | float):
        at[key] = value + 1
    elif value is None:
        at[key] = "/something"
    else:
        at[key] = f"{value}x"
    return copy


@pytest.mark.parametrize("path", leaves(plan()))
def test_the_digest_changes_with_any_value(path: str) -> None:
    other = changed(plan(), path)
    assert digest_of(other) != digest_of(plan())
    try:
        parsed = Plan.model_validate(other)
    except ValidationError:
        return  # a word of a closed vocabulary, or a pair that excludes itself: no such plan
    assert parsed.digest != Plan.model_validate(plan()).digest


def test_most_of_those_changes_are_plans_that_could_exist() -> None:
    valid = 0
    for path in leaves(plan()):
        try:
            Plan.model_validate(changed(plan(), path))
            valid += 1
        except ValidationError:
            continue
    assert valid > len(leaves(plan())) * 0.6


@quick
@given(st.randoms(use_true_random=False))
def test_the_digest_does_not_depend_on_the_order_of_keys(random: Any) -> None:
    def shuffled(data: Any) -> Any:
        if isinstance(data, dict):
            keys = list(data)
            random.shuffle(keys)
            return {key: shuffled(data[key]) for key in keys}
        return [shuffled(value) for value in data] if isinstance(data, list) else data

    expected = Plan.model_validate(plan()).digest
    assert Plan.model_validate(shuffled(plan())).digest == expected
    assert expected.startswith("sha256:")
    assert len(expected) == 7 + 64


def test_the_digest_survives_being_written_and_read() -> None:
    first = Plan.model_validate(plan())
    text = first.model_dump_json(by_alias=True)
    assert Plan.model_validate_json(text).digest == first.digest


def test_the_order_of_workloads_and_steps_is_part_of_the_digest() -> None:
    one = plan()
    second = {**one["workloads"][0], "name": "other"}
    one["workloads"].append(second)
    other = {**one, "workloads": one["workloads"][::-1]}
    assert Plan.model_validate(one).digest != Plan.model_validate(other).digest


def test_a_workload_is_found_by_name() -> None:
    found = Plan.model_validate(plan())
    assert found.workload("llm").name == "llm"
    with pytest.raises(KeyError):
        found.workload("none")


# --- canonical form

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc"), inner, max_size=4),
    max_leaves=10,
)


@quick
@given(plain, plain)
def test_equal_data_has_equal_bytes_and_other_data_has_others(one: Any, other: Any) -> None:
    assert json.loads(canonical_json(one)) == one
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (canonical_json(one) == canonical_json(other)) is same


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_json_has_no_canonical_form(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical_json({"a": value})


def test_text_is_written_as_it_is() -> None:
    assert canonical_json({"b": "ü", "a": 1}) == '{"a":1,"b":"ü"}'.encode()


# --- results


@pytest.mark.parametrize(
    ("state", "code"), [("done", 0), ("failed", 1), ("refused", 3), ("partial", 4)]
)
def test_exit_codes_of_results(state: str, code: int) -> None:
    result = RunResult.model_validate(
        {
            "run": "r",
            "node": "n",
            "plan_digest": "d",
            "state": state,
            "node_state": "in-service",
            "workloads": [{"name": "w", "outcome": "restored"}],
        }
    )
    assert result.exit_code == code
    assert result.workloads[0].outcome is Outcome.RESTORED


def test_a_workload_needs_a_launch_and_a_readiness_probe() -> None:
    for name in ("launch", "ready", "placement"):
        refused(Workload, {k: v for k, v in WORKLOAD.items() if k != name}, name)
