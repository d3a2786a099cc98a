"""The other side of `GpuCalls`: one JSON line in, one out."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
from cuda.core import checkpoint
from cuda.core._utils.cuda_utils import CUDAError

VARIABLE = "PITSTOP_EMULATED_GPUS"


def cuda(pid: int, name: str, *arguments: Any) -> Any:
    """Use a member of a Process: a property, or a method."""
    member = getattr(checkpoint.Process(pid), name)
    return member(*arguments) if callable(member) else member


def nvml(name: str, *arguments: Any) -> Any:
    """Between init and shutdown."""
    pynvml.nvmlInit()
    try:
        answer = getattr(pynvml, name)(*map(_handle, arguments))
    finally:
        pynvml.nvmlShutdown()
    return _plain(answer)


def beside(pid: int, name: str, fault: str) -> int:
    """Leave one thread in the driver, and see that another one runs."""
    trace = Path(os.environ[VARIABLE]) / "trace"
    threading.Thread(target=cuda, args=(pid, name), daemon=True).start()
    while not (trace.exists() and f" {fault}\n" in trace.read_text()):
        time.sleep(0.01)  # the driver notes it when it begins to hang
    counted: list[int] = []
    other = threading.Thread(target=lambda: counted.extend(range(1000)))
    other.start()
    other.join()
    return len(counted)


def _handle(argument: Any) -> Any:
    if isinstance(argument, str) and argument.startswith("gpu:"):
        return pynvml.nvmlDeviceGetHandleByIndex(int(argument.removeprefix("gpu:")))
    return argument


def _plain(answer: Any) -> Any:
    """As JSON can hold it; a handle is only that."""
    if isinstance(answer, list | tuple):
        return [_plain(one) for one in answer]
    if isinstance(answer, str | int | float | None):
        return answer
    names = [name for name, *_ in getattr(answer, "_fields_", [])] or list(vars(answer))
    return {name: _plain(getattr(answer, name)) for name in names if name != "contents"}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cuda": cuda,
    "nvml": nvml,
    "beside": beside,
}


def main() -> None:
    """Answer until the input ends."""
    for line in sys.stdin:
        request = json.loads(line)
        words = request.pop("words")
        os.environ.update(request)
        try:
            answer = {"done": FUNCTIONS[words[0]](*words[1:])}
        except CUDAError as error:
            answer = {"failed": str(error).partition(":")[0]}
        except pynvml.NVMLError as error:
            answer = {"failed": type(error).__name__}
        except RuntimeError as error:
            answer = {"failed": str(error)}
        print(json.dumps(answer))


if __name__ == "__main__":
    main()
