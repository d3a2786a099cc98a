"""Templates shipped with pitstop: runbooks and reports, as data with a loader.

The files are read as package resources, so they are found in a wheel, a zip and a checkout
alike. A name is looked up in the list of what is there and never joined into a path.
"""

from __future__ import annotations

from importlib.resources import files

_RUNBOOK_SUFFIX = ".md.j2"


def runbook_names() -> tuple[str, ...]:
    """Return the names of the built-in runbooks."""
    return tuple(
        name.removesuffix(_RUNBOOK_SUFFIX)
        for name in _listing("runbooks")
        if name.endswith(_RUNBOOK_SUFFIX)
    )


def runbook_source(name: str) -> str:
    """Return the text of a built-in runbook.

    Raises:
        KeyError: there is none of that name.
    """
    return _read("runbooks", name + _RUNBOOK_SUFFIX)


def report_template(name: str) -> str:
    """Return the text of a report template, such as `plan.html.j2`.

    Raises:
        KeyError: there is none of that name.
    """
    return _read("reports", name)


def _listing(folder: str) -> list[str]:
    return sorted(entry.name for entry in (files(__name__) / folder).iterdir() if entry.is_file())


def _read(folder: str, name: str) -> str:
    if name not in _listing(folder):
        raise KeyError(name)
    return (files(__name__) / folder / name).read_text(encoding="utf-8")
