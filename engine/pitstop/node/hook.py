"""CRIU's action script: asks the engine for its vote, and fails safe when the engine is gone.

CRIU calls it (through the small executable that `node/vote.py` writes) at each stage. At
`post-dump` the images are complete and the processes frozen: exit 0 lets CRIU end them,
anything else lets them run on. At `post-restore` the processes are rebuilt and not yet
running. The engine listens on a socket beside the images; if it has died, connecting or
reading fails at once, and the answer is no.

Standard library only, and little of it: this runs while the workload is frozen.
"""

import os
import socket
import sys

ASKED = ("post-dump", "post-restore")
COMMIT = b"commit\n"


def _ask(stage: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect("vote.sock")
            connection.sendall(stage.encode() + b"\n")
            answer = b""
            while not answer.endswith(b"\n"):
                part = connection.recv(64)
                if not part:
                    return False
                answer += part
        except OSError:
            return False
        return answer == COMMIT


def main() -> int:
    """Return 0 to go on, 1 to stop."""
    stage = os.environ.get("CRTOOLS_SCRIPT_ACTION", "")
    if stage not in ASKED:
        return 0
    # From here on only relative names: the directory is renamed while we wait.
    os.chdir(os.path.join(os.environ["CRTOOLS_IMAGE_DIR"], os.pardir))
    if _ask(stage):
        return 0
    if stage == "post-dump":
        # Whoever looks later must know that the original ran on past these images.
        mark = os.open("marks/aborted", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.fsync(mark)
        os.fsync(os.open("marks", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    return 1


if __name__ == "__main__":
    sys.exit(main())
