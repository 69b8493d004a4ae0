"""Finds the user's application: ``--app module:attribute``."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from jobqueue.core.errors import InvalidArgument

if TYPE_CHECKING:
    from jobqueue.client.app import JobQueue
    from jobqueue.worker.registry import Registry


def load_attribute(reference: str, field: str = "--app") -> Any:
    """Import ``module:attribute``, with the current folder on the path.

    A mistake in the reference is the user's; an error inside the module is shown as it is.
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
            raise InvalidArgument(
                field, f"there is no module {missing!r} (looked in {here} and the Python path)"
            ) from None
        raise InvalidArgument(
            field, f"{module_name} needs the module {missing!r}, which is not installed"
        ) from error
    except (Exception, SystemExit) as error:
        raise InvalidArgument(
            field, f"importing {module_name} failed: {type(error).__name__}: {error}"
        ) from error
    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise InvalidArgument(field, f"{module_name} has no {attribute!r}") from None
    return found


def load_app(reference: str, field: str = "--app") -> JobQueue:
    """Import the user's ``JobQueue``."""
    from jobqueue.client.app import JobQueue

    found = load_attribute(reference, field)
    if not isinstance(found, JobQueue):
        raise InvalidArgument(
            field, f"{reference} is a {type(found).__name__}; a jobqueue.JobQueue is needed"
        )
    return found


def load_registry(reference: str, field: str = "--app") -> Registry | None:
    """The tasks of the user's application, if there is one."""
    return load_app(reference, field).registry if reference else None
