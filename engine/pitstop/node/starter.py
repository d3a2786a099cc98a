"""Restore and cold start as operations: start the launcher, wait until ready to serve.

Both are measured from the same point, just before the launcher is started, to the same
point, the first good answer to the readiness probe.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pitstop.images.signing import Keys
from pitstop.images.store import Store
from pitstop.model.errors import Busy, NotReady, PitstopError, Refused, RestoreFailed
from pitstop.node import answers, subject
from pitstop.node.clock import now, running_seconds
from pitstop.node.inventory import refuse_if_changed
from pitstop.node.launch import read_env_file
from pitstop.node.locks import held
from pitstop.node.paths import StateDir
from pitstop.node.record import Phase, Record, WorkloadState
from pitstop.node.stopper import end_launched

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def start(
    state: StateDir, how: Literal["restore", "cold"], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Bring a workload up and wait for it.

    Args:
        state: the node's state.
        how: only that way; which way to try next is the run's decision, not this one's.
        arguments: `workload`, `run`, `launch`, `ready`, `proof`, `pid_file`, and for a
            restore `checkpoint`.

    Returns:
        `ready_seconds` from the start of the launcher to ready, `started`, `ready`,
        `generation`, and for a restore `proof`.

    Raises:
        RestoreFailed: nothing of the workload runs.
        NotReady: after a restore it was ended again; after a cold start it still runs.
        PitstopError: it could not be started.
    """
    files = WorkloadState(state, str(arguments["workload"]))
    with held(files.operation_lock, files.name, "another operation on this workload"):
        return _Starter(state, files, how, arguments).run()


class _Starter:
    def __init__(
        self,
        state: StateDir,
        files: WorkloadState,
        how: Literal["restore", "cold"],
        arguments: Mapping[str, Any],
    ) -> None:
        self.state = state
        self.files = files
        self.how = how
        self.arguments = arguments
        self.run_id = str(arguments.get("run", ""))

    def run(self) -> dict[str, Any]:
        record = self.files.record()
        if not self.files.running():
            self._refuse_beside_the_original()
            if self.how == "restore":
                self._ask_the_gate()
            self._launch()
        elif record.phase is Phase.STARTING and not self._is_ours(record):
            raise Busy(self.files.name, "another launcher is just starting it")
        elif not self._is_ours(record):
            raise Refused(
                self.files.name,
                f"another start of it (generation {record.generation}) runs already",
                "nothing was started: there must never be two copies",
            )
        # Else a try before this one was cut off after its launcher had started: go on there.
        return self._until_ready()

    def _refuse_beside_the_original(self) -> None:
        """The launcher's lock says nothing of an original that was started without it.

        Raises:
            Refused: that one still runs.
        """
        pid_file = self.arguments.get("pid_file")
        if subject.runs_by_pid_file(self.files, pid_file):
            raise Refused(
                self.files.name,
                f"the process that {pid_file} names still runs",
                "nothing was started: there must never be two copies",
            )

    def _ask_the_gate(self) -> None:
        """Ask again right before: the run's own gate may have been asked long ago.

        Raises:
            Refused: something differs now.
            InvalidCheckpoint: the manifest is not what was signed.
        """
        store = Store(self.state.images(self.files.name))
        checkpoint = store.get(str(self.arguments["checkpoint"]))
        refuse_if_changed(checkpoint.verify_signature(Keys(self.state.keys())))

    def _is_ours(self, record: Record) -> bool:
        wanted = "restored" if self.how == "restore" else "cold"
        return record.run == self.run_id != "" and record.how == wanted

    def _launch(self) -> None:
        launch = self.arguments["launch"]
        reader, writer = os.pipe()
        command = [
            sys.executable,
            "-m",
            "pitstop.node.main",
            "launch",
            "--workload",
            self.files.name,
            "--start",
            self.how,
            "--run",
            self.run_id,
            "--cwd",
            str(launch.get("cwd", "/")),
            "--begun",
            str(running_seconds()),
            "--report-fd",
            str(writer),
        ]
        if self.how == "restore":
            command += ["--checkpoint", str(self.arguments["checkpoint"]), "--gated"]
        if launch.get("io_uring") == "deny":
            command.append("--deny-io-uring")
        with self.files.launcher_log.open("ab") as log:
            os.fchmod(log.fileno(), 0o600)
            subprocess.Popen(
                [*command, "--", *map(str, launch["command"])],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=self._environment(launch),
                start_new_session=True,
                pass_fds=(writer,),
            )
        os.close(writer)
        with os.fdopen(reader, "r", encoding="utf-8") as report:
            line = report.readline()
        self._check(json.loads(line) if line else {})

    def _check(self, message: Mapping[str, Any]) -> None:
        if message.get("running"):
            return
        if "failed" in message:
            raise PitstopError.from_json(message["failed"])
        raise RestoreFailed(self.files.name, "its launcher ended without a word")

    def _environment(self, launch: Mapping[str, Any]) -> dict[str, str]:
        """A small environment of its own: nothing of the connection's leaks into it."""
        base = {
            "PATH": PATH,
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "PITSTOP_STATE_DIR": str(self.state.root),
        }
        if "PITSTOP_CRIU" in os.environ:
            base["PITSTOP_CRIU"] = os.environ["PITSTOP_CRIU"]
        secrets = read_env_file(Path(launch["env_file"])) if launch.get("env_file") else {}
        return {**base, **dict(launch.get("env") or {}), **secrets}

    def _until_ready(self) -> dict[str, Any]:
        try:
            ready = answers.wait_ready(self.arguments["ready"], self.files.running)
            proof = self._prove()
        except NotReady:
            if self.how == "restore":
                # Half alive is not alive. It is gone before anything else may be started.
                end_launched(self.files)
            raise
        record = self.files.record()
        seconds = round(ready - record.started_running, 6)
        if self.how == "cold":
            self.files.update(cold_start_seconds=seconds)
        self.files.release(self.run_id)
        return {
            "ready_seconds": seconds,
            "started": record.started,
            "ready": now(),
            "generation": record.generation,
            "proof": proof,
            "earlier_cold_start_seconds": record.cold_start_seconds,
            "verified_seconds": round(running_seconds() - record.started_running, 6),
        }

    def _prove(self) -> str:
        """Compare the answer to the proof request with the one recorded in the checkpoint."""
        proof = self.arguments.get("proof")
        if self.how != "restore" or proof is None:
            return "none"
        store = Store(self.state.images(self.files.name))
        recorded = store.get(str(self.arguments["checkpoint"])).manifest().proof
        if recorded is None:
            return "none"
        try:
            answer = answers.proof_answer(proof)
        except PitstopError as error:
            raise NotReady(self.files.name, f"the proof request failed: {error}") from error
        if answer != recorded:
            raise NotReady(
                self.files.name,
                f"it answers {answer[:200]!r}, but answered {recorded[:200]!r} before",
            )
        return "equal"
