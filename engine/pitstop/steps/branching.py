"""What the parts of a run's sequence tell each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pitstop.model.errors import PitstopError
from pitstop.model.words import Verb

Perform = Callable[[Verb, str], dict[str, Any]]


class GivenUp(Exception):
    """The run cannot go on to maintenance; what was moved aside is brought back."""

    def __init__(self, cause: PitstopError) -> None:
        self.cause = cause


class OutOfContact(Exception):
    """What became of a step is unknown: nothing may be decided from it."""

    def __init__(self, cause: PitstopError) -> None:
        self.cause = cause
