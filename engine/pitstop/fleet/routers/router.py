"""What pitstop asks of a router, whichever it is."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from pitstop.model.errors import DeadlineExceeded, PermanentError, Refused, TemporaryError

Count = Callable[[], float]


class CannotCount(PermanentError):
    """A router that has no number of requests in flight for one replica."""

    code = "router_cannot_count"


class NotUnderstood(PermanentError):
    """A router answered something that is not known to mean anything."""

    code = "router_answer"


@dataclass(frozen=True, slots=True)
class Before:
    """How a replica stood before a run touched it: what is to be brought back.

    Attributes:
        open: whether its router gave it requests. If not, somebody else has closed it.
        words: in the router's own words, for people.
        detail: plain data that opening it again needs. Never a secret.
    """

    open: bool
    words: str
    detail: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"open": self.open, "words": self.words, "detail": dict(self.detail)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Before:
        """Read what `to_json` wrote."""
        return Before(bool(data["open"]), str(data["words"]), dict(data["detail"]))


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A replica as its router sees it now.

    Attributes:
        open: the router gives it new requests, but for what its health check says.
        settled: nothing of the router still works by what was true earlier.
        words: in the router's own words, for people.
        detail: as in `Before`.
    """

    open: bool
    words: str
    settled: bool = True
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def before(self) -> Before:
        """This state as the one to bring back."""
        return Before(self.open, self.words, self.detail)


class Router(ABC):
    """A router. Routers have no place for a reason, so who closed a replica is not seen there.

    It is known from what was before: see `Before`. Not for use by several threads at once.

    Attributes:
        name: in the site.
        counts: whether `in_flight` can tell.
        settle_seconds: after closing, until no part of the router can give it a request. Where
            that can be seen, `ReplicaState.settled` says it instead.
    """

    counts: bool = True
    settle_seconds: float = 0.0

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _value: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def look(self, replica: str) -> ReplicaState:
        """Say how a replica stands.

        Raises:
            BadInput: its name is none, or the router has no such replica.
            PitstopError: it cannot be told.
        """

    @abstractmethod
    def in_flight(self, replica: str) -> int:
        """Return the observed number of requests that it has, or that wait for it.

        Raises:
            CannotCount: this router never can.
            PitstopError: it cannot be told. That is never zero.
        """

    @abstractmethod
    def _close(self, replica: str) -> None:
        """Keep new requests away; what is in flight goes on. Doing it again does no harm."""

    @abstractmethod
    def _open(self, replica: str, before: Before) -> None:
        """Let requests in again. Doing it again does no harm."""

    def seal(self, replica: str) -> None:  # noqa: B027  # most have nothing more to close
        """Once it is idle: close also what `_close` leaves open for old clients."""

    def close(self) -> None:  # noqa: B027  # most hold no connection
        """Give the connection back."""

    def close_admission(self, replica: str, before: Before | None = None) -> Before:
        """Keep new requests away from a replica, and look that it is so.

        Args:
            replica: its name at the router.
            before: what was found when this was first tried; else it is looked for now.

        Returns:
            What to pass to `open_admission`. What somebody else had closed is left as it is.

        Raises:
            PitstopError: it was not done, or is not known to be.
        """
        before = before or self.look(replica).before
        if before.open:
            self._close(replica)
            found = self.look(replica)
            if found.open:
                raise TemporaryError(
                    f"router {self.name}", f"{replica} is still open: {found.words}"
                )
        return before

    def detail_for(self, replica: str, detail: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Return what opening a replica needs, from what another one's detail says."""
        return dict(detail)

    def admit(self, replica: str, instead_of: Before) -> bool:
        """Let requests in to a replica that takes another's place, and say whether.

        Args:
            replica: whose turn it is. It may never have been open before.
            instead_of: how the other stood before it was closed. What somebody else had
                closed is not opened in another place.

        Raises:
            PitstopError: it was not done, or is not known to be.
        """
        if not instead_of.open:
            return False
        found = self.look(replica)
        if found.open:
            return True
        detail = dict(found.detail) or self.detail_for(replica, instead_of.detail)
        return self.open_admission(replica, Before(True, found.words, detail))

    def open_admission(self, replica: str, before: Before) -> bool:
        """Let requests in again if they were before, look that it is so, and say whether.

        Raises:
            PitstopError: it was not done, or is not known to be.
        """
        if not before.open:
            return False
        self._open(replica, before)
        found = self.look(replica)
        if not found.open:
            raise TemporaryError(
                f"router {self.name}",
                f"{replica} does not open: {found.words}",
                "somebody else may have closed it meanwhile",
            )
        return True


def wait_idle(
    router: Router,
    replica: str,
    before: Before,
    deadline: float,
    interval: float,
    progress: Callable[[str], None],
    count: Count | None = None,
) -> dict[str, float]:
    """Close a replica and watch what is in flight to its end, seen to be zero twice.

    Args:
        router: that stands before it.
        replica: its name there.
        before: how it stood before this run first touched it.
        deadline: seconds until it must be idle. When they pass, the caller opens it again.
        interval: seconds between two looks.
        progress: told when the number changes.
        count: the replica's own number, for a router that cannot count.

    Returns:
        `in_flight_at_start`, `in_flight_at_end`, `waited_seconds`.

    Raises:
        DeadlineExceeded: it was not idle in time; the cause has the number.
        Refused: somebody has opened it meanwhile.
        PitstopError: it cannot be told.
    """
    begun = time.monotonic()
    router.close_admission(replica, before)
    closed = time.monotonic()
    number = count or (lambda: float(router.in_flight(replica)))
    subject = f"{replica} at router {router.name}"
    first = last = number()
    progress(f"{subject}: closed; {first:g} in flight")
    zeros, sealed = 0, not before.open
    while True:
        state = router.look(replica)
        if state.open:
            raise Refused(subject, f"opened by somebody else meanwhile: {state.words}")
        gone_by = time.monotonic() - closed >= router.settle_seconds
        zeros = zeros + 1 if last == 0 and state.settled and gone_by else 0
        if zeros >= 2 and sealed:
            return {
                "in_flight_at_start": first,
                "in_flight_at_end": last,
                "waited_seconds": round(time.monotonic() - begun, 3),
            }
        if zeros >= 2:
            router.seal(replica)
            zeros, sealed = 0, True
        if time.monotonic() - begun > deadline:
            raise DeadlineExceeded(
                subject,
                f"{last:g} requests still in flight after {deadline:g} s"
                + ("" if state.settled else f"; {state.words}"),
            )
        # Routers are sampled; they send no event.
        time.sleep(interval)
        now = number()
        if now != last:
            progress(f"{subject}: {now:g} in flight")
        last = now
