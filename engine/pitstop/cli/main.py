"""`pitstop`: the controller's command."""

from __future__ import annotations

import sys

import typer

from pitstop.cli import coverage, demo, doctor, images, inventory, reconcile, runs, workloads

app = typer.Typer(
    name="pitstop",
    help="Drain, checkpoint, maintain, restore: GPU node maintenance that keeps the work.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(demo.demo)
app.command()(doctor.doctor)
app.command()(inventory.inventory)
app.command()(runs.plan)
app.command()(runs.run)
app.command()(runs.resume)
app.command()(runs.report)
app.command()(runs.runs)
app.command()(reconcile.reconcile)
app.command()(workloads.start)
app.command()(workloads.checkpoint)
app.command()(workloads.gate)
app.command()(workloads.restore)
app.command()(workloads.suspend)
app.command()(workloads.unsuspend)
app.command()(coverage.coverage)
app.add_typer(images.app, name="images")


def run() -> None:
    """Entry point."""
    try:
        app()
    except KeyboardInterrupt:
        # It came where no command could take it: while starting or ending.
        sys.exit(130)


if __name__ == "__main__":
    run()
