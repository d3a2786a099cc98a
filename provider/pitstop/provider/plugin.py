"""The plugin: macros for templates and messages around a maintenance.

Declared as an entry point alone. Where Airflow also loads the plugins that providers declare,
it stops at the first one that it knows already, and those of other providers would be lost.
"""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from pitstop.provider.info import DEFAULT_CONNECTION

# Every Airflow process loads this; what is behind the macros is imported where they are used.


def run_id(dag_run: Any) -> str:
    """Return the pitstop run of a DAG run: `{{ macros.pitstop.run_id(dag_run) }}`."""
    from pitstop.provider import hooks

    return hooks.run_id(dag_run.dag_id, dag_run.run_id, dag_run.conf)


def standing(dag_run: Any, pitstop_conn_id: str = DEFAULT_CONNECTION) -> str:
    """Return how a DAG run's maintenance stands, and the commands to go on with.

    Looks at journal and node and changes nothing: `{{ macros.pitstop.standing(dag_run) }}`.
    """
    from pitstop.provider.hooks import PitstopHook
    from pitstop.provider.standing import standing_of

    return standing_of(PitstopHook(pitstop_conn_id), run_id(dag_run)).text


class PitstopPlugin(AirflowPlugin):
    """Adds `macros.pitstop`."""

    name = "pitstop"
    macros = [run_id, standing]  # noqa: RUF012  # as the base class has it
