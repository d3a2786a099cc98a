"""The throw-away process of the doctor's trial: a TCP server whose answer lives in memory only.

It answers every line with a random word that it made when it started, and a count. Who gets
the same word and the next count after a restore talks to the same process, brought back.
Standard library only; run as a file, with -I -S.
"""

import os
import secrets
import socketserver
import sys
import threading

WORD = secrets.token_hex(16)
_lock = threading.Lock()
_asked = 0


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        global _asked
        for _line in self.rfile:
            with _lock:
                _asked += 1
                answer = f"{WORD} {_asked}\n"
            self.wfile.write(answer.encode())


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    # As servers do: what is left of closed connections else keeps the port for a minute, and
    # a restore within it fails.
    allow_reuse_address = True


def main(port_file: str) -> None:
    """Listen on a free port of loopback, and name it in a file once it listens."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        temporary = f"{port_file}.new"
        with open(temporary, "w", encoding="ascii") as file:
            file.write(str(server.server_address[1]))
        os.replace(temporary, port_file)
        server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
