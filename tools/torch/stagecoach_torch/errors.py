"""What a user can mend."""


class UserError(Exception):
    """Printed as one line; the exit status is 65."""
