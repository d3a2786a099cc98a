"""A monthly maintenance of one node.

Needs a connection `pitstop_default` (type pitstop) whose site.yaml places the workload
`chat` on the node `gpu1`, and the path of a maintenance.yaml in the Variable
`pitstop_maintenance`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from pitstop.provider.deadlines import maintenance_deadline
from pitstop.provider.task_group import maintenance_task_group

with DAG(
    dag_id="pitstop_example_maintenance",
    description="Drain, checkpoint, maintain, restore",
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    # One maintenance of a node at a time; the engine holds the real lock.
    max_active_runs=1,
    # When it is not done by then, somebody is told how it stands and how to go on.
    deadline=maintenance_deadline(timedelta(hours=2)),
    tags=["pitstop"],
) as dag:
    maintenance_task_group(
        maintenance="{{ var.value.pitstop_maintenance }}",
        node="gpu1",
        workloads=["chat"],
    )
