"""A router's HTTP API: JSON, a bearer token from a file, no proxy and no redirect."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pitstop.fleet.routers.router import NotUnderstood
from pitstop.model.errors import BadInput, PermanentError, TemporaryError

BODY_LIMIT = 64 << 20
SHOWN = 300
"""Characters of an unwanted answer that an error shows."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, with what it answers.

    Attributes:
        asked: method and URL, for errors.
    """

    asked: str
    status: int
    text: str

    def json(self) -> Any:
        """Return its body.

        Raises:
            NotUnderstood: it is not JSON.
        """
        try:
            return json.loads(self.text)
        except ValueError as error:
            raise NotUnderstood(self.asked, f"its answer is not JSON: {error}") from error

    def wanted(self, *statuses: int) -> Answer:
        """Return itself if its status is one of these.

        Raises:
            TemporaryError: it is 429 or the server's own failure: trying again may help.
            PermanentError: it is another.
        """
        if self.status in statuses:
            return self
        kind = TemporaryError if self.status == 429 or self.status >= 500 else PermanentError
        raise kind(self.asked, f"HTTP {self.status}: {self.text[:SHOWN]!r}")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token must not follow a redirect to somebody else."""

    def redirect_request(self, *_: Any) -> None:
        """Leave the answer as it is."""


class Api:
    """Calls to one router.

    Args:
        token_file: its first line is sent as bearer token; read anew for each call.
        timeout: seconds for one call.
    """

    def __init__(self, token_file: str | None, timeout: float) -> None:
        self._token_file = token_file
        self._timeout = timeout
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)

    def call(self, method: str, url: str, body: Mapping[str, Any] | str | None = None) -> Answer:
        """Make a call and return the answer, whatever its status.

        Raises:
            BadInput: the token's file cannot be read.
            TemporaryError: no answer.
        """
        asked = f"{method} {url}"
        headers = {"Accept": "application/json, text/plain, */*"}
        if self._token_file is not None:
            headers["Authorization"] = f"Bearer {read_token(self._token_file)}"
        data = None
        if body is not None:
            data = (body if isinstance(body, str) else json.dumps(body)).encode()
            headers["Content-Type"] = "application/json"
        try:
            request = urllib.request.Request(  # noqa: S310  # the model allows http and https only
                url, method=method, data=data, headers=headers
            )
            with self._opener.open(request, timeout=self._timeout) as response:
                return Answer(asked, response.status, _text(response.read(BODY_LIMIT)))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(asked, error.code, _text(error.read(BODY_LIMIT)))
        except (OSError, ValueError) as error:
            raise TemporaryError(asked, f"no answer: {error}") from error

    def get(self, url: str) -> Answer:
        """GET, and 200 is wanted.

        Raises:
            PitstopError: as `call` and `Answer.wanted`.
        """
        return self.call("GET", url).wanted(200)


def read_token(path: str) -> str:
    """Return the first line of a file with a secret.

    Raises:
        BadInput: it cannot be read, or holds none.
    """
    try:
        token = Path(path).read_text(encoding="ascii").split("\n", 1)[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise BadInput(path, f"no token can be read: {reason}") from None
    if not token.isprintable() or not token:
        raise BadInput(path, "its first line is no token")
    return token


def number(value: Any, what: str, asked: str) -> int:
    """Return a number that can be one of requests.

    Raises:
        NotUnderstood: it is none.
    """
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole or value < 0:
        raise NotUnderstood(asked, f"{what} is {value!r}, no number of requests")
    return int(value)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")
