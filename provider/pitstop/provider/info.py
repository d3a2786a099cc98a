"""What Airflow's provider discovery reads. Imports nothing: it runs before Airflow is ready."""

from __future__ import annotations

from typing import Any

VERSION = "0.1.0"
CONNECTION_TYPE = "pitstop"
DEFAULT_CONNECTION = "pitstop_default"
_ROOT = "pitstop.provider"


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata in the shape of Airflow's provider_info.schema.json."""
    return {
        "package-name": "pitstop",
        "name": "pitstop",
        "description": "GPU node maintenance: drain, checkpoint, maintain, restore.",
        "versions": [VERSION],
        "integrations": [
            {
                "integration-name": "pitstop",
                "external-doc-url": "https://airflow.apache.org/docs/apache-airflow-providers/",
                "tags": ["service"],
            }
        ],
        "hooks": [{"integration-name": "pitstop", "python-modules": [f"{_ROOT}.hooks"]}],
        "operators": [{"integration-name": "pitstop", "python-modules": [f"{_ROOT}.operators"]}],
        "triggers": [{"integration-name": "pitstop", "python-modules": [f"{_ROOT}.triggers"]}],
        "extra-links": [f"{_ROOT}.links.ReportLink"],
        "connection-types": [
            {
                "connection-type": CONNECTION_TYPE,
                "hook-class-name": f"{_ROOT}.hooks.PitstopHook",
                "hook-name": "pitstop",
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "schema", "login", "port", "extra"],
                    "relabeling": {"password": "SSH private key"},
                    "placeholders": {"password": "empty: what site.yaml says"},
                },
                "conn-fields": {
                    "site_file": {
                        "label": "site.yaml",
                        "description": "Absolute path, readable by every worker and triggerer.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "home": {
                        "label": "Home directory",
                        "description": "Absolute path of journal and reports, shared likewise.",
                        "schema": {"type": ["string", "null"]},
                    },
                    # Such addresses often hold a token.
                    "alarm_url": {
                        "label": "Alarm URL",
                        "description": "Told of maintenances that are not done in time, by POST.",
                        "schema": {"type": ["string", "null"], "format": "password"},
                    },
                },
            }
        ],
        "config": {
            "pitstop": {
                "description": "GPU node maintenance.",
                "options": {
                    "kill_timeout": {
                        "description": (
                            "Seconds that a node has to stop its work when a person kills a task "
                            "whose work can be cut off. Keep it below [triggerer] on_kill_timeout."
                        ),
                        "version_added": VERSION,
                        "type": "float",
                        "example": None,
                        "default": "20",
                    }
                },
            }
        },
    }
