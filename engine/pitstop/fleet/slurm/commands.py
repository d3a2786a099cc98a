"""The commands of Slurm that pitstop runs: as lists, in an environment of our own.

A site's or a user's SQUEUE_FORMAT, SLURM_TIME_FORMAT or SQUEUE_STATES would change what the
commands print.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pitstop.fleet.slurm.records import SQUEUE_FORMAT
from pitstop.model.errors import BadInput
from pitstop.model.plain import is_name

Version = tuple[int, int]
"""Year and month, as in 23.11."""

OLDEST: Version = (22, 5)
NEWEST: Version = (26, 5)

# Which data_parser to ask for: the newest that a version has and that is known to read well.
# Before 23.11 it could not be chosen.
_PARSERS: tuple[tuple[Version, str], ...] = (
    ((26, 5), "v0.0.42"),
    ((25, 11), "v0.0.42"),
    ((25, 5), "v0.0.42"),
    ((24, 11), "v0.0.41"),
    ((24, 5), "v0.0.41"),
    ((23, 11), "v0.0.40"),
)
_VERSION = re.compile(r"slurm(?:-wlm)? (\d+)\.(\d+)", re.ASCII)


def parse_version(output: str) -> Version:
    """Read `slurm 23.11.4`.

    Raises:
        ValueError: it says something else.
    """
    found = _VERSION.match(output.strip())
    if found is None:
        raise ValueError(f"{output.strip()[:100]!r} is no version of Slurm")
    return int(found.group(1)), int(found.group(2))


def json_option(version: Version) -> str:
    """Return the option that asks for JSON, in a form that is pinned where it can be.

    A version newer than `NEWEST` is asked for the newest form that this code knows: Slurm
    keeps each for several releases.
    """
    for since, parser in _PARSERS:
        if version >= since:
            return f"--json={parser}"
    return "--json"


def in_clean_environment(argv: Sequence[str], conf: str = "", path: str = "") -> list[str]:
    """Run a command with nothing of its caller's environment but where Slurm is."""
    settings = [f"SLURM_CONF={conf}"] if conf else []
    usual = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    path = f"PATH={path}:{usual}" if path else f"PATH={usual}"
    return ["env", "-i", path, "LC_ALL=C.UTF-8", *settings, *argv]


def show_node(version: Version, node: str) -> list[str] | None:
    """Return the command that shows a node as JSON; None before 23.02, which has none."""
    _check_node(node)
    return ["scontrol", "show", "node", node, json_option(version)] if version >= (23, 2) else None


def show_node_text(node: str) -> list[str]:
    """Return the command that shows a node as text."""
    _check_node(node)
    return ["scontrol", "--oneliner", "show", "node", node]


def show_jobs(version: Version, node: str) -> list[str]:
    """Return the command that shows the jobs of a node.

    With JSON some versions filter by neither node nor state (24.05, and all by state): whoever
    reads the answer has to.
    """
    _check_node(node)
    # Without --all, jobs of partitions that are hidden from this user would be missing.
    return ["squeue", "--all", f"--nodelist={node}", json_option(version)]


def show_jobs_text(node: str) -> list[str]:
    """Return the command for a Slurm that was built without JSON."""
    _check_node(node)
    return [
        *("squeue", "--all", "--noheader", "--states=all", "--array", f"--nodelist={node}"),
        f"--format={SQUEUE_FORMAT}",
    ]


def show_job(version: Version, job: int) -> list[str]:
    """Return the command that shows a job as JSON, with its end for as long as Slurm keeps it.

    22.05 shows all jobs whatever is asked for: whoever reads the answer has to choose.
    """
    return ["squeue", "--all", "--states=all", f"--jobs={job}", json_option(version)]


def show_job_text(job: int) -> list[str]:
    """Return the command for a Slurm that was built without JSON."""
    return [
        *("squeue", "--all", "--noheader", "--states=all", "--array", f"--jobs={job}"),
        f"--format={SQUEUE_FORMAT}",
    ]


def signal_job(job: str, signal: str, batch: bool) -> list[str]:
    """Return the command that signals a job: its steps, or its batch script alone.

    Without `--batch` the script gets nothing, its steps do (scancel's manual).
    """
    _check_job(job)
    return ["scancel", f"--signal={signal}", *(["--batch"] if batch else []), job]


def requeue_job(job: str) -> list[str]:
    """Return the command that puts a job back into the queue, held.

    It does so also with a job that was cancelled a moment ago: look first.
    """
    _check_job(job)
    return ["scontrol", "requeuehold", job]


def hold_job(job: str) -> list[str]:
    """Return the command that keeps a waiting job from starting."""
    _check_job(job)
    return ["scontrol", "hold", job]


def release_job(job: str) -> list[str]:
    """Return the command that lets a held job start."""
    _check_job(job)
    return ["scontrol", "release", job]


def start_now(job: str) -> list[str]:
    """Return the command that ends the wait of about two minutes after a requeue."""
    _check_job(job)
    return ["scontrol", "update", f"JobId={job}", "StartTime=now"]


def exclude_nodes(job: str, nodes: Sequence[str]) -> list[str]:
    """Return the command that keeps a waiting job off these nodes, and off no other."""
    _check_job(job)
    for node in nodes:
        _check_node(node)
    return ["scontrol", "update", f"JobId={job}", f"ExcNodeList={','.join(nodes)}"]


def require_nodes(job: str, node: str) -> list[str]:
    """Return the command that lets a waiting job start on one node only."""
    _check_job(job)
    _check_node(node)
    return ["scontrol", "update", f"JobId={job}", f"ReqNodeList={node}"]


def update_node(node: str, state: str, reason: str = "") -> list[str]:
    """Return the command that sets a node's state."""
    _check_node(node)
    return [
        *("scontrol", "update", f"NodeName={node}", f"State={state}"),
        *([f"Reason={reason}"] if reason else []),
    ]


def reboot_node(node: str, reason: str) -> list[str]:
    """Return the command that reboots a node once it is empty, and leaves it DOWN then.

    Without `nextstate` Slurm would put it back into service before anybody has looked at it.
    """
    _check_node(node)
    return ["scontrol", "reboot", "ASAP", "nextstate=DOWN", f"reason={reason}", node]


def reservation_name(node: str, run: str) -> str:
    """Return the name of a run's reservation of a node."""
    return f"pitstop_{run}_{node}"


def create_reservation(node: str, run: str, starts_in: int, seconds: int) -> list[str]:
    """Return the command that reserves a node for maintenance; both times in seconds.

    Times are relative: Slurm reads others in the controller's own time zone. As the start
    comes nearer, only jobs that can end before it are started; those that run stay.
    """
    _check_node(node)
    minutes = -(-seconds // 60)  # it counts in minutes
    return [
        *("scontrol", "create", "reservation"),
        f"ReservationName={reservation_name(node, run)}",
        f"StartTime=now+{starts_in}seconds" if starts_in > 0 else "StartTime=now",
        f"Duration={minutes}",
        *("Users=root", "Flags=maint,ignore_jobs", f"Nodes={node}"),
    ]


def delete_reservation(node: str, run: str) -> list[str]:
    """Return the command that ends a run's reservation of a node."""
    _check_node(node)
    return ["scontrol", "delete", f"ReservationName={reservation_name(node, run)}"]


def _check_node(node: str) -> None:
    """One node: `gpu[1-9]`, `ALL` and `a,b` would be many."""
    if not is_name(node) or node.upper() == "ALL":
        raise BadInput(node, "cannot be the name of one node of Slurm")


def _check_job(job: str) -> None:
    """One job, or one task of an array.

    The last task of an array has the array's own number, and by that all tasks would be meant.
    """
    if re.fullmatch(r"[0-9]+(_[0-9]+)?", job, re.ASCII) is None:
        raise BadInput(job, "cannot be the number of one job of Slurm")
