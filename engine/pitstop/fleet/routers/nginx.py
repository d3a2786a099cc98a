"""nginx without Plus: `down` in its configuration, a reload, and a look at its workers."""

from __future__ import annotations

import json
import time

from pitstop.fleet.routers.machine import Machine
from pitstop.fleet.routers.nginx_conf import UpstreamServer, find_server, set_down
from pitstop.fleet.routers.router import Before, CannotCount, NotUnderstood, ReplicaState, Router
from pitstop.model.errors import BadInput, DeadlineExceeded, PermanentError, TemporaryError
from pitstop.model.router import Nginx

PAUSE = 0.02
"""Seconds between two looks at the workers: nothing tells when they have changed."""

_WORKER = "nginx: worker process"
_LEAVING = "is shutting down"


class NginxRouter(Router):
    """One nginx. A reload takes into use whatever else was edited, if nginx accepts it.

    After it, old workers finish what they have: they may even begin a request that they
    were still reading. So a replica is `settled` only once all of them have gone
    (nginx documentation, "Controlling nginx", "Changing Configuration").
    """

    counts = False

    def __init__(self, name: str, spec: Nginx) -> None:
        super().__init__(name)
        self._spec = spec
        self._machine = Machine(name, spec.ssh)

    def look(self, replica: str) -> ReplicaState:
        """See `Router.look`. The file is what nginx works by: we leave no other behind."""
        server = self._server(self._text(), replica)
        _, leaving = self._workers()
        words = str(server)
        if leaving:
            words += f"; {len(leaving)} workers of an earlier configuration still finish"
        return ReplicaState(not server.down, words, settled=not leaving)

    def in_flight(self, replica: str) -> int:
        """Raise: nginx without Plus has no such number."""
        raise CannotCount(
            f"router {self.name}",
            f"nginx does not say what {replica} has in flight",
            "declare drain.in_flight of the workload",
        )

    def close(self) -> None:
        """See `Router.close`."""
        self._machine.close()

    def _close(self, replica: str) -> None:
        self._set(replica, down=True)

    def _open(self, replica: str, _before: Before) -> None:
        self._set(replica, down=False)

    def _set(self, replica: str, down: bool) -> None:
        """Edit, test, reload; the file is as it was if nginx does not take it.

        It is reloaded also where the file says it already: whoever wrote that may have died
        before the reload.
        """
        old = self._text()
        self._server(old, replica)
        new = set_down(old, replica, self._spec.upstream, down)
        if new != old:
            self._machine.replace(self._spec.file, old, new, self._spec.deadline)
        try:
            self._command("-t", "-q")
            self._reload()
        except BaseException:
            if new != old:
                self._machine.replace(self._spec.file, new, old, self._spec.deadline)
            raise

    def _reload(self) -> None:
        """Have all workers replaced. That the signal was sent does not say that they are."""
        before, _ = self._workers()
        self._command("-s", "reload")
        end = time.monotonic() + self._spec.deadline
        while True:
            now, _ = self._workers()
            if now and not before & now:
                return
            if time.monotonic() > end:
                raise DeadlineExceeded(
                    f"router {self.name}",
                    f"nginx did not take its configuration within {self._spec.deadline:g} s",
                    "its error log says why",
                )
            time.sleep(PAUSE)

    def _command(self, *options: str) -> None:
        argv = [*self._spec.program, *options]
        done = self._machine.run(argv, self._spec.deadline)
        if done.exit_status != 0:
            said = done.stderr.decode("utf-8", errors="backslashreplace").strip()
            raise PermanentError(f"router {self.name}", f"{' '.join(argv)}: {said[-500:]}")

    def _workers(self) -> tuple[set[int], set[int]]:
        """Return the PIDs of the workers that take requests, and of those that only finish.

        A worker that was forked a moment ago still bears its master's title: it is waited for.
        """
        end = time.monotonic() + self._spec.deadline
        while not (workers := self._titled()):
            if time.monotonic() > end:
                raise TemporaryError(
                    f"router {self.name}", f"{self._spec.pid_file}: it has no workers"
                )
            time.sleep(PAUSE)
        leaving = {pid for pid, title in workers.items() if title.endswith(_LEAVING)}
        return set(workers) - leaving, leaving

    def _titled(self) -> dict[int, str]:
        said = self._machine.children(self._spec.pid_file, self._spec.deadline)
        try:
            found = {int(pid): str(title) for pid, title in json.loads(said)}
        except (ValueError, TypeError) as error:
            raise NotUnderstood(f"router {self.name}", f"its processes: {error}") from error
        return {pid: title for pid, title in found.items() if title.startswith(_WORKER)}

    def _text(self) -> str:
        return self._machine.read(self._spec.file, self._spec.deadline)

    def _server(self, text: str, replica: str) -> UpstreamServer:
        try:
            return find_server(text, replica, self._spec.upstream)
        except ValueError as error:
            raise BadInput(self._spec.file, f"cannot be read as nginx reads it: {error}") from error
