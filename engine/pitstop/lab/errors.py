"""What goes wrong in a lab."""

from __future__ import annotations

from pitstop.model.errors import PermanentError


class LabError(PermanentError):
    """A lab or one of its nodes could not be made, reached or controlled."""

    code = "lab"
