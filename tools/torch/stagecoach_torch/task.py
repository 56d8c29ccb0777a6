"""What a user's module says of the model to profile or run."""

import importlib
import inspect
import os
import sys

from stagecoach_torch.errors import UserError


class Task:
    """The model, batches and loss of MODULE[:FUNCTION]; FUNCTION makes the model, and is make_model by default."""

    def __init__(self, spec):
        name, _, function = spec.partition(":")
        sys.path.insert(0, os.getcwd())
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name.partition(".")[0] and error.name != name:
                raise  # one that the user's own module imports
            raise UserError(f"there is no module {name} here or among those installed") from None
        self.name = name
        self.make_model = self._function(module, function or "make_model", "model", 0)
        self.make_batch = self._function(module, "make_batch", "input and target, from a number of rows,", 1)
        self.loss = self._function(module, "loss", "mean loss, from output and target,", 2)

    @staticmethod
    def _function(module, name, result, arguments):
        function = getattr(module, name, None)
        if not callable(function):
            raise UserError(f"module {module.__name__} has no function {name}, which returns the {result} to plan for")
        try:
            inspect.signature(function).bind(*[None] * arguments)
        except TypeError as error:
            raise UserError(f"{module.__name__}.{name} must take {arguments or 'no'} argument{'s' * (arguments != 1)}: {error}") from None
        except ValueError:  # a built-in one without a signature
            pass
        return function
