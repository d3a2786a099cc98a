"""Reading an answer field by field: what is missing or odd is named with the way to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any


class FieldError(Exception):
    """A field that is not what it has to be."""

    def __init__(self, path: str, cause: str) -> None:
        super().__init__(path, cause)
        self.path = path
        self.cause = cause


class Field:
    """A value of an answer, and the way to it. All methods raise `FieldError`."""

    def __init__(self, value: Any, path: str) -> None:
        self._value = value
        self._path = path

    def error(self, cause: str) -> FieldError:
        """Return an error about this field."""
        return FieldError(self._path, cause)

    def get(self, name: str) -> Field | None:
        """Return a field of this object; None where it is missing or null."""
        value = self._mapping().get(name)
        return None if value is None else Field(value, self._way(name))

    def __getitem__(self, name: str) -> Field:
        found = self.get(name)
        if found is None:
            raise FieldError(self._way(name), "is missing")
        return found

    def each(self, name: str) -> Iterator[Field]:
        """Go through a list of this object; a missing one is empty, as the API writes it."""
        found = self.get(name)
        if found is None:
            return
        if not isinstance(found._value, list):
            raise found.error(f"{_short(found._value)} is no list")
        for number, value in enumerate(found._value):
            yield Field(value, f"{found._path}[{number}]")

    def text(self) -> str:
        """Return a text."""
        if not isinstance(self._value, str):
            raise self.error(f"{_short(self._value)} is no text")
        return self._value

    def name(self) -> str:
        """Return a text that is not empty."""
        found = self.text()
        if not found:
            raise self.error("is empty")
        return found

    def flag(self) -> bool:
        """Return true or false."""
        if not isinstance(self._value, bool):
            raise self.error(f"{_short(self._value)} is neither true nor false")
        return self._value

    def one_of(self, allowed: frozenset[str]) -> str:
        """Return a text out of a closed set."""
        found = self.text()
        if found not in allowed:
            raise self.error(f"{_short(found)} is none of {', '.join(sorted(allowed))}")
        return found

    def texts(self) -> dict[str, str]:
        """Return an object whose values are texts: labels, annotations."""
        found = self._mapping()
        return {str(key): Field(found[key], self._way(str(key))).text() for key in found}

    def fields(self) -> Iterator[tuple[str, Field]]:
        """Go through an object."""
        for key, value in self._mapping().items():
            yield str(key), Field(value, self._way(str(key)))

    def moment(self) -> int:
        """Return a moment (RFC 3339) in seconds since 1970."""
        try:
            found = datetime.fromisoformat(self.text())
        except ValueError:
            raise self.error(f"{_short(self._value)} is no moment") from None
        return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp())

    @property
    def value(self) -> Any:
        """The value as it came."""
        return self._value

    def _mapping(self) -> Mapping[str, Any]:
        if not isinstance(self._value, dict):
            raise self.error(f"{_short(self._value)} is no object")
        return self._value

    def _way(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name


def _short(value: Any) -> str:
    return repr(value)[:100]
