"""The one exception a user is meant to see."""


class UserError(Exception):
    """A mistake the user can mend. The message is one line: what is wrong, the value, what is allowed, what to do.

    The command line prints it after `minfer: ` and exits with 2; it never shows a traceback.
    """
