"""The one exception a user is meant to see: the command line prints it without a traceback and exits with 2."""


class DaplError(Exception):
    """Something the user can put right. The message names the file or field, what was wrong and what to do."""
