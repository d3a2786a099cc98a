"""The kill matrix under Airflow: a DAG run per cell, in one Airflow that all cells share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from pitstop.node import processes
from tests.rigs.matrix import Scene
from tests.rigs.matrix_airflow import BEFORE, DagRun, SharedAirflow, task_of
from tests.rigs.matrix_cells import Cell
from tests.rigs.matrix_command import strike
from tests.rigs.matrix_params import parameters
from tests.rigs.site import SiteRig

HELD = ("triggerer", "mark-run-failed", "mark-task-failed", "clear-running", "clear-finished")
"""What happens to a task that waits for the node: a dump would be over by then."""


@pytest.fixture(scope="session")
def airflow() -> Iterator[SharedAirflow]:
    shared = SharedAirflow()
    try:
        yield shared
    finally:
        shared.close()


@pytest.mark.timeout(700)
@pytest.mark.parametrize("cell", parameters("airflow"))
def test_cell(airflow: SharedAirflow, rig: SiteRig, cell: Cell) -> None:
    scene = Scene(rig, cell.step, save_held=cell.victim in HELD)
    with scene, airflow.dag_run(scene) as run:
        STRIKES[cell.victim](airflow, cell, scene, run)
        scene.let_go()
        state = run.wait()
        result = scene.result()
        if state == "failed" and result.state == "partial":
            assert rig.resume(result.run)[0] == 0
        scene.check(cell.endings)


def kill_task(airflow: SharedAirflow, cell: Cell, scene: Scene, run: DagRun) -> None:
    scene.wait_begun()
    os.kill(airflow.executing(scene).pid, signal.SIGKILL)
    run.wait_try(task_of(cell.step), 2)
    scene.check_in_the_middle()


def terminate_task(airflow: SharedAirflow, cell: Cell, scene: Scene, run: DagRun) -> None:
    scene.wait_begun()
    os.kill(airflow.executing(scene).pid, signal.SIGTERM)
    if cell.step in ("drain", "checkpoint"):
        scene.wait_ended()  # it is cancelled with its task


def kill_worker(airflow: SharedAirflow, cell: Cell, scene: Scene, run: DagRun) -> None:
    scene.wait_begun()
    os.kill(processes.parent_of(airflow.executing(scene).pid), signal.SIGKILL)
    if cell.step == "gate":
        scene.let_go()  # its probe would give up before a silent task counts as dead
    run.wait_try(task_of(cell.step), 2)


def kill_scheduler(airflow: SharedAirflow, cell: Cell, scene: Scene, run: DagRun) -> None:
    scene.wait_begun()
    airflow.executing(scene)
    airflow.kill_component("scheduler")
    scene.check_in_the_middle()
    airflow.start("scheduler")
    if cell.step == "gate":
        scene.let_go()
    run.wait_try(task_of(cell.step), 2)


def kill_triggerer(airflow: SharedAirflow, cell: Cell, scene: Scene, run: DagRun) -> None:
    wait_deferred(cell, scene, run)
    airflow.kill_component("triggerer")
    scene.check_in_the_middle()
    airflow.start("triggerer")


def leave_orphan(airflow: SharedAirflow, cell: Cell, scene: Scene, run: DagRun) -> None:
    """The retry begins while the first task's process lives, and that one goes on later."""
    scene.wait_begun()
    task = airflow.executing(scene)
    supervisor = processes.identity(processes.parent_of(task.pid))
    os.kill(supervisor.pid, signal.SIGKILL)
    # Not before that one is gone: a stopped process whose parent dies is hung up by the kernel.
    assert not processes.wait_gone([supervisor], 10)
    os.kill(task.pid, signal.SIGSTOP)
    if cell.step == "gate":
        scene.let_go()
    try:
        run.wait_try(task_of(cell.step), 3)  # the second one found the step taken
        assert task.alive()
        assert not scene.has("step.finished", cell.step)
    finally:
        os.kill(task.pid, signal.SIGCONT)


def mark_run_failed(airflow: SharedAirflow, cell: Cell, scene: Scene, run: DagRun) -> None:
    wait_deferred(cell, scene, run)
    run.mark_failed()
    scene.check_in_the_middle()
    run.clear(task_of(cell.step), downstream=True)
    run.wait_try(task_of(cell.step), 2)


def mark_task_failed(airflow: SharedAirflow, cell: Cell, scene: Scene, run: DagRun) -> None:
    wait_deferred(cell, scene, run)
    run.mark_task_failed(task_of(cell.step))
    scene.check_in_the_middle()
    run.clear(task_of(cell.step), downstream=True)
    run.wait_try(task_of(cell.step), 2)


def clear_running(airflow: SharedAirflow, cell: Cell, scene: Scene, run: DagRun) -> None:
    wait_deferred(cell, scene, run)
    run.clear(task_of(cell.step), downstream=False)
    run.wait_try(task_of(cell.step), 2)
    scene.check_in_the_middle()


def clear_finished(airflow: SharedAirflow, cell: Cell, scene: Scene, run: DagRun) -> None:
    wait_deferred(cell, scene, run)
    before = task_of(BEFORE[cell.step])
    run.clear(before, downstream=False)
    run.wait_try(before, 2)
    if cell.step == "gate":
        scene.let_go()
    run.wait_task(before, lambda task: task["state"] == "success", "returns what is recorded")


def strike_node(airflow: SharedAirflow, cell: Cell, scene: Scene, run: DagRun) -> None:
    strike(cell, scene)


def wait_deferred(cell: Cell, scene: Scene, run: DagRun) -> None:
    """Wait until the step is held, and its task waits for it; the gate's task waits itself."""
    scene.wait_held()
    state = "running" if cell.step == "gate" else "deferred"
    run.wait_task(task_of(cell.step), lambda task: task["state"] == state, f"is {state}")


STRIKES = {
    "controller-kill": kill_task,
    "controller-term": terminate_task,
    "connection": strike_node,
    "node": strike_node,
    "worker": kill_worker,
    "scheduler": kill_scheduler,
    "triggerer": kill_triggerer,
    "orphan": leave_orphan,
    "mark-run-failed": mark_run_failed,
    "mark-task-failed": mark_task_failed,
    "clear-running": clear_running,
    "clear-finished": clear_finished,
}
