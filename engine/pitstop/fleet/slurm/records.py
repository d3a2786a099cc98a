"""Whole nodes and jobs, from `--json` of any version and from scontrol's text.

JSON is preferred. In text, values of users (names, paths) may hold spaces and `=`: what could
be read in two ways is an error, never a guess.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pitstop.fleet.slurm.gres import Gres, gpus, parse_gres, requested_gpus, tres_gpus
from pitstop.fleet.slurm.hostlist import expand
from pitstop.fleet.slurm.states import JobState, NodeState, job_state, node_state
from pitstop.fleet.slurm.values import Amount, duration, instant, minutes, number
from pitstop.model.errors import PermanentError

T = TypeVar("T")


class NotUnderstood(PermanentError):
    """An answer of Slurm that cannot be read. Nothing may be concluded from it."""

    code = "slurm_answer"


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node as Slurm sees it.

    Attributes:
        reason: why it is drained or down, without who set it; empty without one.
        reason_by: who set the reason.
        booted: seconds since 1970; None when Slurm does not say.
    """

    name: str
    state: NodeState
    reason: str
    reason_by: str
    gres: tuple[Gres, ...]
    booted: int | None


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job, or one task of an array, or one part of a heterogeneous job.

    Attributes:
        key: what to call it by so that its siblings are not meant: `5425_1`, `77+2`, `9`.
        waiting: how many tasks of an array this record stands for while they are pending.
        nodes: where it is; none while it is pending.
        gpus: all that it holds, or asks for while it is pending; None when Slurm does not say.
        time_limit: in seconds.
        end: when its time is up, in seconds since 1970; None without one.
        requeue: whether it may be requeued; None when Slurm does not say.
        reason: why it waits, as Slurm says it; empty without one.
        whole: the id that means all parts of a heterogeneous job, or the job's own.
        excluded: the nodes that its owner wants it not to run on.
    """

    job_id: int
    key: str
    name: str
    user: str
    state: JobState
    waiting: int
    nodes: tuple[str, ...]
    gpus: int | None
    time_limit: Amount
    start: int | None
    end: int | None
    requeue: bool | None
    reason: str = ""
    whole: int = 0
    excluded: tuple[str, ...] = ()

    @property
    def held(self) -> bool:
        """Whether somebody keeps it from starting. Slurm says "user" also of root's holds."""
        return self.reason.startswith("JobHeld")


def read_nodes(command: str, output: str) -> tuple[SlurmNode, ...]:
    """Read all nodes of an answer in JSON.

    Raises:
        NotUnderstood: it is no such answer; the error names the command and the field.
    """
    return _records(command, _answer(command, output), "nodes", _node_of_json)


def read_jobs(command: str, output: str) -> tuple[SlurmJob, ...]:
    """Read all jobs of an answer in JSON, whatever their state.

    Raises:
        NotUnderstood: it is no such answer; the error names the command and the field.
    """
    return read_queue(command, output)[0]


def read_queue(command: str, output: str) -> tuple[tuple[SlurmJob, ...], int | None]:
    """Read all jobs of an answer in JSON, and of when it is, in seconds since 1970 if it says so.

    Raises:
        NotUnderstood: it is no such answer; the error names the command and the field.
    """
    answer = _answer(command, output)
    jobs = _records(command, answer, "jobs", _job_of_json)
    asked = _record(command, "", answer, lambda data: _maybe(data, "last_update", instant, None))
    return jobs, asked


SQUEUE_FORMAT = "%A|%F|%K|%T|%l|%N|%x|%r|%u|%j"
"""For a squeue without JSON. What its owner chooses, the job's name, comes last: it may hold
separators, and lines that look like another job."""


def read_jobs_squeue(command: str, output: str) -> tuple[SlurmJob, ...]:
    """Read what squeue prints with `SQUEUE_FORMAT`, without a header.

    A line that is none of squeue's is part of the name before it. A name can so make up a job
    that is not there, but never hide one.

    Raises:
        NotUnderstood: a line is not understood; the error names it.
    """
    found: list[SlurmJob] = []
    for line_number, line in enumerate(_split(output), 1):
        fields = line.split("|", SQUEUE_FORMAT.count("|"))
        if len(fields) <= SQUEUE_FORMAT.count("|") or not _DECIMAL.fullmatch(fields[0]):
            if not found:
                where = f"line {line_number} is not understood: {line[:200]!r}"
                raise NotUnderstood(command, where)
            found[-1] = replace(found[-1], name=f"{found[-1].name}\n{line}")
            continue
        try:
            found.append(_job_of_squeue(*fields))
        except ValueError as error:
            raise NotUnderstood(command, f"line {line_number}: {error}: {line[:200]!r}") from error
    return tuple(found)


def _split(output: str) -> list[str]:
    """Split at line feeds alone: Unicode's other line ends may stand in names and reasons."""
    return output.removesuffix("\n").split("\n") if output else []


def _job_of_squeue(
    job_id: str,
    array: str,
    task: str,
    state: str,
    limit: str,
    nodes: str,
    excluded: str,
    reason: str,
    user: str,
    name: str,
) -> SlurmJob:
    found = job_state(state)
    waiting = (waiting_tasks(task) or 1) if found.base == "PENDING" else 0
    one = int(task) if _DECIMAL.fullmatch(task) else None
    return SlurmJob(
        job_id=int(job_id),
        key=_key(int(job_id), int(array) if one is not None else None, one, None, None),
        name=name,
        user=user,
        state=found,
        waiting=waiting,
        nodes=expand(nodes),
        gpus=None,
        time_limit=duration(limit),
        start=None,  # local time, without its zone
        end=None,
        requeue=None,
        reason=_why(reason),
        whole=int(job_id),
        excluded=expand(excluded),
    )


def read_nodes_text(command: str, output: str) -> tuple[SlurmNode, ...]:
    """Read the lines of `scontrol --oneliner show node`.

    Raises:
        NotUnderstood: a line is not understood; the error names it.
    """
    return _lines(command, output, NODE_KEYS, "NodeName", _node_of_text)


def read_jobs_text(command: str, output: str) -> tuple[SlurmJob, ...]:
    """Read the lines of `scontrol --oneliner show job`.

    Raises:
        NotUnderstood: a line is not understood; the error names it.
    """
    return _lines(command, output, JOB_KEYS, "JobId", _job_of_text)


def waiting_tasks(text: str) -> int:
    """Return how many tasks `3-40%4` or `1,5-9:2` stand for; 0 for none.

    Raises:
        ValueError: it is no list of tasks. A list that Slurm cut short (`...`) is none.
    """
    if text in ("", "(null)", "N/A"):
        return 0
    total = 0
    for part in text.partition("%")[0].split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part, re.ASCII)
        if found is None:
            raise ValueError(f"{text[:100]!r} is no list of tasks")
        first, last = int(found.group(1)), int(found.group(2) or found.group(1))
        step = int(found.group(3) or 1)
        if last < first or step < 1:
            raise ValueError(f"{text[:100]!r} is no list of tasks")
        total += (last - first) // step + 1
    return total


# --- JSON


def _answer(command: str, output: str) -> Mapping[str, Any]:
    try:
        answer = json.loads(output)
    except ValueError as error:
        raise NotUnderstood(command, f"its answer is no JSON: {error}") from error
    if not isinstance(answer, dict):
        raise NotUnderstood(command, "its answer is no object")
    if answer.get("errors"):
        raise NotUnderstood(command, f"it reports errors: {str(answer['errors'])[:300]}")
    return answer


def _records(
    command: str, answer: Mapping[str, Any], what: str, read: Callable[[Mapping[str, Any]], T]
) -> tuple[T, ...]:
    found = answer.get(what)
    if not isinstance(found, list):
        raise NotUnderstood(command, f"its answer has no list `{what}`")
    return tuple(_record(command, f"{what}[{i}].", data, read) for i, data in enumerate(found))


def _record(command: str, where: str, data: Any, read: Callable[[Mapping[str, Any]], T]) -> T:
    if not isinstance(data, dict):
        raise NotUnderstood(command, f"{where.rstrip('.')} is no object")
    try:
        return read(data)
    except _FieldError as error:
        raise NotUnderstood(command, f"{where}{error.field}: {error.cause}") from error


class _FieldError(Exception):
    def __init__(self, field: str, cause: str) -> None:
        super().__init__(field, cause)
        self.field = field
        self.cause = cause


def _get(data: Mapping[str, Any], field: str, read: Callable[[Any], T]) -> T:
    if field not in data:
        raise _FieldError(field, "is missing")
    try:
        return read(data[field])
    except ValueError as error:
        raise _FieldError(field, str(error)) from error


def _maybe(data: Mapping[str, Any], field: str, read: Callable[[Any], T], otherwise: T) -> T:
    return _get(data, field, read) if data.get(field) is not None else otherwise


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _texts(value: Any) -> Sequence[str]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is no list")
    return [_text(text) for text in value]


def _whole(value: Any) -> int:
    found = number(value)
    if not isinstance(found, int):
        raise ValueError(f"{value!r} is no number")
    return found


def _id(value: Any) -> int | None:
    """Read an id that may not be set: that of an array or of a heterogeneous job."""
    found = number(value)
    return found if isinstance(found, int) else None


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _node_of_json(data: Mapping[str, Any]) -> SlurmNode:
    flags = data.get("state_flags") or []
    return SlurmNode(
        name=_get(data, "name", _text),
        state=_get(data, "state", lambda state: node_state(state, flags)),
        reason=_maybe(data, "reason", _text, ""),
        reason_by=_maybe(data, "reason_set_by_user", _text, ""),
        gres=_get(data, "gres", lambda value: parse_gres(_text(value))),
        booted=_maybe(data, "boot_time", instant, None),
    )


def _job_of_json(data: Mapping[str, Any]) -> SlurmJob:
    job_id = _get(data, "job_id", _whole)
    state = _get(data, "job_state", job_state)
    array = _maybe(data, "array_job_id", _id, None)
    task = _maybe(data, "array_task_id", _id, None)
    nodes = _get(data, "nodes", lambda value: expand(_text(value or "")))
    end = _get(data, "end_time", instant)
    limit = _get(data, "time_limit", minutes)
    if limit is None and data["time_limit"] is None and state.base in ("RUNNING", "SUSPENDED"):
        # 22.05 writes null for none and for unlimited; a job that runs has one or the other.
        limit = "unlimited"
    waiting = _maybe(data, "array_task_string", lambda v: waiting_tasks(_text(v)), 0)
    return SlurmJob(
        job_id=job_id,
        key=_key(
            job_id,
            array,
            task,
            _maybe(data, "het_job_id", _id, None),
            _maybe(data, "het_job_offset", _id, None),
        ),
        name=_maybe(data, "name", _text, ""),
        user=_maybe(data, "user_name", _text, ""),
        state=state,
        waiting=(waiting or 1) if state.base == "PENDING" else 0,
        nodes=nodes,
        gpus=_gpus_of_json(data, len(nodes)),
        time_limit=limit,
        start=_get(data, "start_time", instant),
        # Without a limit it is a year ahead in some versions.
        end=end if isinstance(limit, int) else None,
        requeue=_get(data, "requeue", _flag),
        reason=_maybe(data, "state_reason", lambda value: _why(_text(value)), ""),
        whole=_maybe(data, "het_job_id", _id, None) or job_id,
        excluded=_maybe(data, "excluded_nodes", lambda value: expand(_text(value)), ()),
    )


def _why(text: str) -> str:
    return "" if text in ("None", "(null)", "N/A") else text


def _gpus_of_json(data: Mapping[str, Any], nodes: int) -> int | None:
    """Count a job's GPUs; what is not understood there must not cost its node and state."""
    try:
        return _count_gpus(data, nodes)
    except _FieldError:
        return None


def _count_gpus(data: Mapping[str, Any], nodes: int) -> int | None:
    """Count a job's GPUs.

    Where AccountingStorageTRES does not name them, the trackable resources hold no GPU though
    the job has some: what was given (`gres_detail`) and asked for (`tres_per_*`) is read too.
    """
    if any(_maybe(data, "gres_detail", _texts, [])):
        return _get(data, "gres_detail", lambda texts: sum(gpus(parse_gres(t)) for t in texts))
    for field in ("tres_alloc_str", "tres_req_str"):
        if "gres/gpu" in _maybe(data, field, _text, ""):
            return _get(data, field, tres_gpus)
    per_job = _requested(data, "tres_per_job")
    per_node = _requested(data, "tres_per_node")
    if per_job or per_node:
        count = nodes or _maybe(data, "node_count", _id, None)
        return per_job or (per_node * count if count else None)
    other = any(_requested(data, f"tres_per_{what}") for what in ("socket", "task"))
    said = data.get("tres_alloc_str") or "tres_per_node" in data
    return None if other or not said else 0


def _requested(data: Mapping[str, Any], field: str) -> int:
    return _maybe(data, field, lambda value: requested_gpus(_text(value)), 0)


def _gpus_of_text(data: Mapping[str, str]) -> int | None:
    """Count a job's GPUs; without `--details` the trackable resources alone may name them."""
    if "JOB_GRES" in data:
        return _get(data, "JOB_GRES", lambda value: gpus(parse_gres(value)))
    for field in ("AllocTRES", "TRES", "ReqTRES"):
        if "gres/gpu" in _maybe(data, field, _text, ""):
            return _get(data, field, tres_gpus)
    return None


def _key(
    job_id: int, array: int | None, task: int | None, het: int | None, offset: int | None
) -> str:
    """Name a job without its siblings. The last task of an array has the array's own id."""
    if array and task is not None:
        return f"{array}_{task}"
    if het and offset is not None:
        return f"{het}+{offset}"
    return str(job_id)


# --- text

NODE_KEYS = frozenset(
    {
        *("NodeName", "Arch", "CoresPerSocket", "CPUAlloc", "CPUEfctv", "CPUTot", "CPULoad"),
        *("AvailableFeatures", "ActiveFeatures", "Gres", "GresDrain", "GresUsed", "NodeAddr"),
        *("NodeHostName", "Port", "Version", "OS", "RealMemory", "AllocMem", "FreeMem", "Sockets"),
        *("Boards", "CoreSpecCount", "CPUSpecList", "MemSpecLimit", "State", "ThreadsPerCore"),
        *("TmpDisk", "Weight", "Owner", "MCS_label", "NextState", "Partitions", "BootTime"),
        *("SlurmdStartTime", "LastBusyTime", "ResumeAfterTime", "CfgTRES", "AllocTRES"),
        *("CapWatts", "CurrentWatts", "AveWatts", "ExtSensorsJoules", "ExtSensorsWatts"),
        *("ExtSensorsTemp", "Reason", "Comment", "Extra", "InstanceId", "InstanceType"),
        *("ReservationName", "PowerManagementPolicy", "Topology", "CertFlags"),
    }
)
JOB_KEYS = frozenset(
    {
        *("JobId", "ArrayJobId", "ArrayTaskId", "ArrayTaskThrottle", "HetJobId", "HetJobOffset"),
        *("HetJobIdSet", "JobName", "UserId", "GroupId", "MCS_label", "Priority", "Nice"),
        *("Account", "QOS", "WCKey", "JobState", "Reason", "Dependency", "Requeue", "Restarts"),
        *("BatchFlag", "Reboot", "ExitCode", "DerivedExitCode", "RunTime", "TimeLimit", "TimeMin"),
        *("SubmitTime", "EligibleTime", "AccrueTime", "StartTime", "EndTime", "Deadline"),
        *("SuspendTime", "SecsPreSuspend", "LastSchedEval", "Scheduler", "Partition"),
        *("AllocNode:Sid", "ReqNodeList", "ExcNodeList", "NodeList", "SchedNodeList", "BatchHost"),
        *("NumNodes", "NumCPUs", "NumTasks", "CPUs/Task", "ReqB:S:C:T", "ReqTRES", "AllocTRES"),
        *(
            "TRES",
            "JOB_GRES",
            "Nodes",
            "CPU_IDs",
            "Mem",
            "GRES",
            "Socks/Node",
            "NtasksPerN:B:S:C",
            "CoreSpec",
            "MinCPUsNode",
            "MinMemoryNode",
        ),
        *("MinMemoryCPU", "MinTmpDiskNode", "Features", "DelayBoot", "OverSubscribe"),
        *("Contiguous", "Licenses", "LicensesAlloc", "Network", "Command", "WorkDir", "StdErr"),
        *("StdIn", "StdOut", "Comment", "AdminComment", "TresPerJob", "TresPerNode"),
        *("TresPerTask", "TresBind", "Power", "MailUser", "MailType", "Reservation"),
        *("StepMgrEnabled", "SegmentSize", "BatchFeatures", "BurstBuffer", "PreemptTime"),
        *("PreemptEligibleTime", "ResizeTime", "Switches", "OOMKillStep", "SubmitLine"),
    }
)


def _lines(
    command: str,
    output: str,
    keys: frozenset[str],
    first: str,
    read: Callable[[Mapping[str, str]], T],
) -> tuple[T, ...]:
    result = []
    for line_number, line in enumerate(_split(output), 1):
        if not line.strip() or line.startswith(f"No {'nodes' if first == 'NodeName' else 'jobs'}"):
            continue
        where = f"line {line_number}"
        if not line.startswith(f"{first}="):
            raise NotUnderstood(command, f"{where} is not understood: {line[:200]!r}")
        try:
            result.append(read(_Fields(line, keys)))
        except _FieldError as error:
            cause = f"{where}, {error.field}: {error.cause}: {line[:200]!r}"
            raise NotUnderstood(command, cause) from error
    return tuple(result)


class _Fields(Mapping[str, str]):
    """The `key=value` pairs of a line. A key that is there twice cannot be asked for."""

    def __init__(self, line: str, keys: frozenset[str]) -> None:
        known = "|".join(re.escape(key) for key in sorted(keys, key=len, reverse=True))
        found = list(re.finditer(rf"(?:\A|(?<=\s))({known})=", line))
        self._values: dict[str, str] = {}
        self._twice: set[str] = set()
        for here, after in zip(found, [*found[1:], None], strict=True):
            key = here.group(1)
            if key in self._values:
                self._twice.add(key)
            end = len(line) if after is None else after.start()
            self._values[key] = line[here.end() : end].strip()

    def __getitem__(self, key: str) -> str:
        if key in self._twice:
            raise _FieldError(key, "is there twice, so a value holds what looks like it")
        return self._values[key]

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _node_of_text(data: Mapping[str, str]) -> SlurmNode:
    reason, by = _reason(_maybe(data, "Reason", _text, ""))
    return SlurmNode(
        name=_get(data, "NodeName", _word),
        state=_get(data, "State", lambda value: node_state(_word(value))),
        reason=reason,
        reason_by=by,
        gres=_get(data, "Gres", parse_gres),
        booted=None,  # it is local time there, without its zone
    )


_BEFORE_NAME = ("JobId", "ArrayJobId", "ArrayTaskId", "HetJobId", "HetJobOffset")
_AFTER_NAME = (
    *("JobState", "Requeue", "TimeLimit", "NodeList"),
    *("AllocTRES", "TRES", "ReqTRES", "JOB_GRES"),
)


def _refuse_forged(data: Mapping[str, str]) -> None:
    """A job's name, command and paths are its owner's: a key among them is none of Slurm's."""
    order = {key: position for position, key in enumerate(data)}
    name, user = order.get("JobName", 0), order.get("UserId", 0)
    command = order.get("Command", len(order))
    for key in _BEFORE_NAME:
        if order.get(key, 0) > name:
            raise _FieldError(key, "stands where only a value of the job's owner can")
    for key in _AFTER_NAME:
        if key in order and not user < order[key] < command:
            raise _FieldError(key, "stands where only a value of the job's owner can")


def _job_of_text(data: Mapping[str, str]) -> SlurmJob:
    _refuse_forged(data)
    job_id = int(_get(data, "JobId", _decimal))
    state = _get(data, "JobState", lambda value: job_state(_word(value)))
    task = _maybe(data, "ArrayTaskId", _text, "")
    single = int(task) if _DECIMAL.fullmatch(task) else None
    if state.base == "PENDING":
        waiting = (_get(data, "ArrayTaskId", waiting_tasks) if task else 0) or 1
    else:
        waiting = 0
    return SlurmJob(
        job_id=job_id,
        key=_key(
            job_id,
            _maybe(data, "ArrayJobId", lambda v: int(_decimal(v)), None),
            single,
            _maybe(data, "HetJobId", lambda v: int(_decimal(v)), None),
            _maybe(data, "HetJobOffset", lambda v: int(_decimal(v)), None),
        ),
        name=_maybe(data, "JobName", _text, ""),
        user=_get(data, "UserId", lambda value: _text(value).rpartition("(")[0]),
        state=state,
        waiting=waiting,
        nodes=_maybe(data, "NodeList", expand, ()),
        gpus=_gpus_of_text(data),
        time_limit=_get(data, "TimeLimit", lambda value: duration(_word(value))),
        start=None,  # local time, without its zone
        end=None,
        requeue=_get(data, "Requeue", _word) == "1",
        reason=_maybe(data, "Reason", lambda value: _why(_text(value)), ""),
        whole=_maybe(data, "HetJobId", lambda v: int(_decimal(v)), None) or job_id,
        excluded=_maybe(data, "ExcNodeList", expand, ()),
    )


def _word(value: str) -> str:
    if not value or re.search(r"\s", value):
        raise ValueError(f"{value[:100]!r} is not one word")
    return value


_DECIMAL = re.compile(r"[0-9]+")


def _decimal(value: str) -> str:
    if not _DECIMAL.fullmatch(value):
        raise ValueError(f"{value[:100]!r} is no number")
    return value


def _reason(text: str) -> tuple[str, str]:
    """Take `fan swap [root@2026-11-29T22:10:00]` apart."""
    found = re.fullmatch(r"(.*?)\s*\[([^\[\]@]+)@[^\[\]]*\]", text)
    return (found.group(1), found.group(2)) if found else (text, "")
