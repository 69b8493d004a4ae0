"""Encode and decode payloads and results as JSON, by the types in a handler's signature.

A payload is a JSON object with the handler's parameter names and their values. ``encode`` checks
each payload with the decoder of ``decode``, so ``decode`` can read every encoded payload.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from jobqueue.core.errors import InvalidArgument
from jobqueue.tasks.context import Context

TASK_KEY = "task"  # a body like {"task": "resize", …} names its task beside the arguments
_RAW_PARAMETER = "payload"
_PATH = re.compile(r"^(?P<text>.*?)(?: - at `\$(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")
_UNKNOWN = re.compile(r"contains unknown field `(?P<name>[^`]*)`")
_EMPTY = inspect.Parameter.empty
_KINDS_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _from_json(kind: type, value: Any) -> Any:
    """Decode a value of a type that msgspec does not support.

    Supported are pydantic models, and ``object``, which accepts every value.
    """
    if kind is object:
        return value
    validate = getattr(kind, "model_validate", None)
    if validate is None:
        raise TypeError(f"`{kind.__qualname__}` cannot be read from JSON")
    try:
        return validate(value)
    except (TypeError, ValueError):
        raise
    except Exception as error:  # a defect in the user's validator
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _to_json(value: Any) -> Any:
    """Encode a value of a type that msgspec does not support: a pydantic model."""
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"a value of type `{type(value).__qualname__}` cannot be written as JSON")
    return dump(mode="json")


def _to_builtin(value: Any) -> Any:
    # ``Raw`` is JSON already, so all its numbers are finite.
    return None if isinstance(value, msgspec.Raw) else _to_json(value)


_encoder = msgspec.json.Encoder(enc_hook=_to_json)
_UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError)


def write_json(value: Any, where: str) -> bytes:
    """Encode a value as JSON. ``where`` is the field's name in errors.

    Raises InvalidArgument with the name of the part that cannot be encoded. NaN and infinity are
    refused, because the encoder would write null, which means None.
    """
    try:
        raw = _encoder.encode(value)
    except _UNWRITABLE as error:
        raise InvalidArgument(where, str(error)) from error
    if raw.find(b"null") >= 0:  # three times as fast as "in"
        _refuse_not_finite(value, where)
    return raw


def _refuse_not_finite(value: Any, where: str) -> None:
    found = _not_finite(msgspec.to_builtins(value, enc_hook=_to_builtin), where)
    if found is not None:
        place, number = found
        text = f"{number} cannot be written as JSON; use None or a text in its place"
        raise InvalidArgument(place.lstrip("."), text)


def _not_finite(value: Any, path: str) -> tuple[str, float] | None:
    if isinstance(value, float):
        return None if math.isfinite(value) else (path, value)
    parts: Any = ()
    if isinstance(value, dict):
        parts = ((f"{path}.{name}", part) for name, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        parts = ((f"{path}[{index}]", part) for index, part in enumerate(value))
    return next((found for at, part in parts if (found := _not_finite(part, at))), None)


def canonical(payload: bytes, defaults: Mapping[str, Any] = MappingProxyType({})) -> bytes:
    """Return JSON in a form that does not depend on the order of names. Keep other bytes.

    ``defaults`` are the values of names that an object lacks.
    """
    try:
        found = msgspec.json.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return payload
    if isinstance(found, dict):
        for name in defaults.keys() - found.keys():
            with contextlib.suppress(*_UNWRITABLE):  # such a default cannot be given either
                found[name] = msgspec.json.decode(_encoder.encode(defaults[name]))
    return msgspec.json.encode(found, order="deterministic")


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, dec_hook=_from_json)


def resolve_hints(fn: Callable[..., Any]) -> dict[str, Any]:
    """Return a function's annotations, resolved to types.

    ``Context`` is resolved even if the module imports it under ``TYPE_CHECKING`` only.
    """
    target = fn if inspect.isroutine(fn) else type(fn).__call__
    names = {"Context": Context, **getattr(inspect.unwrap(target), "__globals__", {})}
    try:
        return get_type_hints(target, globalns=names, include_extras=True)
    except NameError as error:
        raise InvalidArgument(
            f"task {getattr(fn, '__name__', fn)!r}",
            f"cannot resolve an annotation: {error}; define or import it in the task's module",
        ) from error


def _open(hint: Any) -> Any:
    """Return ``Any`` in place of ``object``: msgspec accepts every value only for ``Any``."""
    return Any if hint is object else hint


def _is_context(hint: Any) -> bool:
    if get_origin(hint) is not None:
        return Context in get_args(hint)
    return hint is Context


class Codec:
    """Encodes and decodes the arguments and the result of one handler."""

    def __init__(
        self, name: str, fn: Callable[..., Any], hints: Mapping[str, Any] | None = None
    ) -> None:
        """Create the codec of a handler; ``hints`` replaces the handler's own annotations."""
        if hints is None:
            hints = resolve_hints(fn)
        parameters = inspect.signature(fn).parameters.values()
        contexts = [p.name for p in parameters if _is_context(hints.get(p.name))]
        if len(contexts) > 1:
            raise InvalidArgument(
                f"task {name!r}", f"has several Context parameters, {contexts}; one is allowed"
            )
        self._where = f"task {name!r}: result"
        self.context_parameter = contexts[0] if contexts else None
        self.returns: Any = _open(hints.get("return", Any))
        self._kinds: dict[str, Any] = {}
        self._optional: set[str] = set()
        self._defaults = {one.name: one.default for one in parameters if one.default is not _EMPTY}
        self._positional: list[str] = []
        self._extra: Any = _EMPTY  # the annotation of **kwargs
        for parameter in parameters:
            if parameter.name != self.context_parameter:
                self._add(name, parameter, _open(hints.get(parameter.name, Any)))
        names = list(self._kinds)
        self._sole = names[0] if len(names) == 1 and self._extra is _EMPTY else None
        self.raw = self._sole == _RAW_PARAMETER and self._kinds[_RAW_PARAMETER] is bytes
        self._required = frozenset(self._kinds) - self._optional
        self._drops_task = TASK_KEY not in self._kinds and self._extra is _EMPTY
        self._filters = self._drops_task or bool(self._optional)
        try:
            self._arguments = _decoder(self._struct(name))
            self._whole = _decoder(self._kinds[self._sole]) if self._sole else None
            self._result = _decoder(None if self.returns is None else self.returns)
        except TypeError as error:
            raise InvalidArgument(f"task {name!r}", f"unsupported annotation: {error}") from error
        # A result is not checked against a type that cannot be read from JSON.
        self._checked = self.returns is not Any and _readable(self.returns)
        # A value of exactly this type needs no check.
        self._plain = self.returns if self.returns in (int, bool) else None
        self._may_be_none = not self._checked or self._reads(b"null")

    def _reads(self, raw: bytes) -> bool:
        try:
            self._result.decode(raw)
        except msgspec.MsgspecError:
            return False
        return self.returns is not bytes

    def _add(self, name: str, parameter: inspect.Parameter, kind: Any) -> None:
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            self._extra = kind
            return
        if parameter.kind not in _KINDS_BY_NAME:
            raise InvalidArgument(
                f"task {name!r}",
                f"parameter {parameter.name!r} cannot be passed by name; *args and"
                " parameters before / are not allowed",
            )
        self._kinds[parameter.name] = kind
        if parameter.default is not _EMPTY:
            self._optional.add(parameter.name)
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            self._positional.append(parameter.name)

    def _struct(self, name: str) -> type[msgspec.Struct]:
        # An optional argument that is absent stays UNSET and is not passed, so that the handler's
        # own default applies.
        fields: list[Any] = [
            (field, kind, msgspec.UNSET) if field in self._optional else (field, kind)
            for field, kind in self._kinds.items()
        ]
        if self._drops_task:
            fields.append((TASK_KEY, Any, msgspec.UNSET))
        return msgspec.defstruct(
            re.sub(r"\W", "_", f"Arguments_{name}"),
            fields,
            kw_only=True,
            forbid_unknown_fields=self._extra is _EMPTY,
            gc=False,
        )

    def takes(self, name: str) -> bool:
        """Return True if a payload may have an argument of this name."""
        return name in self._kinds or self._extra is not _EMPTY

    # -- arguments ---------------------------------------------------------------------------

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """Encode arguments as a payload.

        Raises InvalidArgument with the name of the argument that is not valid.
        """
        values = self._bind(args, kwargs)
        if self.raw:
            return self._raw(values[_RAW_PARAMETER])
        try:
            payload = _encoder.encode(values)
        except _UNWRITABLE as error:
            raise InvalidArgument(self._culprit(values), str(error)) from error
        if payload.find(b"null") >= 0:
            _refuse_not_finite(values, "")
        if values:
            self._read(payload)
        return payload

    def decode(self, payload: bytes) -> dict[str, Any]:
        """Decode a payload to keyword arguments.

        Raises InvalidArgument with the name of the argument that is not valid.
        """
        if self.raw:
            return {_RAW_PARAMETER: payload}
        if payload[:1] == b"{":
            if payload == b"{}" and not self._required:
                return {}
            return self._read_object(payload)
        stripped = payload.lstrip()
        if not stripped or (stripped == b"null" and self._sole is None):
            stripped = b"{}"
        if stripped[:1] == b"{":
            return self._read_object(stripped)
        if self._sole is None or self._whole is None:
            raise InvalidArgument(
                "payload", f"expected an object of the arguments {self._listed()}"
            )
        try:
            return {self._sole: self._whole.decode(stripped)}
        except msgspec.MsgspecError as error:
            raise _explain(error, self._sole, self._kinds) from error

    def _read_object(self, payload: bytes) -> dict[str, Any]:
        try:
            return self._read(payload)
        except InvalidArgument:
            # A payload {"id": 1, …} for handle(order) may be the argument itself.
            if self._sole is None or self._whole is None or self._sole in self._optional:
                raise
            try:
                if self._sole in msgspec.json.decode(payload, type=dict[str, msgspec.Raw]):
                    raise
                return {self._sole: self._whole.decode(payload)}
            except msgspec.MsgspecError:
                pass
            raise

    def _read(self, payload: bytes) -> dict[str, Any]:
        try:
            values = msgspec.structs.asdict(self._arguments.decode(payload))
            if self._extra is not _EMPTY:
                values |= self._read_extra(payload)
        except msgspec.MsgspecError as error:
            raise _explain(error, "", self._kinds) from error
        if not self._filters:
            return values
        if self._drops_task:
            del values[TASK_KEY]
        if self._optional:
            return {name: value for name, value in values.items() if value is not msgspec.UNSET}
        return values

    def _read_extra(self, payload: bytes) -> dict[str, Any]:
        extra = {}
        for name, value in msgspec.json.decode(payload, type=dict[str, Any]).items():
            if name not in self._kinds:
                try:
                    extra[name] = msgspec.convert(value, self._extra, dec_hook=_from_json)
                except msgspec.ValidationError as error:
                    raise _explain(error, name, {}) from error
        return extra

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return all arguments by name, with the handler's defaults for those not given."""
        return self._defaults | self._bind(args, kwargs)

    def canonical(self, payload: bytes) -> bytes:
        """Return a payload in a form that equal arguments have in common.

        Arguments that have their default may be given or left out.
        """
        if self.raw:
            return payload
        defaults = {name: value for name, value in self._defaults.items() if name in self._kinds}
        return canonical(payload, defaults)

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if len(args) > len(self._positional):
            raise InvalidArgument(
                "arguments",
                f"expected at most {len(self._positional)} by position, got {len(args)}"
                f"; the arguments are {self._listed()}",
            )
        values = dict(zip(self._positional, args, strict=False))
        for name, value in kwargs.items():
            if name in values:
                raise InvalidArgument(name, "given twice, by position and by name")
            if name not in self._kinds and self._extra is _EMPTY:
                raise InvalidArgument(name, f"unexpected; the arguments are {self._listed()}")
            values[name] = value
        if not values.keys() >= self._required:
            missing = next(name for name in self._kinds if name in self._required - values.keys())
            raise InvalidArgument(missing, f"missing; expected {spell(self._kinds[missing])}")
        return values

    def _raw(self, value: Any) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise InvalidArgument(
                _RAW_PARAMETER, f"expected `bytes`, got `{type(value).__qualname__}`"
            )
        return bytes(value)

    def _culprit(self, values: Mapping[str, Any]) -> str:
        for name, value in values.items():
            try:
                _encoder.encode(value)
            except _UNWRITABLE:
                return name
        return "arguments"

    def _listed(self) -> str:
        return (
            ", ".join(
                f"{name}: {spell(kind)}{' = …' if name in self._optional else ''}"
                for name, kind in self._kinds.items()
            )
            or "none"
        )

    # -- results -----------------------------------------------------------------------------

    def encode_result(self, value: Any) -> bytes | None:
        """Encode a handler's result as JSON; a result annotated ``bytes`` is not changed.

        Raises InvalidArgument if the result does not match the return annotation, because
        ``decode_result`` could not read such a result.
        """
        if value is None and self._may_be_none:
            return None
        if self.returns is bytes:
            if isinstance(value, bytes | bytearray | memoryview):
                return bytes(value)
            text = f"expected `bytes`, got `{type(value).__qualname__}`"
            raise InvalidArgument(self._where, text)
        if type(value) is self._plain:
            return _encoder.encode(value)
        raw = write_json(value, self._where)
        if self._checked:
            self._check(raw)
        return raw

    def _check(self, raw: bytes) -> None:
        try:
            self._result.decode(raw)
        except msgspec.MsgspecError as error:
            told = _explain(error, self._where, {})
            text = told.message.removeprefix(f"{told.field}: ").replace("`null`", "`None`")
            raise InvalidArgument(
                told.field, f"{text}; the annotation says {spell(self.returns)}"
            ) from error

    def decode_result(self, raw: bytes | None) -> Any:
        """Decode a result to the type of the handler's return annotation."""
        if raw is None or self.returns is bytes:
            return raw
        try:
            return self._result.decode(raw)
        except msgspec.MsgspecError as error:
            raise _explain(error, "result", {}) from error


def _readable(kind: Any) -> bool:
    """Return True if the type, and every type inside it, can be decoded from JSON."""
    seen: list[Any] = []
    rest: list[Any] = [msgspec.inspect.type_info(type(None) if kind is None else kind)]
    while rest:
        found = rest.pop()
        if isinstance(found, tuple):
            rest.extend(found)
        elif isinstance(found, msgspec.inspect.CustomType):
            if found.cls is not object and not hasattr(found.cls, "model_validate"):
                return False
        elif isinstance(found, msgspec.inspect.Type | msgspec.inspect.Field) and not any(
            found is known for known in seen
        ):
            seen.append(found)
            rest.extend(getattr(found, name) for name in found.__struct_fields__)
    return True


def spell(kind: Any) -> str:
    """Return an annotation as text, for errors."""
    if kind in (None, type(None)):
        return "`None`"
    if kind is Any:
        return "any value"
    if get_origin(kind) is Union or not isinstance(kind, type) or get_args(kind):
        return f"`{kind}`".replace("typing.", "")
    return f"`{kind.__name__}`"


def _explain(error: Exception, root: str, kinds: Mapping[str, Any]) -> InvalidArgument:
    """Convert msgspec's error to an InvalidArgument that names the argument."""
    if not isinstance(error, msgspec.ValidationError):
        return InvalidArgument(root or "payload", f"not valid JSON: {error}")
    found = _PATH.match(str(error))
    text, path = (found["text"], found["path"] or "") if found else (str(error), "")
    path = (root + path).lstrip(".")
    if missing := _MISSING.search(text):
        name = missing["name"]
        expected = f"; expected {spell(kinds[name])}" if not path and name in kinds else ""
        return InvalidArgument(f"{path}.{name}".lstrip("."), f"missing{expected}")
    if unknown := _UNKNOWN.search(text):
        listed = ", ".join(kinds) or "none"
        allowed = f"; the arguments are {listed}" if not path else ""
        return InvalidArgument(f"{path}.{unknown['name']}".lstrip("."), f"unexpected{allowed}")
    return InvalidArgument(path or root or "payload", text[:1].lower() + text[1:])
