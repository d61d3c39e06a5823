"""The one exception a user is meant to see: the command line prints it without a traceback and exits with 2."""

import difflib
from collections.abc import Sequence


class DaplError(Exception):
    """Something the user can put right. The message names the file or field, what was wrong and what to do."""


def original_message(text: str) -> str | None:
    """What a `DaplError` said in another process, from the traceback that came over; None where there is none."""
    _, found, message = text.rpartition("dapl.common.errors.DaplError: ")
    return message.strip() if found else None


def nearest(word: str, known: Sequence[str]) -> str:
    """'; did you mean …?' where a known word is near, else the list of known ones."""
    near = difflib.get_close_matches(word[:200], known, n=1, cutoff=0.5)  # longer ones take minutes
    return f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(known)}."
