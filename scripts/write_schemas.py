"""Write the JSON Schemas of everything that is written to a file: docs/schemas/*.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pydantic import BaseModel

from pitstop.model.coverage import Coverage
from pitstop.model.event import Event
from pitstop.model.maintenance import Maintenance
from pitstop.model.manifest import Manifest
from pitstop.model.plan import Plan
from pitstop.model.result import RunResult
from pitstop.model.runbook import FrontMatter, RunbookStep
from pitstop.model.site import Site
from pitstop.report.document import Report

SCHEMAS: dict[str, type[BaseModel]] = {
    "site": Site,
    "maintenance": Maintenance,
    "runbook-front-matter": FrontMatter,
    "runbook-step": RunbookStep,
    "plan": Plan,
    "event": Event,
    "run-result": RunResult,
    "manifest": Manifest,
    "report": Report,
    "coverage": Coverage,
}


def schema_text(name: str) -> str:
    """Return a schema as it is published."""
    schema = SCHEMAS[name].model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def main() -> int:
    """Write all schemas."""
    directory = Path(__file__).resolve().parent.parent / "docs" / "schemas"
    directory.mkdir(parents=True, exist_ok=True)
    for name in SCHEMAS:
        (directory / f"{name}.json").write_text(schema_text(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
