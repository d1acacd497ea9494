"""The program that stands in for a command that `forked_commands` has forked. It starts in some milliseconds."""

import json
import os
import signal
import socket
import sys

path, *words = sys.argv[1:]
server = socket.socket(socket.AF_UNIX)
server.connect(path)
given = json.dumps({"words": words, "environment": dict(os.environ), "folder": os.getcwd()}).encode()
socket.send_fds(server, [len(given).to_bytes(8, "big")], [0, 1, 2])
server.sendall(given)
said = server.makefile("rb")
pid = int(said.readline())
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, _: os.kill(pid, number))
code = int(said.readline())
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
