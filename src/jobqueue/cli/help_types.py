"""What help says of the type of each option: INT, TEXT, its choices; nothing for a flag."""

from __future__ import annotations

from typing import Any

_NAMES = {"int": "INT", "float": "FLOAT", "str": "TEXT"}


def name_types(command: Any) -> Any:
    """Give a command, and those below it, the names of types that people expect in help.

    typer shows Python's names, and calls a flag a <bool>, as if it took a value.
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
    if not hasattr(param, "display_type_rich"):  # a typer that does not show Python's names
        return
    if getattr(param, "is_flag", False):
        name = None
    elif param.param_type_name == "option" and param.metavar is not None:
        name = param.metavar
    else:
        shown = param.display_type(context).strip("<>").removesuffix(" range")
        name = _NAMES.get(shown, shown)
    param.display_type_rich = lambda ctx: name
