"""``python -m tests.warm_again [MODULE ...]``, its standard input a socket: a fork that imports more, then forks."""

import sys

from tests.warm import serve

if __name__ == "__main__":
    serve(0, sys.argv[1:], simulated=False)  # it has what the process has that it is a fork of
