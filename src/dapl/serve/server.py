"""``dapl serve``: open a run and answer until told to stop."""

from __future__ import annotations

import logging
import socket
from collections.abc import Collection
from pathlib import Path

from dapl.errors import DaplError

_IDLE_SECONDS = 75
"""Before an idle connection is closed: longer than clients keep theirs, or one may send into a closing one."""


def serve(folder: Path, host: str = "127.0.0.1", port: int = 8000, names: Collection[str] = ()) -> None:
    """Blocks. Port 0 takes a free one; the address is printed before the first request can come."""
    try:
        import fastapi  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise DaplError(
            f"dapl serve needs the package {error.name}; install what it takes with `pip install 'dapl[serve]'`."
        ) from error
    from dapl.loading import load_run
    from dapl.serve.app import build_app

    loaded = load_run(folder)
    if len(loaded.model.prototypes) == 0:
        raise DaplError(
            f"{folder}: the model has no prototypes, so there is nothing that the page could show; serve a run of "
            "another system."
        )
    logging.basicConfig(level=logging.WARNING, format="dapl serve: %(message)s")
    listening = _listen(host, port)
    app = build_app(loaded, (host, socket.gethostname(), *names))
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, lifespan="on", timeout_keep_alive=_IDLE_SECONDS
    )
    try:
        print(f"{folder} is at {_address(listening, host)} (Ctrl-C ends it)", flush=True)
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:  # also uvicorn hands on the signal, after it has closed everything
        return
    finally:
        listening.close()


def _listen(host: str, port: int) -> socket.socket:
    try:
        if not 0 <= port < 2**16:  # or the system would take what is left of it
            raise OverflowError("ports go from 0 to 65535")
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        raise DaplError(
            f"cannot listen at {host}, port {port} ({error}); --port names another one (0: any that is free), "
            "--host another address of this machine."
        ) from error


def _address(listening: socket.socket, host: str) -> str:
    port = listening.getsockname()[1]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"
