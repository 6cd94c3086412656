"""`quire serve` as a process."""

import subprocess
import tempfile
from contextlib import contextmanager


@contextmanager
def server(quire, *options):
    """A server on a free port; yields its address. It must end well when it is told to."""
    # Its log is in a file: nobody reads a pipe, and a full one would hold the server up.
    with tempfile.TemporaryFile("w+") as log:
        child = subprocess.Popen([quire, "serve", "--port", "0", *options], stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            address = child.stdout.readline().removeprefix("listening on ").strip()
            assert address, read(log)
            yield address
            child.terminate()
            child.communicate(timeout=30)
            assert child.returncode == 0, read(log)
        finally:
            child.kill()


def read(log):
    log.seek(0)
    return log.read()
