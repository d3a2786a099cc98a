"""A workload of several processes that talk to each other, for tests. Standard library.

The root answers lines on a TCP port, each connection for as long as its client likes. It has
a worker (pipes both ways), a daemon that left by a double fork for a session of its own (as
its leader, or with `orphan` as a member of a session without leader), a thread that does the
counting, a deleted file it still writes to, and a locked file.

    add N     the worker's sum           work N    the thread's sum
    daemon    how often it was asked     who       the PIDs
    keep X    all lines kept so far in the deleted file
"""

from __future__ import annotations

import fcntl
import json
import os
import queue
import socketserver
import sys
import threading
from collections.abc import Callable
from pathlib import Path

Ask = Callable[[str], str]


def main() -> None:
    port, directory = int(sys.argv[1]), Path(sys.argv[2])
    worker = child(lambda line, total: total + int(line))
    daemon = child(lambda _line, total: total + 1, leave=sys.argv[3])
    thread = counting_thread()
    kept = (directory / "kept").open("w+")
    (directory / "kept").unlink()
    locked = (directory / "locked").open("w")
    fcntl.flock(locked, fcntl.LOCK_EX)
    guard = threading.Lock()

    def keep(text: str) -> str:
        kept.seek(0, os.SEEK_END)
        kept.write(text + "\n")
        kept.flush()
        kept.seek(0)
        return json.dumps(kept.read().split())

    commands: dict[str, Ask] = {
        "add": worker,
        "daemon": daemon,
        "work": thread,
        "keep": keep,
        "who": lambda _text: str(os.getpid()),
    }

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                name, _, argument = line.decode().strip().partition(" ")
                with guard:
                    answer = commands[name](argument)
                self.wfile.write(f"{answer}\n".encode())

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    with Server(("127.0.0.1", port), Handler) as server:
        print("up", flush=True)
        server.serve_forever()


def child(step: Callable[[str, int], int], leave: str = "") -> Ask:
    """Start a process that keeps a number, and return how to ask it."""
    to_child, from_root = os.pipe()
    to_root, from_child = os.pipe()
    first = os.fork()
    if first == 0:
        if leave == "orphan":
            os.setsid()
        if leave and os.fork() != 0:
            os._exit(0)
        if leave == "leader":
            os.setsid()
        os.close(from_root)
        os.close(to_root)
        total = 0
        with os.fdopen(to_child) as lines:
            for line in lines:
                total = step(line.strip() or "0", total)
                os.write(from_child, f"{total}\n".encode())
        os._exit(0)
    if leave:
        os.waitpid(first, 0)
    os.close(to_child)
    os.close(from_child)
    answers = os.fdopen(to_root)

    def ask(text: str) -> str:
        os.write(from_root, f"{text}\n".encode())
        return answers.readline().strip()

    return ask


def counting_thread() -> Ask:
    asked: queue.Queue[int] = queue.Queue()
    answered: queue.Queue[int] = queue.Queue()

    def count() -> None:
        total = 0
        while True:
            total += asked.get()
            answered.put(total)

    threading.Thread(target=count, daemon=True).start()

    def ask(text: str) -> str:
        asked.put(int(text))
        return str(answered.get())

    return ask


if __name__ == "__main__":
    main()
