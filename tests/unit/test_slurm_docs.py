"""The examples of docs/slurm.md are what the model and the launcher take."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from pitstop.model.jobs import JobPolicy, OnJob, Signal
from pitstop.model.site import Site
from pitstop.model.slurm import SlurmSpec
from pitstop.node.main import _parser
from pitstop.node.owner import refuse_what_is_roots

PAGE = (Path(__file__).parents[2] / "docs" / "slurm.md").read_text()


def block(language: str) -> str:
    [found] = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.S | re.M)
    return str(found)


def test_the_site_is_one() -> None:
    site = Site.model_validate(yaml.safe_load(block("yaml")))
    assert isinstance(site.scheduler, SlurmSpec)
    assert site.scheduler.policy("train-7", "ann").multi_node is OnJob.SIGNAL
    assert site.scheduler.policy("x", "ci-1").not_launched is OnJob.REQUEUE
    assert site.scheduler.policy("x", "ann").not_launched is OnJob.WAIT


def test_a_users_script_starts_the_launcher_as_users_may() -> None:
    script = block("bash").replace("\\\n", " ")
    words = shlex.split(script.splitlines()[2].partition("|")[2])
    assert words[:2] == ["sudo", "-n"]
    arguments = _parser().parse_args(words[3:])
    refuse_what_is_roots(arguments)
    assert arguments.workload == "sim-$SLURM_JOB_ID"
    assert arguments.environment_stdin
    assert arguments.command[:2] == ["--", "sh"]


@pytest.mark.parametrize("name", sorted({*SlurmSpec.model_fields} - {"kind"}))
def test_every_field_is_on_the_page(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("name", sorted({*JobPolicy.model_fields} - {"connections"}))
def test_every_policy_is_on_the_page(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("name", ["file", "quiet", "to"])
def test_every_part_of_a_signal_is_on_the_page(name: str) -> None:
    assert name in Signal.model_fields
    assert f"`{name}`" in PAGE
