"""A polite client of the demo's server: it waits through a maintenance and counts every turn."""

from __future__ import annotations

import argparse
import errno
import json
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any

#: What the client says, in turn, when run as a program.
TEXTS = (
    "Hello! My name is Anna. What is yours?",
    "Which city is the capital of France?",
    "What can one see there?",
    "Do you remember my name?",
)
_NOT_THERE = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH)


class DemoError(Exception):
    """The server refused for good, or stayed away for too long."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        #: The HTTP status, when there was an answer.
        self.status = status


class SessionLost(DemoError):
    """The server no longer knows the conversation as it was."""


class _Unavailable(Exception):
    """Nothing was processed: asking again is safe."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


class _Unclear(Exception):
    """The connection broke after the request left: it may or may not have been processed."""


class DemoClient:
    """Talks to one server (or the router before it). One writer for each session.

    Args:
        base_url: for example ``http://10.0.0.5:8080``.
        patience: seconds to keep trying while the server is not there.
        timeout: seconds for one request.
    """

    def __init__(self, base_url: str, patience: float = 120.0, timeout: float = 60.0) -> None:
        if urllib.parse.urlsplit(base_url).scheme not in ("http", "https"):
            raise ValueError(f"not an HTTP address: {base_url!r}")
        self._base = base_url.rstrip("/")
        self._patience = patience
        self._timeout = timeout
        # The environment's proxies are not for the nodes of a site.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._turns: dict[str, int] = {}
        #: How often a request had to be asked again.
        self.retries = 0

    def health(self) -> dict[str, Any]:
        """Ask once whether the server is ready.

        Raises:
            DemoError: if it is not.
        """
        try:
            return self._ask("GET", "/health")
        except (_Unavailable, _Unclear) as problem:
            raise DemoError(str(problem)) from problem

    def completion(self, prompt: str, max_tokens: int = 24) -> str:
        """Return the continuation of a prompt; the same each time."""
        body = {"prompt": prompt, "max_tokens": max_tokens}
        return str(self._patiently("POST", "/v1/completions", body)["text"])

    def session(self, session: str) -> dict[str, Any] | None:
        """Return where a session stands, or None if the server does not know it."""
        try:
            return self._patiently("GET", self._session_path(session))
        except DemoError as problem:
            if problem.status == 404:
                return None
            raise

    def turn(self, session: str, text: str, max_tokens: int = 24) -> dict[str, Any]:
        """Say something and return the reply.

        When the connection breaks, the server is asked whether the turn happened before it is
        said again, so that it is neither lost nor repeated.

        Raises:
            SessionLost: if the turn's number is not the next one.
        """
        if session not in self._turns:
            self._turns[session] = self._turn_of(self.session(session))
        wanted = self._turns[session] + 1
        answer = self._turn(session, {"text": text, "max_tokens": max_tokens}, wanted)
        if answer["turn"] != wanted:
            raise SessionLost(f"session {session}: turn {answer['turn']} instead of {wanted}")
        self._turns[session] = wanted
        return answer

    def _turn(self, session: str, body: dict[str, Any], wanted: int) -> dict[str, Any]:
        deadline = time.monotonic() + self._patience
        while True:
            left = deadline - time.monotonic()
            try:
                return self._patiently("POST", f"{self._session_path(session)}/turns", body, left)
            except _Unclear as problem:
                known = self.session(session)
                if known and known["turn"] == wanted and known["text"] == body["text"]:
                    return known
                if self._turn_of(known) != wanted - 1:
                    raise SessionLost(f"session {session}: {known} before turn {wanted}") from None
                if time.monotonic() > deadline:
                    raise DemoError(str(problem)) from problem
                self.retries += 1

    def _patiently(
        self, method: str, path: str, body: Any = None, patience: float | None = None
    ) -> dict[str, Any]:
        deadline = time.monotonic() + (self._patience if patience is None else patience)
        pause = 0.1
        while True:
            try:
                return self._ask(method, path, body)
            except _Unavailable as problem:
                wait = min(10.0, pause if problem.wait is None else problem.wait)
                if time.monotonic() + wait > deadline:
                    raise DemoError(f"{self._base}: {problem}") from problem
            except _Unclear as problem:
                # Completions and questions change nothing; a turn is decided by the caller.
                if path.endswith("/turns"):
                    raise
                wait = pause
                if time.monotonic() + wait > deadline:
                    raise DemoError(f"{self._base}: {problem}") from problem
            self.retries += 1
            time.sleep(wait)
            pause = min(2.0, pause * 2)

    def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        request = urllib.request.Request(  # noqa: S310 (the scheme was checked)
            self._base + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                value: dict[str, Any] = json.load(answer)
                return value
        except urllib.error.HTTPError as problem:
            with problem:
                said = problem.read(1000).decode(errors="replace").strip()
            if problem.code == 503:
                after = problem.headers.get("Retry-After", "")
                raise _Unavailable(said, float(after) if after.isdecimal() else None) from problem
            if problem.code in (502, 504):  # a router that lost its server
                raise _Unclear(f"{problem.code}: {said}") from problem
            raise DemoError(f"{method} {path}: {problem.code}: {said}", problem.code) from problem
        except urllib.error.URLError as problem:
            reason = problem.reason
            if isinstance(reason, OSError) and reason.errno in _NOT_THERE:
                raise _Unavailable(str(reason)) from problem
            raise _Unclear(str(reason)) from problem
        except (OSError, HTTPException, json.JSONDecodeError) as problem:
            raise _Unclear(repr(problem)) from problem

    @staticmethod
    def _session_path(session: str) -> str:
        return f"/v1/sessions/{urllib.parse.quote(session, safe='')}"

    @staticmethod
    def _turn_of(known: dict[str, Any] | None) -> int:
        return int(known["turn"]) if known else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Hold a conversation and print one JSON line for each turn."""
    parser = argparse.ArgumentParser(prog="python -m pitstop.demo.client", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--session", required=True)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--text", help="say this instead of the built-in texts")
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--patience", type=float, default=120.0)
    args = parser.parse_args(argv)
    client = DemoClient(args.url, patience=args.patience)
    for number in range(args.turns):
        text = args.text or TEXTS[number % len(TEXTS)]
        started, retries = time.monotonic(), client.retries
        try:
            answer = client.turn(args.session, text, args.max_tokens)
        except DemoError as problem:
            sys.stderr.write(f"{type(problem).__name__}: {problem}\n")
            return 1
        answer |= {
            "text": text,
            "seconds": round(time.monotonic() - started, 3),
            "retries": client.retries - retries,
        }
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
