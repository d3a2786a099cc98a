"""A runbook's command as an operation: whole group, bounded time, output kept on the node."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pitstop.model.errors import Cancelled, MaintenanceFailed
from pitstop.node import cancelling
from pitstop.node.clock import running_seconds

TAIL = 8192
KILL_GRACE = 10.0


def execute(command: Sequence[str], timeout: float, output: Path) -> dict[str, Any]:
    """Run a command to its end.

    Its output (both streams, in order) goes to a file; head and tail come back, with the
    size and BLAKE3 digest of all of it. On a timeout or a cancel the whole process group is
    ended, SIGTERM first.

    Returns:
        `exit_status` (None when it was ended for its timeout; -n for signal n), `timed_out`,
        `seconds`, `output_tail`, `output_bytes`, `output_digest`.

    Raises:
        MaintenanceFailed: it could not be started.
    """
    begun = running_seconds()
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    timed_out = False
    process: subprocess.Popen[bytes] | None = None
    try:
        with cancelling.deferred():  # or a command that was just started would be nobody's
            process = _start(command, descriptor)
        if cancelling.asked():
            raise Cancelled(command[0], "cancelled on request")
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        assert process is not None  # noqa: S101  # it was waited for
        timed_out = True
        _end_group(process)
    except BaseException:
        if process is not None:
            _end_group(process)
        raise
    return {
        "exit_status": None if timed_out else process.returncode,
        "timed_out": timed_out,
        "seconds": round(running_seconds() - begun, 3),
        **describe(output),
    }


def _start(command: Sequence[str], descriptor: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise MaintenanceFailed(command[0], f"cannot be started: {error.strerror}") from error
    finally:
        os.close(descriptor)


def describe(output: Path) -> dict[str, Any]:
    """Return head or tail, size and digest of a command's output."""
    from blake3 import blake3

    size = output.stat().st_size
    with output.open("rb") as file:
        if size > TAIL:
            head = file.read(TAIL // 2)
            file.seek(size - TAIL // 2)
            text = _text(head) + f"\n… {size - TAIL} bytes left out …\n" + _text(file.read())
        else:
            text = _text(file.read())
    digest = blake3(max_threads=1).update_mmap(output).hexdigest()
    return {"output_tail": text, "output_bytes": size, "output_digest": f"blake3:{digest}"}


def action(arguments: Mapping[str, Any], output: Path) -> dict[str, Any]:
    """Run a `model.workload.Action`: a command or an HTTP call.

    Raises:
        MaintenanceFailed: the command failed, or the call was not answered as declared.
    """
    from pitstop.node.answers import ask

    if arguments.get("http") is not None:
        wanted = int(arguments["http"].get("status", 200))
        status = ask(arguments["http"]).status
        if status != wanted:
            raise MaintenanceFailed(str(arguments["http"]["url"]), f"HTTP {status}, not {wanted}")
        return {"http_status": status}
    result = execute(arguments["command"], float(arguments.get("timeout", 60)), output)
    if result["exit_status"] != 0:
        raise MaintenanceFailed(
            str(arguments["command"][0]),
            f"exit status {result['exit_status']}: {result['output_tail'][-300:]}",
        )
    return result


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a command with all that it started in its group."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(KILL_GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # members that outlived their leader


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")
