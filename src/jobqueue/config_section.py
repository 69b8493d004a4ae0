"""What the sections of the settings are made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from jobqueue.redaction import redact_value


def setting(default: Any, about: str, unit: str = "", **bounds: Any) -> Any:
    """A setting with its default, what it is for, its unit and its bounds."""
    return Field(default, description=about, json_schema_extra={"unit": unit}, **bounds)


def secret_file(of: str) -> Any:
    """A setting that names the file of another one, which is secret."""
    return setting("", f"File that holds `{of}` instead; others may neither read nor change it.")


def _split(value: object) -> object:
    """Environment and flags give lists as comma-separated text."""
    if isinstance(value, str):
        return [item.strip() for item in value.split(",") if item.strip()]
    return value


def _no_bool(value: object) -> object:
    """YAML's ``yes`` is not the number one."""
    if isinstance(value, bool):
        raise ValueError("not a number")
    return value


Names = Annotated[list[str], BeforeValidator(_split), Field(min_length=1)]
SomeNames = Annotated[list[str], BeforeValidator(_split)]
Host = Annotated[
    str,
    # "*", a name, or an address of version 4 or 6; none with a port.
    StringConstraints(
        pattern=r"^(\*|[A-Za-z0-9_.-]+|\[?[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*\]?)$"
    ),
]
Hosts = Annotated[list[Host], BeforeValidator(_split)]
Int = Annotated[int, BeforeValidator(_no_bool)]
Seconds = Annotated[float, BeforeValidator(_no_bool), Field(allow_inf_nan=False)]


class Section(BaseModel):
    """A level of the tree. Shows no secrets when printed."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, redact_value(value) if isinstance(value, str) else value
