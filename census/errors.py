"""The one exception a user is meant to see."""


class CensusError(Exception):
    """A mistake the user can mend: what is wrong, the value, what is allowed, what to do, in one line.

    The command line prints it after `census: ` and exits with 2; it never shows a traceback.
    """
