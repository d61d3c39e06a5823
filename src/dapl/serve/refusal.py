"""What a client is told when a request cannot be met: one sentence and a status, never a path or a traceback."""

from __future__ import annotations

from collections.abc import Mapping


class Refusal(Exception):  # noqa: N818  (as often an answer as an error)
    """An answer with a status of 400 or more. The sentence is for the person at the other end."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.headers = status, sentence, dict(headers or {})


def too_busy() -> Refusal:
    return Refusal(503, "The server has as many pictures waiting as it can hold; try again in a second.",
                   {"Retry-After": "1"})  # fmt: skip
