"""What a user can mend."""


class UserError(Exception):
    """Printed as one line; the exit status is 65."""


def sentence(error):
    """What went wrong first, on one line: PyTorch's errors have traces, and other errors, in them."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
