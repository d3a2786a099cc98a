"""A small HTTP inference server on llama.cpp: the workload that the demo takes out of service.

The demo deploys this one file as a *release* (``releases/1.0.0/server.py`` with a file ``RELEASE``
beside it), so it imports nothing but the standard library and ``xllamacpp``. Conversations live
in memory only: whoever loses the process loses them, which is what a checkpoint must prevent.

It is written to be easy to checkpoint: no inherited descriptors, no io_uring, one request per
connection, so that nothing but listening sockets is open while no request runs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, ClassVar

NAME = "pitstop-demo-server"
N_CTX = 1024
THREADS = 2
MAX_BODY = 1 << 20
MAX_DISCARD = 8 << 20
MAX_PROMPT_CHARS = 4096
MAX_TOKENS = 256
MAX_IN_FLIGHT = 32
MAX_SESSIONS = 256
HISTORY_TURNS = 8
RETRY_AFTER_S = 1
WARM_UP_PROMPT = "The capital of France is"
PREAMBLE = "A conversation between a curious user and a friendly, helpful assistant.\n\n"
SESSION_PATH = re.compile(r"/v1/sessions/([A-Za-z0-9._-]{1,64})(/turns)?")


def log(message: str) -> None:
    """Write one line about the server's own life; requests are counted, not logged."""
    sys.stderr.write(f"{NAME}[{os.getpid()}] {message}\n")
    sys.stderr.flush()


def read_release() -> str:
    """Return the release this file was deployed as; read once, since ``current`` may move on."""
    try:
        return Path(__file__).resolve().with_name("RELEASE").read_text("ascii").strip()
    except FileNotFoundError:
        return "unreleased"


class Refusal(Exception):
    """An answer other than 200, with a message for the client."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})


class PromptTooLong(Exception):
    """The prompt has more tokens than the model's context."""


def busy(message: str) -> Refusal:
    """Return the refusal that asks the client to come back."""
    return Refusal(503, message, {"Retry-After": str(RETRY_AFTER_S)})


class Llama:
    """The model, in this process.

    While it loads, xllamacpp holds the interpreter lock: nobody is answered until it is done.
    """

    def __init__(self, path: Path, threads: int, context: int) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = context
        params.n_batch = params.n_ubatch = 128
        params.n_parallel = 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.n_gpu_layers = 0
        params.fit_params = False  # otherwise the model is loaded twice to measure it
        params.warmup = False
        params.cache_ram_mib = params.n_ctx_checkpoints = 0
        params.ui = params.endpoint_slots = False
        params.verbosity = 0
        params.n_threads_http = 1
        # llama.cpp always opens a port of its own. It lies on loopback, is not used, and the key
        # that nobody knows keeps requests from passing by our admission.
        params.hostnames = ["127.0.0.1"]
        params.port = 0
        params.api_keys = [secrets.token_hex(16)]
        self._server = xllamacpp.Server(params)

    def complete(self, prompt: str, max_tokens: int, stop: Sequence[str] = ()) -> str:
        """Return the greedy continuation; the same prompt gives the same text, always.

        The prompt cache is off for that: what an earlier request left there changes how the
        prompt is cut into batches, and with it the rounding.
        """
        answer = self._server.handle_completions(
            {
                "prompt": prompt,
                "max_tokens": max_tokens,
                "temperature": 0,
                "seed": 1,
                "cache_prompt": False,
                "stop": list(stop),
            }
        )
        error = answer.get("error")
        if error and error.get("type") == "exceed_context_size_error":
            raise PromptTooLong(str(error["message"]))
        if error:
            raise RuntimeError(f"llama.cpp: {error.get('message', error)}")
        return str(answer["choices"][0]["text"])


class Admission:
    """The door: who is inside, and whether anybody else may come in."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.open = True
        self.in_flight = 0
        self.total = 0

    @contextmanager
    def request(self) -> Iterator[None]:
        """Hold one place for as long as a request runs, its answer included."""
        with self._changed:
            if not self.open:
                raise busy("admission is closed")
            if self.in_flight >= MAX_IN_FLIGHT:
                raise busy("too many requests in flight")
            self.in_flight += 1
            self.total += 1
        try:
            yield
        finally:
            with self._changed:
                self.in_flight -= 1
                self._changed.notify_all()

    def set_open(self, value: bool) -> None:
        """Open or close the door; requests already inside are not touched."""
        with self._changed:
            self.open = value

    def wait_empty(self, timeout: float) -> bool:
        """Wait until no request is in flight; False when the time is over first."""
        with self._changed:
            return self._changed.wait_for(lambda: self.in_flight == 0, timeout)

    def as_json(self) -> dict[str, object]:
        """Return both facts as one consistent pair."""
        with self._changed:
            return {"in_flight": self.in_flight, "admission": "open" if self.open else "closed"}


class Session:
    """One conversation. The lock is held through a turn, so turns of a session never overlap."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.turn = 0
        self.recent: deque[tuple[str, str]] = deque(maxlen=HISTORY_TURNS)


def transcript(history: Sequence[tuple[str, str]], text: str) -> str:
    """Return the conversation as the text that the (base, not instructed) model continues."""
    turns = "".join(f"User: {asked}\nAssistant: {replied}\n" for asked, replied in history)
    return f"{PREAMBLE}{turns}User: {text}\nAssistant:"


class App:
    """What the server knows and does, apart from HTTP."""

    def __init__(self, release: str) -> None:
        self.release = release
        self.admission = Admission()
        self._llama: Llama | None = None
        self._sessions: dict[str, Session] = {}
        self._sessions_lock = threading.Lock()

    def load(self, model: Path, threads: int = THREADS, context: int = N_CTX) -> None:
        """Load the model; ready only once it really answered."""
        llama = Llama(model, threads, context)
        if not llama.complete(WARM_UP_PROMPT, 4):
            raise RuntimeError("the warm-up generation gave no text")
        self._llama = llama

    def unload(self) -> None:
        """Stop llama.cpp's threads."""
        self._llama = None

    @property
    def llama(self) -> Llama:
        """The model, or a refusal while it is loading."""
        if self._llama is None:
            raise busy("the model is not ready")
        return self._llama

    def health(self) -> dict[str, object]:
        """Answer only when a completion would be answered too."""
        _ = self.llama
        return {"ok": True, "release": self.release, "pid": os.getpid()}

    def metrics(self) -> str:
        """Return the three values that a drain looks at, as Prometheus text."""
        door = self.admission
        rows = (
            ("requests_in_flight", "gauge", "Inference requests now running.", door.in_flight),
            ("requests_total", "counter", "Inference requests admitted.", door.total),
            ("admission", "gauge", "1 while new requests are admitted.", int(door.open)),
        )
        return "".join(
            f"# HELP pitstop_demo_{name} {text}\n# TYPE pitstop_demo_{name} {kind}\n"
            f"pitstop_demo_{name} {value}\n"
            for name, kind, text, value in rows
        )

    def completion(self, body: Mapping[str, object]) -> dict[str, object]:
        """Continue a prompt."""
        prompt, max_tokens = text_field(body, "prompt"), token_limit(body)
        try:
            text = self.llama.complete(prompt, max_tokens)
        except PromptTooLong as problem:
            raise Refusal(400, str(problem)) from problem
        return {"text": text, "release": self.release}

    def take_turn(self, name: str, body: Mapping[str, object]) -> dict[str, object]:
        """Add one turn to a conversation; the turn counts once its reply exists."""
        text, max_tokens = text_field(body, "text"), token_limit(body)
        llama = self.llama
        with self._sessions_lock:
            if name not in self._sessions and len(self._sessions) >= MAX_SESSIONS:
                raise Refusal(429, f"there are {MAX_SESSIONS} sessions already")
            session = self._sessions.setdefault(name, Session())
        with session.lock:
            reply = self._reply(llama, list(session.recent), text, max_tokens)
            session.recent.append((text, reply))
            session.turn += 1
            return {"session": name, "turn": session.turn, "reply": reply, "release": self.release}

    @staticmethod
    def _reply(llama: Llama, history: list[tuple[str, str]], text: str, max_tokens: int) -> str:
        while True:
            prompt = transcript(history, text)
            try:
                return llama.complete(prompt, max_tokens, ("\n", "User:")).strip()
            except PromptTooLong as problem:
                if not history:
                    raise Refusal(400, str(problem)) from problem
                history = history[len(history) // 2 + 1 :]  # forget the older half

    def session(self, name: str) -> dict[str, object]:
        """Return where a conversation stands, after the turn that is running, if one is."""
        with self._sessions_lock:
            session = self._sessions.get(name)
        if session is None:
            raise Refusal(404, f"no session {name}")
        with session.lock:
            if not session.turn:
                raise Refusal(404, f"no turn of session {name} was answered yet")
            text, reply = session.recent[-1]
            return {"session": name, "turn": session.turn, "text": text, "reply": reply}


def text_field(body: Mapping[str, object], key: str) -> str:
    """Return a text from a request, or say what is wrong with it."""
    value = body.get(key)
    if not isinstance(value, str) or not value.strip():
        raise Refusal(400, f"'{key}' must be a text that is not empty")
    if len(value) > MAX_PROMPT_CHARS:
        raise Refusal(400, f"'{key}' is longer than {MAX_PROMPT_CHARS} characters")
    try:
        value.encode()
    except UnicodeEncodeError as problem:  # JSON can spell half a surrogate pair
        raise Refusal(400, f"'{key}' is not valid Unicode") from problem
    return value


def token_limit(body: Mapping[str, object]) -> int:
    """Return ``max_tokens`` from a request, or say what is wrong with it."""
    value = body.get("max_tokens", 24)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_TOKENS:
        raise Refusal(400, f"'max_tokens' must be a whole number from 1 to {MAX_TOKENS}")
    return value


class Handler(BaseHTTPRequestHandler):
    """One request on one connection."""

    server: DemoServer
    protocol_version = "HTTP/1.1"
    timeout = 15  # a client that says nothing does not hold its thread for ever

    def do_GET(self) -> None:
        """Serve the questions."""
        app, path = self.server.app, self._path()
        session = SESSION_PATH.fullmatch(path)
        with self._refusals():
            if path == "/health":
                self._answer(200, app.health())
            elif path == "/metrics":
                self._send(200, app.metrics().encode(), "text/plain; version=0.0.4; charset=utf-8")
            elif path == "/inflight":
                self._answer(200, app.admission.as_json())
            elif session and not session[2]:
                self._answer(200, app.session(session[1]))
            else:
                raise Refusal(404, "no such resource")

    def do_POST(self) -> None:
        """Serve inference and administration."""
        app, path = self.server.app, self._path()
        session = SESSION_PATH.fullmatch(path)
        with self._refusals():
            body = self._body()
            if path == "/v1/completions":
                with app.admission.request():
                    self._answer(200, app.completion(parse(body)))
            elif path == "/admin/proof":
                # The maintenance's own question: asked while the door is closed to all others.
                self._answer(200, app.completion(parse(body)))
            elif session and session[2]:
                with app.admission.request():
                    self._answer(200, app.take_turn(session[1], parse(body)))
            elif path in ("/admin/drain", "/admin/undrain"):
                app.admission.set_open(path == "/admin/undrain")
                self._answer(200, app.admission.as_json())
            else:
                raise Refusal(404, "no such resource")

    def _path(self) -> str:
        return self.path.split("?", 1)[0]

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if "Transfer-Encoding" in self.headers:
            raise Refusal(411, "send the body with a Content-Length")
        if not re.fullmatch(r"[0-9]{1,18}", length or "0"):
            raise Refusal(400, "bad Content-Length")
        size = int(length or "0")
        if size > MAX_BODY:
            self._answer(413, {"error": f"the body is larger than {MAX_BODY} bytes"})
            self._discard(size)
            raise Answered
        body = self.rfile.read(size)
        if len(body) < size:
            raise ConnectionResetError("the client left in the middle of its request")
        return body

    def _discard(self, size: int) -> None:
        """Read away what is still coming: closing on unread data would destroy our answer."""
        left = min(size, MAX_DISCARD)
        while left > 0 and (block := self.rfile.read(min(left, 1 << 16))):
            left -= len(block)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except Answered:
            return
        except Refusal as refusal:
            self._answer(refusal.status, {"error": str(refusal)}, refusal.headers)
        except (ConnectionError, TimeoutError):
            raise
        except Exception:
            self._answer(500, {"error": "internal error"})
            raise

    def _answer(
        self, status: int, body: Mapping[str, object], headers: Mapping[str, str] | None = None
    ) -> None:
        self._send(status, json.dumps(body).encode() + b"\n", "application/json", headers)

    def _send(
        self, status: int, body: bytes, kind: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        # An idle connection kept alive would be an established socket inside the checkpoint.
        self.send_header("Connection", "close")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what http.server refuses by itself in JSON too."""
        self._answer(code, {"error": message or explain or "bad request"})

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Stay silent: requests are counted in the metrics."""

    def log_message(self, format: str, *args: object) -> None:
        """Write what http.server has to say."""
        log(f"{self.client_address[0]}: {(format % args)!r}")


class Answered(Exception):
    """The request was answered already; nothing is left to do."""


def parse(body: bytes) -> dict[str, object]:
    """Return the JSON object of a request, or say that it is none."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as problem:
        raise Refusal(400, "the body is not valid JSON") from problem
    if not isinstance(value, dict):
        raise Refusal(400, "the body must be a JSON object")
    return value


class DemoServer(ThreadingMixIn, TCPServer):
    """The listening socket, and a thread for each connection."""

    # Not http.server.HTTPServer: that asks the resolver for the host's name.
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64
    handler: ClassVar[type[Handler]] = Handler

    def __init__(self, host: str, port: int, app: App) -> None:
        self.app = app
        super().__init__((host, port), self.handler)

    @property
    def port(self) -> int:
        """The port, also when the kernel chose it."""
        return int(self.socket.getsockname()[1])

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Note a connection that ended badly; the server goes on."""
        log(f"{client_address[0]}: {sys.exc_info()[1]!r}")


def write_port_file(path: Path, port: int) -> None:
    """Publish the port in one step, so that a reader never sees half of it."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(f"{port}\n", "ascii")
    part.replace(path)


def serve(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; let running requests finish before leaving."""
    started = time.monotonic()
    # Blocked before any thread starts, llama.cpp's own included: one of those could take a
    # signal otherwise, and the main thread would sleep on.
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    app = App(read_release())
    with DemoServer(args.host, args.port, app) as server:
        listener = threading.Thread(target=server.serve_forever, name="listener", daemon=True)
        listener.start()
        if args.port_file:
            write_port_file(args.port_file, server.port)
        log(f"release {app.release} listening on {args.host}:{server.port}")
        try:
            app.load(args.model, args.threads, args.context)
        except RuntimeError as problem:
            log(f"cannot load {args.model}: {problem}")
            return 1
        log(f"ready after {time.monotonic() - started:.2f} s")
        signal.sigwait(ends)
        app.admission.set_open(False)
        finished = app.admission.wait_empty(args.grace)
        server.shutdown()
    if not finished:
        log(f"left {app.admission.in_flight} requests behind after {args.grace:g} s")
        os._exit(0)  # llama.cpp is still busy with them and would be waited for
    app.unload()
    log("stopped")
    return 0


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog=NAME)
    parser.add_argument("--version", action="version", version=f"{NAME} {read_release()}")
    parser.add_argument("--model", type=Path, required=True, help="the GGUF file")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080, help="0: the kernel chooses")
    parser.add_argument(
        "--threads", type=int, default=THREADS, help="they spin: not more than there are free cores"
    )
    parser.add_argument("--context", type=int, default=N_CTX, help="tokens it looks back on")
    parser.add_argument("--port-file", type=Path, help="write the port here once listening")
    parser.add_argument("--grace", type=float, default=30.0, help="seconds to finish on SIGTERM")
    return parser.parse_args(argv)


if __name__ == "__main__":
    os.closerange(3, 1 << 16)  # whatever the caller leaked would stop a checkpoint
    sys.exit(serve(arguments()))
