"""A controller's session: requests that are answered one after another, until stdin ends.

Each request is answered by a child that is forked for it. So none can leave anything behind
for the next (signal handlers, timers, the environment, descriptors), and what it starts has
a parent that ends, as with a process for each request; only the start of an interpreter and
its imports are saved.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from pitstop.node.frame import Framed, wrap

IDLE = 900.0
"""Seconds after which a session ends that is asked nothing: its controller may have gone
without a word. A controller begins another one long before that."""

AGAIN = {"again": True}
"""Said instead of an answer: nothing was done, ask it in another session."""

REQUEST_LIMIT = 64 << 20
"""Bytes of a request."""


def serve() -> int:
    """Answer the requests on stdin, and return the exit status.

    That is never 2 once a request was read: by that a controller knows an engine that is too
    old for sessions and has done nothing.
    """
    from pitstop.node.calls import answer

    # A person's Ctrl-C in a terminal is for the controller, which may ask to clean up.
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    began_with = _program()
    while True:
        request = _read()
        if request is None:
            return 0
        message = request.message()
        if message is None:
            print("pitstop-node: a request that is not JSON", file=sys.stderr, flush=True)
            return 1
        if _program() != began_with:
            # It was replaced, as by a runbook that upgrades it: what is loaded here is old.
            _write(wrap(request.nonce, AGAIN))
            return 0
        status = _in_child(partial(answer, message), request.nonce, interrupt)
        if status < 0:
            # As a process for this request would have: killed is no error of the engine's.
            if -status != signal.SIGKILL:
                signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        if status != 0:
            return 1


def _program() -> dict[str, tuple[int, int, int, int] | None]:
    """What tells the files apart that this program was loaded from.

    Also the command's own, as it was called: an upgrade may be a link that leads elsewhere.
    """
    loaded = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {file: _stamp(file) for file in {sys.executable, sys.argv[0], *loaded} if file}


def _stamp(file: str) -> tuple[int, int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None  # also a stamp: it is not there
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _read() -> Framed | None:
    """Return the next request; None when there is none: stdin ended, or nobody asks."""
    request = Framed(None, REQUEST_LIMIT)
    while select.select([0], [], [], IDLE)[0]:
        part = os.read(0, 1 << 16)
        if not part:
            return None
        if request.feed(part):
            return request
    return None


def _write(data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(1, left) :]


def _in_child(answer: Callable[[], dict[str, Any]], nonce: str, interrupt: Any) -> int:
    """Answer one request; returns how the child ended: 0 when it has answered, -n by a signal."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.signal(signal.SIGINT, interrupt)
            null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            os.dup2(null, 0)  # the requests to come are not for what this one starts
            os.close(null)
            reply = answer()
            sys.stdout.flush()
            _write(wrap(nonce, reply))
            status = 0
        except BaseException:  # noqa: BLE001  # said, and it ends the session
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
