"""`pitstop-node`: the engine's command on a node. Starts with the standard library alone."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status (DESIGN, section 6)."""
    from pitstop.model.errors import PitstopError

    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.handler(arguments))
    except PitstopError as error:
        print(f"pitstop-node: {error}", file=sys.stderr, flush=True)
        return error.exit_code


def run() -> None:
    """Entry point."""
    sys.exit(main())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pitstop-node", description="pitstop's engine on a GPU node"
    )
    parser.add_argument("--state-dir", help="default: PITSTOP_STATE_DIR or /var/lib/pitstop")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    launch = commands.add_parser("launch", help="run a workload so that it can be saved")
    launch.add_argument("--workload", required=True)
    launch.add_argument("--start", choices=("auto", "restore", "cold"), default="auto")
    launch.add_argument("--checkpoint", help="default: the newest sealed one")
    launch.add_argument("--run", default="", help="the run on whose behalf this is")
    launch.add_argument("--cwd", default=".")
    launch.add_argument("--env-file", help="file with NAME=value lines")
    launch.add_argument(
        "--environment-stdin",
        action="store_true",
        help="read the command's environment as NAME=value, each ended by a NUL (env -0)",
    )
    launch.add_argument("--deny-io-uring", action="store_true")
    launch.add_argument("--gated", action="store_true", help=argparse.SUPPRESS)
    launch.add_argument("--begun", type=float, help=argparse.SUPPRESS)
    launch.add_argument("--report-fd", type=int, help=argparse.SUPPRESS)
    launch.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    launch.set_defaults(handler=_launch)

    rpc = commands.add_parser("rpc", help="answer what a controller asks on stdin")
    how = rpc.add_mutually_exclusive_group(required=True)
    how.add_argument("--session", action="store_true", help="requests until stdin ends")
    how.add_argument("--nonce", help="one request, whose answer is framed with this")
    rpc.set_defaults(handler=_rpc)

    op = commands.add_parser("op", help="operations").add_subparsers(required=True)
    start = op.add_parser("start", help="start, or attach to, an operation")
    start.add_argument("id")
    start.add_argument("kind")
    start.add_argument("--arguments", default="-", help="JSON, or - to read it from stdin")
    start.set_defaults(handler=_op_start)
    for name, handler in (("status", _op_status), ("wait", _op_wait), ("cancel", _op_cancel)):
        command = op.add_parser(name)
        command.add_argument("id")
        command.add_argument("--seconds", type=float, default=60.0)
        command.set_defaults(handler=handler)
    log = op.add_parser("log", help="the end of an operation's log")
    log.add_argument("id")
    log.add_argument("--bytes", type=int, default=65536)
    log.set_defaults(handler=_op_log)

    runner = commands.add_parser("op-run")
    runner.add_argument("id")
    runner.set_defaults(handler=_op_run)

    watch = commands.add_parser("lease-watch")
    watch.add_argument("run")
    watch.set_defaults(handler=_lease_watch)

    leases = commands.add_parser(
        "leases", help="runs that are looked after here; raises the alarms that are due"
    )
    leases.set_defaults(handler=_leases)

    images = commands.add_parser("images", help="move a checkpoint").add_subparsers(required=True)
    send = images.add_parser("send", help="write a checkpoint to stdout, as asked for on stdin")
    send.add_argument("--nonce", required=True)
    send.set_defaults(handler=_images_send)
    receive = images.add_parser("receive", help="read a checkpoint from stdin, and verify it")
    receive.add_argument("workload")
    receive.add_argument("checkpoint")
    receive.add_argument("--nonce", required=True)
    receive.set_defaults(handler=_images_receive)

    key = commands.add_parser("key", help="print the public key that images are signed with here")
    key.add_argument("--trust", metavar="NODE", help="trust the key of a node, read from stdin")
    key.set_defaults(handler=_key)

    moved = commands.add_parser("moved", help="where a workload was moved to, if it was")
    moved.add_argument("workload")
    moved.add_argument(
        "--clear", action="store_true", help="it is certain that it does not run there"
    )
    moved.set_defaults(handler=_moved)

    doctor = commands.add_parser("doctor", help="what can be saved here, and what not")
    doctor.add_argument("--no-trial", action="store_true")
    doctor.set_defaults(handler=_doctor)
    return parser


def _state(arguments: argparse.Namespace) -> Any:
    from pitstop.node.paths import StateDir

    return StateDir.at(arguments.state_dir)


def _launch(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from pitstop.node.launch import (
        Report,
        Request,
        launch,
        read_env_file,
        read_environment,
    )
    from pitstop.node.owner import refuse_what_is_roots, through_sudo

    owner = through_sudo(os.environ)
    if owner is not None:
        refuse_what_is_roots(arguments)
    command = arguments.command
    if command[:1] == ["--"]:
        command = command[1:]
    env = dict(os.environ)
    if arguments.env_file:
        env |= read_env_file(Path(arguments.env_file))
    if owner is not None:
        env |= owner.environment()
    if arguments.environment_stdin:
        env = read_environment(sys.stdin.buffer.read())
    request = Request(
        workload=arguments.workload if owner is None else owner.name_for(arguments.workload),
        command=command,
        env=env,
        cwd=os.path.abspath(arguments.cwd),
        start=arguments.start,
        checkpoint=arguments.checkpoint,
        run=arguments.run,
        deny_io_uring=arguments.deny_io_uring,
        gated=arguments.gated,
        job=env.get("SLURM_JOB_ID", ""),
        owner=owner,
        begun=arguments.begun,
        report=None if arguments.report_fd is None else Report(arguments.report_fd),
    )
    return launch(request, _state(arguments))


def _rpc(arguments: argparse.Namespace) -> int:
    if arguments.session:
        from pitstop.node.serve import serve

        return serve()
    from pitstop.node.calls import answer
    from pitstop.node.frame import wrap

    try:
        request = json.loads(sys.stdin.buffer.read())
    except ValueError as error:
        request = {"call": f"not JSON: {error}"}
    reply = answer(request if isinstance(request, dict) else {})
    sys.stdout.buffer.write(wrap(arguments.nonce, reply))
    sys.stdout.buffer.flush()
    return 0


def _operation(arguments: argparse.Namespace) -> Any:
    from pitstop.node.ops import Operation

    return Operation(_state(arguments), arguments.id)


def _print(status: Any) -> int:
    print(json.dumps(status.to_json(), ensure_ascii=False))
    return 0 if status.state in ("done", "running") else 1


def _op_start(arguments: argparse.Namespace) -> int:
    from pitstop.node.ops import parse_arguments

    text = sys.stdin.read() if arguments.arguments == "-" else arguments.arguments
    return _print(_operation(arguments).start(arguments.kind, parse_arguments(text)))


def _op_status(arguments: argparse.Namespace) -> int:
    return _print(_operation(arguments).status())


def _op_wait(arguments: argparse.Namespace) -> int:
    return _print(_operation(arguments).wait(arguments.seconds))


def _op_cancel(arguments: argparse.Namespace) -> int:
    return _print(_operation(arguments).cancel(arguments.seconds))


def _op_log(arguments: argparse.Namespace) -> int:
    sys.stdout.buffer.write(_operation(arguments).tail(arguments.bytes))
    return 0


def _op_run(arguments: argparse.Namespace) -> int:
    return int(_operation(arguments).run())


def _lease_watch(arguments: argparse.Namespace) -> int:
    from pitstop.node.lease import Lease

    Lease(_state(arguments), arguments.run).watch()
    return 0


def _leases(arguments: argparse.Namespace) -> int:
    """Exit status 4 when one has lapsed: a person is needed."""
    from pitstop.node.lease import check_all

    found = check_all(_state(arguments))
    print(json.dumps(found, ensure_ascii=False, indent=1))
    return 4 if any(lease["lapsed"] for lease in found) else 0


def _images_send(arguments: argparse.Namespace) -> int:
    from pitstop.node.streams import send

    return send(_state(arguments), arguments.nonce)


def _images_receive(arguments: argparse.Namespace) -> int:
    from pitstop.node.streams import receive

    return receive(_state(arguments), arguments.workload, arguments.checkpoint, arguments.nonce)


def _key(arguments: argparse.Namespace) -> int:
    from pitstop.images.signing import Keys
    from pitstop.node.paths import checked

    keys = Keys(_state(arguments).keys())
    if arguments.trust is not None:
        keys.trust(checked(arguments.trust), sys.stdin.buffer.read())
        return 0
    sys.stdout.write((keys.public(make=True) or b"").decode())
    return 0


def _moved(arguments: argparse.Namespace) -> int:
    from pitstop.node.record import WorkloadState

    files = WorkloadState(_state(arguments), arguments.workload)
    found = files.moved()
    print(found or "its place is here")
    if arguments.clear:
        files.forget_move()
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from pitstop.node.doctor import examine

    found = examine(_state(arguments), trial=not arguments.no_trial)
    print(json.dumps(found, ensure_ascii=False, indent=1))
    return 0 if found["able"] else 1


if __name__ == "__main__":
    run()
