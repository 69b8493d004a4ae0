"""Set the type names of options in help texts: INT, TEXT, the choices, or nothing for a flag."""

from __future__ import annotations

from typing import Any

_NAMES = {"int": "INT", "float": "FLOAT", "str": "TEXT"}


def name_types(command: Any) -> Any:
    """Change the type names in the help of a command and of its subcommands; return the command.

    Without the change, typer shows Python's type names, and shows a flag as <bool>, as if the flag
    had a value.
    """
    find = command.get_params

    def get_params(context: Any) -> Any:
        found = find(context)
        for param in found:
            _name_type(param, context)
        return found

    command.get_params = get_params
    for below in getattr(command, "commands", {}).values():
        name_types(below)
    return command


def _name_type(param: Any, context: Any) -> None:
    if not hasattr(param, "display_type_rich"):  # this version of typer does not show Python names
        return
    if getattr(param, "is_flag", False):
        name = None
    elif param.param_type_name == "option" and param.metavar is not None:
        name = param.metavar
    else:
        shown = param.display_type(context).strip("<>").removesuffix(" range")
        name = _NAMES.get(shown, shown)
    param.display_type_rich = lambda ctx: name
