"""A process that has torch and the simulated GPU, and forks for each ``repro check`` it is asked for (conftest.py).

What a command does is what it does when it is typed, but for the seconds that torch takes to be imported. Ranks that
are asked for together have this process for their launcher.
"""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Client
from typing import NoReturn

from simgpu.launch import start

start()

import torch  # noqa: E402, F401 - the forks have it

from repro.__main__ import main  # noqa: E402
from simgpu import cuda  # noqa: E402


def run(
    arguments: list[str], environment: dict[str, str], folder: str, given: int, outputs: tuple[int, int]
) -> NoReturn:
    """In a fork: the command, and nothing that comes after it."""
    status = 1
    try:
        os.chdir(folder)
        os.environ.update(environment)
        for target, source in enumerate((given, *outputs)):
            os.dup2(source, target)
        sys.path.insert(0, folder)  # as `python -m` does
        cuda.see(int(environment.get("WORLD_SIZE", "1")))
        main(["check", *arguments])
        status = 0
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def together(commands: list[tuple[list[str], dict[str, str]]], folder: str, said: str) -> list[tuple[int, str, str]]:
    """Run the commands at the same time; gives status, output and errors of each."""
    started = []
    for arguments, environment in commands:
        files = [os.memfd_create(name) for name in ("in", "out", "err")]
        os.write(files[0], said.encode())
        os.lseek(files[0], 0, os.SEEK_SET)
        child = os.fork()
        if child == 0:
            run(arguments, environment, folder, files[0], (files[1], files[2]))
        started.append((child, files))
    done = []
    for child, files in started:
        _, status = os.waitpid(child, 0)
        texts = []
        for file in files:
            os.lseek(file, 0, os.SEEK_SET)
            with os.fdopen(file, "rb") as whole:
                texts.append(whole.read().decode())
        done.append((os.waitstatus_to_exitcode(status), texts[1], texts[2]))
    return done


if __name__ == "__main__":
    with Client(sys.argv[1], "AF_UNIX") as connection:
        while True:
            try:
                asked = connection.recv()
            except EOFError:
                break
            connection.send(together(*asked))
