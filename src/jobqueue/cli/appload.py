"""Import the user's application that ``--app module:attribute`` names."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

from jobqueue.core.errors import InvalidArgument

if TYPE_CHECKING:
    from jobqueue.client.app import JobQueue
    from jobqueue.worker.registry import Registry


def load_attribute(reference: str, field: str = "--app") -> Any:
    """Import ``module:attribute``, also from the current folder, and return the attribute.

    Raise InvalidArgument if the reference is wrong, or if the module raises an error. The text of
    the second error shows the traceback.
    """
    module_name, sep, attribute = reference.partition(":")
    if not sep or not module_name or not attribute:
        raise InvalidArgument(field, f"{reference!r} is not MODULE:ATTRIBUTE, like tasks:app")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(missing + "."):
            hint = ""
            if module_name.endswith(".py"):
                hint = f"; write {module_name.removesuffix('.py')}:{attribute}"
            raise InvalidArgument(
                field,
                f"there is no module {missing!r} (looked in {here} and the Python path){hint}",
            ) from None
        raise InvalidArgument(
            field,
            f"{module_name} needs the module {missing!r}, which is not installed{_lines(error)}",
        ) from error
    except (Exception, SystemExit) as error:
        raise InvalidArgument(field, f"importing {module_name} failed: {_told(error)}") from error
    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise InvalidArgument(field, f"{module_name} has no attribute {attribute!r}") from None
    return found


def _told(error: BaseException) -> str:
    """Return the text of an error in the user's module, with the file and line of the error."""
    if isinstance(error, SyntaxError):  # the error's own text has the file and line
        *place, named = traceback.format_exception_only(error)
        return named.rstrip() + "\n" + "".join(place).rstrip() + _lines(error)
    return f"{type(error).__name__}: {error}{_lines(error)}"


def _lines(error: BaseException) -> str:
    """Return the error's traceback, without the lines of Python's import system."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen importlib")
        and frame.filename not in (__file__, importlib.__file__)
    ]
    return "".join(["\n", *traceback.format_list(frames)]).rstrip()


def load_app(reference: str, field: str = "--app") -> JobQueue:
    """Import the user's application.

    Raise InvalidArgument if the reference does not name a JobQueue.
    """
    from jobqueue.client.app import JobQueue

    found = load_attribute(reference, field)
    if not isinstance(found, JobQueue):
        raise InvalidArgument(
            field, f"{reference} is a {type(found).__name__}; it must be a jobqueue.JobQueue"
        )
    return found


def load_registry(reference: str, field: str = "--app") -> Registry | None:
    """Return the tasks of the user's application, or None if ``reference`` is empty."""
    return load_app(reference, field).registry if reference else None
