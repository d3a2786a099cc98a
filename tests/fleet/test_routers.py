"""HAProxy and nginx as they are: closed, watched, opened, and left as somebody else set them."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pitstop.decide.attempts import WITHOUT_CONTACT
from pitstop.fleet.routers import on_machine
from pitstop.fleet.routers.factory import router_for
from pitstop.fleet.routers.haproxy import HaproxyRouter
from pitstop.fleet.routers.machine import Machine
from pitstop.fleet.routers.nginx import NginxRouter
from pitstop.fleet.routers.router import CannotCount, Count, NotUnderstood, Router, wait_idle
from pitstop.model.errors import (
    BadInput,
    DeadlineExceeded,
    PermanentError,
    Refused,
    TemporaryError,
)
from pitstop.model.plan import Plan, RunbookRef, WorkloadPlan
from pitstop.model.router import Haproxy, Nginx
from pitstop.model.site import Node, SitePolicy
from pitstop.model.ssh import Ssh
from pitstop.model.words import Shape, Strategy
from pitstop.model.workload import AtRouter, Drain, HttpProbe, Launch, Ready, Workload
from pitstop.steps import routing
from pitstop.steps.context import RunContext
from pitstop.steps.runs import create_run
from tests.rigs.engine import until
from tests.rigs.routers import (
    KINDS,
    Real,
    RealHaproxy,
    RealNginx,
    built,
    ended,
    fetch,
    replica_command,
    require_routers,
)


def free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def quiet(argv: list[str], **options: Any) -> subprocess.Popen[Any]:
    return subprocess.Popen(argv, **{"stdout": subprocess.DEVNULL, "stderr": -3, **options})


@pytest.fixture(scope="module")
def let_go(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """While it is not there, `/slow` hangs."""
    return tmp_path_factory.mktemp("replicas") / "let-go"


@pytest.fixture(scope="module")
def replicas(let_go: Path) -> Iterator[list[int]]:
    """Two counting servers, by their ports."""
    require_routers()
    ports = free_ports(2)
    with ended(*(quiet(replica_command(port, let_go)) for port in ports)):
        for port in ports:
            until(partial(up, port), "a replica answers")
        yield ports


def up(port: int) -> bool:
    try:
        fetch(f"http://127.0.0.1:{port}/")
    except OSError:
        return False
    return True


class Scene:
    """A real router, and pitstop's view of it."""

    def __init__(self, real: Real, front: int, ports: list[int], let_go: Path) -> None:
        self.real = real
        self.let_go = let_go
        self.front = front
        self.here, self.there = ports
        self.replica = real.replicas[0]
        self.router: Router = built(real)

    def ask(self, path: str = "/count") -> int:
        return int(fetch(f"http://127.0.0.1:{self.front}{path}")["port"])

    def answering(self) -> set[int]:
        return {self.ask() for _ in range(12)}

    def own(self, port: int = 0) -> float:
        return float(fetch(f"http://127.0.0.1:{port or self.here}/inflight")["in_flight"])

    @property
    def count(self) -> Count | None:
        return None if self.router.counts else self.own

    @contextmanager
    def hanging(self) -> Iterator[list[Future[int]]]:
        """Have requests hang at both replicas until `let_go` is there; all must be answered."""
        self.let_go.unlink(missing_ok=True)
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(self.ask, "/slow") for _ in range(4)]
            try:
                until(lambda: self.own() > 0, "a request hangs")
                until(lambda: self.own(self.there) > 0, "one hangs at the other replica")
                yield asked
            finally:
                self.let_go.touch()
            assert {answer.result(20) for answer in asked} == {self.here, self.there}

    def wait(
        self, deadline: float = 10, tell: Callable[[str], None] = lambda _t: None
    ) -> dict[str, float]:
        before = self.router.look(self.replica).before
        return wait_idle(self.router, self.replica, before, deadline, 0.02, tell, self.count)


@pytest.fixture(params=KINDS)
def scene(
    request: pytest.FixtureRequest, tmp_path: Path, replicas: list[int], let_go: Path
) -> Iterator[Scene]:
    yield from scenes(request.param, tmp_path, replicas, let_go)


@pytest.fixture
def haproxy(tmp_path: Path, replicas: list[int], let_go: Path) -> Iterator[Scene]:
    yield from scenes("haproxy", tmp_path, replicas, let_go)


@pytest.fixture
def nginx(tmp_path: Path, replicas: list[int], let_go: Path) -> Iterator[Scene]:
    yield from scenes("nginx", tmp_path, replicas, let_go)


def scenes(kind: str, root: Path, replicas: list[int], let_go: Path) -> Iterator[Scene]:
    [front] = free_ports(1)
    real = KINDS[kind](root, front, replicas, quiet)
    with ended(real.process):
        found = Scene(real, front, replicas, let_go)
        until(lambda: found.answering() == set(replicas), "both replicas answer")
        with found.router:
            yield found


# --- both


def test_closed_replica_gets_no_new_requests_and_ends_those_it_has(scene: Scene) -> None:
    with scene.hanging() as asked:
        before = scene.router.close_admission(scene.replica)
        assert before.open
        assert scene.answering() == {scene.there}
        assert scene.own() > 0
        assert not any(answer.done() for answer in asked)
    assert scene.router.open_admission(scene.replica, before) is True
    assert scene.answering() == {scene.here, scene.there}


def test_closing_again_with_what_was_before_remembers_that_it_was_open(scene: Scene) -> None:
    before = scene.router.close_admission(scene.replica)
    again = scene.router.close_admission(scene.replica, before)
    assert again == before
    assert scene.router.open_admission(scene.replica, again) is True
    assert scene.router.open_admission(scene.replica, again) is True
    assert scene.router.look(scene.replica).open


def test_what_somebody_else_has_closed_is_left_closed(scene: Scene) -> None:
    scene.real.close_by_hand(scene.replica)
    until(lambda: not scene.router.look(scene.replica).open, "closed by hand")
    seen = scene.router.look(scene.replica).words
    before = scene.router.close_admission(scene.replica)
    assert not before.open
    until(lambda: scene.router.look(scene.replica).settled, "settled")
    scene.wait()
    assert scene.router.open_admission(scene.replica, before) is False
    assert scene.router.look(scene.replica).words == seen.partition("; 2 workers")[0]


def test_replica_that_takes_the_place_of_a_workload_that_moved(scene: Scene) -> None:
    spare = scene.real.replicas[1]
    scene.router.close_admission(spare)  # nothing runs there yet
    before = scene.router.close_admission(scene.replica)
    assert scene.router.admit(spare, before) is True
    until(lambda: scene.answering() == {scene.there}, "only the spare answers")
    assert scene.router.admit(spare, before) is True
    assert not scene.router.look(scene.replica).open


def test_waits_for_what_is_in_flight_and_sees_zero_twice(scene: Scene) -> None:
    said: list[str] = []

    def tell(text: str) -> None:
        said.append(text)
        scene.let_go.touch()

    with scene.hanging():
        seen = scene.wait(tell=tell)
    assert seen["in_flight_at_start"] >= 1
    assert seen["in_flight_at_end"] == 0
    assert "closed" in said[0]
    assert said[-1].endswith(" 0 in flight")


def test_deadline_names_what_is_still_in_flight(scene: Scene) -> None:
    still = pytest.raises(DeadlineExceeded, match=r"[1-3] requests still in flight after 0\.1 s")
    with scene.hanging(), still:
        scene.wait(deadline=0.1)


def test_replica_that_the_router_does_not_have_is_named(scene: Scene) -> None:
    unknown = "be/nobody" if isinstance(scene.real, RealHaproxy) else "127.0.0.1:1"
    with pytest.raises(BadInput, match=unknown):
        scene.router.close_admission(unknown)


# --- HAProxy


def test_haproxy_drain_becomes_maint_once_it_is_idle(haproxy: Scene) -> None:
    before = haproxy.router.close_admission(haproxy.replica)
    assert haproxy.router.look(haproxy.replica).words.startswith("DRAIN, forced")
    wait_idle(haproxy.router, haproxy.replica, before, 5, 0.02, lambda _t: None)
    assert haproxy.router.look(haproxy.replica).words.startswith("MAINT, forced")
    # Trying again, as a resumed run does, must not open it for sticky clients.
    haproxy.router.close_admission(haproxy.replica, before)
    assert haproxy.router.look(haproxy.replica).words.startswith("MAINT, forced")
    haproxy.router.open_admission(haproxy.replica, before)
    # A server that leaves maint is up at once, though its check wants 20 good answers.
    assert haproxy.router.look(haproxy.replica).words == "READY; running"


def test_haproxy_maint_ends_nothing_that_is_in_flight(haproxy: Scene) -> None:
    """`close_with: maint`, for backends whose clients are bound to a server."""
    spec = Haproxy.model_validate({**haproxy.real.spec, "close_with": "maint"})
    with router_for("lb", spec) as router, haproxy.hanging():
        router.close_admission(haproxy.replica)
        assert router.look(haproxy.replica).words.startswith("MAINT, forced")
        assert router.in_flight(haproxy.replica) > 0
        assert haproxy.answering() == {haproxy.there}


def test_haproxy_weight_zero_is_somebody_elses_closing(haproxy: Scene) -> None:
    assert isinstance(haproxy.real, RealHaproxy)
    haproxy.real.command(f"set server {haproxy.replica} weight 0")
    before = haproxy.router.close_admission(haproxy.replica)
    assert (before.open, before.words) == (False, "weight 0; running")
    assert haproxy.router.open_admission(haproxy.replica, before) is False


def test_haproxy_opened_by_somebody_else_meanwhile_is_not_idle(haproxy: Scene) -> None:
    assert isinstance(haproxy.real, RealHaproxy)
    real, replica = haproxy.real, haproxy.replica

    def open_by_hand() -> float:
        real.command(f"set server {replica} state ready")
        return 0

    before = haproxy.router.look(replica).before
    with pytest.raises(Refused, match="opened by somebody else"):
        wait_idle(haproxy.router, replica, before, 5, 0.02, lambda _t: None, open_by_hand)


@pytest.mark.parametrize("replica", ["be", "be/", "/s", "be/s;show info", "be/s/x", "bé/s"])
def test_haproxy_name_that_could_be_another_command_is_refused(replica: str) -> None:
    router = HaproxyRouter("lb", Haproxy(kind="haproxy", socket="/not/asked"))
    with pytest.raises(BadInput, match="BACKEND/SERVER"):
        router.close_admission(replica)


def test_haproxy_that_is_not_there_or_may_not_be_told(haproxy: Scene, tmp_path: Path) -> None:
    assert isinstance(haproxy.real, RealHaproxy)
    gone = HaproxyRouter("lb", Haproxy(kind="haproxy", socket=str(tmp_path / "gone")))
    with pytest.raises(TemporaryError, match=r"router lb: talk .*gone: .*No such file"):
        gone.look("be/s")
    [port] = free_ports(1)
    refusing = HaproxyRouter("lb", Haproxy(kind="haproxy", socket=f"tcp:127.0.0.1:{port}"))
    with pytest.raises(TemporaryError, match="refused"):
        refusing.look("be/s")


def test_haproxy_socket_without_admin_level_says_what_it_needs(
    tmp_path: Path, replicas: list[int]
) -> None:
    class Operator(RealHaproxy):
        def config(self) -> str:
            return super().config().replace("level admin", "level operator")

    real = Operator(tmp_path, free_ports(1)[0], replicas, quiet)
    with ended(real.process), built(real) as router, pytest.raises(PermanentError) as caught:
        router.close_admission(real.replicas[0])
    assert "Permission denied" in caught.value.cause
    assert "level admin" in caught.value.hint


@pytest.mark.parametrize("said", [b"", b"Unknown command\n", b"1\n# be_id\n", b"HTTP/1.1 400\r\n"])
def test_something_else_at_the_socket_is_not_understood(tmp_path: Path, said: bytes) -> None:
    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(said)

        other = threading.Thread(target=answer)
        other.start()
        router = HaproxyRouter("lb", Haproxy(kind="haproxy", socket=str(path)))
        with pytest.raises((NotUnderstood, BadInput)):
            router.look("be/s")
        other.join(10)


def test_socket_that_says_nothing_is_given_up_in_time(tmp_path: Path) -> None:
    path = tmp_path / "mute.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        router = HaproxyRouter("lb", Haproxy(kind="haproxy", socket=str(path), timeout=0.2))
        with pytest.raises(TemporaryError, match="timed out"):
            router.look("be/s")


# --- nginx


def test_nginx_file_keeps_every_other_byte_its_mode_and_its_link(nginx: Scene) -> None:
    assert isinstance(nginx.real, RealNginx)
    file, real_file = nginx.real.upstream, nginx.real.root / "real.conf"
    text = file.read_bytes().replace(b"two replicas", b"zwei R\xe4der")
    file.unlink()
    real_file.write_bytes(text)
    real_file.chmod(0o640)
    os.chown(real_file, 0, 12)
    file.symlink_to(real_file)
    before = nginx.router.close_admission(nginx.replica)
    assert file.read_bytes() == text.replace(b"max_fails=0;", b"max_fails=0 down;", 1)
    nginx.router.open_admission(nginx.replica, before)
    assert file.read_bytes() == text
    assert file.is_symlink()
    found = real_file.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o640, 0, 12)
    assert [path.name for path in nginx.real.root.iterdir() if "pitstop" in path.name] == []


def test_nginx_that_does_not_take_its_configuration_gets_the_old_file_back(nginx: Scene) -> None:
    assert isinstance(nginx.real, RealNginx)
    main = nginx.real.root / "nginx.conf"
    main.write_text(main.read_text() + "somebody elses mistake;\n")
    before = nginx.real.upstream.read_bytes()
    with pytest.raises(PermanentError, match="unknown directive"):
        nginx.router.close_admission(nginx.replica)
    assert nginx.real.upstream.read_bytes() == before
    assert nginx.answering() == {nginx.here, nginx.there}


def test_nginx_whose_workers_do_not_change_gets_the_old_file_back(
    nginx: Scene, tmp_path: Path
) -> None:
    """A reload that was asked for and not done, as when a new port is taken."""
    assert isinstance(nginx.real, RealNginx)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        main = nginx.real.root / "nginx.conf"
        # nginx -t does not listen; the master does, after half a second of trying.
        port = taken.getsockname()[1]
        main.write_text(main.read_text().replace("  server {", f"  server {{ listen {port};"))
        before = nginx.real.upstream.read_bytes()
        spec = Nginx.model_validate({**nginx.real.spec, "deadline": 0.5})
        slow_master = pytest.raises((DeadlineExceeded, PermanentError))
        with NginxRouter("lb", spec) as router, slow_master:
            router.close_admission(nginx.replica)
    assert nginx.real.upstream.read_bytes() == before


def test_nginx_edited_by_somebody_else_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "upstream.conf"
    path.write_text("theirs")
    with pytest.raises(TemporaryError, match="changed by somebody else"):
        Machine("lb", None).replace(str(path), "as it was read", "ours", 5)
    assert path.read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [path]


def test_router_out_of_reach_is_not_a_node_out_of_contact() -> None:
    """From the latter a run would conclude that what its steps did is unknown."""
    with pytest.raises(TemporaryError, match=r"router lb: .*No such file") as caught:
        Machine("lb", None).run(["/does/not/exist"], 5)
    assert caught.value.code not in WITHOUT_CONTACT
    nowhere = Ssh(address="127.0.0.1", port=free_ports(1)[0], known_hosts="/dev/null")
    with pytest.raises(TemporaryError, match="router lb") as caught:
        Machine("lb", nowhere).read("/etc/hostname", 5)
    assert caught.value.code not in WITHOUT_CONTACT


def test_nginx_is_settled_only_when_its_old_workers_have_gone(nginx: Scene) -> None:
    """A slow request to the other replica keeps an old worker, which may still take ours."""
    with nginx.hanging():
        nginx.router.close_admission(nginx.replica)
        found = nginx.router.look(nginx.replica)
        assert (found.open, found.settled) == (False, False)
        assert "still finish" in found.words
    until(lambda: nginx.router.look(nginx.replica).settled, "the old workers have gone")


def test_nginx_cannot_count_and_says_what_to_declare(nginx: Scene) -> None:
    with pytest.raises(CannotCount, match=r"drain\.in_flight"):
        nginx.router.in_flight(nginx.replica)


def test_nginx_that_is_not_there(nginx: Scene) -> None:
    nginx.real.process.terminate()
    nginx.real.process.wait(10)
    with pytest.raises(TemporaryError, match=r"nginx\.pid"):
        nginx.router.close_admission(nginx.replica)


# --- by SSH, with more in tests/contracts/test_routers.py


def test_program_for_other_machines_needs_nothing_of_pitstop(tmp_path: Path) -> None:
    source = Path(on_machine.__file__)
    (tmp_path / "file").write_bytes(b"\xff\n")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", source.read_text(), "read", str(tmp_path / "file")],
        input=b"",
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"\xff\n"), done.stderr


# --- the steps around it


def plan_behind(scene: Scene) -> Plan:
    spec = Workload(
        placement={"n1": 1},
        launch=Launch(command=("serve",)),
        ready=Ready(http=HttpProbe(url="http://127.0.0.1:1/")),
        drain=Drain(router=AtRouter(name="lb", replica=scene.replica), deadline=5, interval=0.02),
    )
    planned = WorkloadPlan(
        name="web",
        spec=spec,
        shape=Shape.SINGLE_GPU,
        strategy=Strategy.RESTORE,
        reason="as planned",
        running=True,
        fingerprint={},
        predicted={"valid": True, "differences": []},
    )
    return Plan(
        site="lab",
        policy=SitePolicy(),
        title="t",
        reason="",
        node="n1",
        node_spec=Node(),
        boot_id="b",
        runbook=RunbookRef(
            name="r",
            title="r",
            digest="",
            source="",
            risk="low",
            variables={},
            changes={},
            steps=(),
        ),
        workloads=(planned,),
        routers={"lb": Haproxy.model_validate(scene.real.spec)},
        go=True,
    )


@pytest.fixture
def opened(haproxy: Scene, tmp_path: Path) -> Iterator[Callable[[], RunContext]]:
    """Open the same run as often as there are controllers."""
    create_run(tmp_path / "home", plan_behind(haproxy), "run1", "test", "me@here")
    with ExitStack() as stack:

        def once_more() -> RunContext:
            ctx = RunContext(tmp_path / "home", "run1", "me@here")
            stack.callback(ctx.close)
            return ctx

        (tmp_path / "home").mkdir(exist_ok=True)
        yield once_more


def test_step_tried_again_knows_its_own_closing(
    haproxy: Scene, opened: Callable[[], RunContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller dies between closing and the step's end; another one goes on."""

    class Killed(BaseException):
        pass

    def die(*_: object) -> int:
        raise Killed

    with monkeypatch.context() as dying, pytest.raises(Killed):
        dying.setattr(HaproxyRouter, "in_flight", die)
        routing.close_at_router(opened(), "web", 1)
    assert not haproxy.router.look(haproxy.replica).open

    ctx = opened()
    found = routing.close_at_router(ctx, "web", 1)["router"]
    assert (found["before"]["open"], found["closed_by"]) == (True, "pitstop")
    assert (found["in_flight_at_start"], found["in_flight_at_end"]) == (0, 0)
    routing.still_closed(ctx, "web")
    # Executed again only to hear of the node's part: the router is not asked again.
    with monkeypatch.context() as dying:
        dying.setattr(HaproxyRouter, "look", die)
        assert routing.close_at_router(opened(), "web", 1)["router"] == found
        with pytest.raises(Killed):
            routing.close_at_router(opened(), "web", 2)
    assert routing.open_at_router(opened(), "web")["router"]["admission"] == "opened"
    assert haproxy.router.look(haproxy.replica).open


def test_run_that_never_closed_it_opens_nothing(
    haproxy: Scene, opened: Callable[[], RunContext]
) -> None:
    haproxy.real.close_by_hand(haproxy.replica)
    assert routing.open_at_router(opened(), "web") == {}
    assert not haproxy.router.look(haproxy.replica).open


def test_foreign_closing_is_said_in_the_result_and_kept(
    haproxy: Scene, opened: Callable[[], RunContext]
) -> None:
    haproxy.real.close_by_hand(haproxy.replica)
    ctx = opened()
    assert routing.close_at_router(ctx, "web", 1)["router"]["closed_by"] == "somebody else, before"
    assert "left closed" in routing.open_at_router(ctx, "web")["router"]["admission"]
    assert haproxy.router.look(haproxy.replica).words.startswith("DRAIN, forced")


def test_opened_by_hand_before_the_dump_touches_nothing(
    haproxy: Scene, opened: Callable[[], RunContext]
) -> None:
    assert isinstance(haproxy.real, RealHaproxy)
    ctx = opened()
    routing.close_at_router(ctx, "web", 1)
    haproxy.real.command(f"set server {haproxy.replica} state ready")
    with pytest.raises(Refused, match="no longer drained at router lb"):
        routing.still_closed(ctx, "web")


def test_router_that_cannot_be_asked_makes_the_plan_a_no_go(haproxy: Scene) -> None:
    plan = plan_behind(haproxy)
    assert routing.unreachable(plan) == []
    assert routing.look_at_routers(plan)["web"]["open"] is True
    haproxy.real.process.terminate()
    haproxy.real.process.wait(10)
    [reason] = routing.unreachable(plan)
    assert "router lb" in reason
    left = plan.workloads[0].model_copy(update={"strategy": Strategy.LEAVE})
    assert routing.unreachable(plan.model_copy(update={"workloads": (left,)})) == []


def test_plan_of_before_there_were_routers_still_loads(haproxy: Scene) -> None:
    data = plan_behind(haproxy).model_dump(mode="json", by_alias=True)
    assert Plan.model_validate(data) == plan_behind(haproxy)
    del data["routers"], data["workloads"][0]["spec"]["drain"]["router"]
    old = Plan.model_validate(data)
    assert (old.routers, old.workloads[0].spec.drain.router) == ({}, None)
    assert routing.look_at_routers(old) == {}
