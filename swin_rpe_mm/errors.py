"""The one exception for input that a user can mend."""


class InputError(ValueError):
    """An argument, file or setting is wrong; the message is one sentence for people.

    The sentence says which argument or file it is, what was found, and what is allowed. The tools print it
    without a traceback and exit with status 2.
    """
