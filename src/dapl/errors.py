"""The one exception a user is meant to see: the command line prints it without a traceback and exits with 2."""


class DaplError(Exception):
    """Something the user can put right. The message names the file or field, what was wrong and what to do."""


def original_message(text: str) -> str | None:
    """What a `DaplError` said in another process, from the traceback that came over; None where there is none."""
    _, found, message = text.rpartition("dapl.errors.DaplError: ")
    return message.strip() if found else None
