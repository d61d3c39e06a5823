"""``dapl serve``: look at a run in the browser."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dapl.cli.options import command


def add(commands: Any) -> None:
    parser = command(commands, "serve", _serve, "Look at a run in the browser: drop a picture, see the reasons, switch "
                     "them off, mark bad ones.")  # fmt: skip
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (127.0.0.1: this machine only)")
    parser.add_argument("--port", type=int, default=8000, help="port (default: 8000; 0: any that is free)")
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME",
                        help="a further name under which browsers may call it, e.g. that of a proxy")  # fmt: skip


def _serve(arguments: argparse.Namespace, overrides: dict[str, Any]) -> int:
    from dapl.serve.server import serve

    serve(arguments.run, arguments.host, arguments.port, arguments.allow_host)
    return 0
