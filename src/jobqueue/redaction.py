"""Mask secrets in texts before they are shown or written.

``redact_value`` masks one setting or argument. ``redact`` masks prose that may contain such a
value. In a malformed URL, where the end of the password is not clear, more than the password is
masked.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

MASK = "***"
_MAX_PORT = 65535
_SECRET_WORDS = ("password", "passwd", "pwd", "secret", "token", "api_key", "apikey")
_WORDS = "|".join(_SECRET_WORDS)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_FILES = ("sqlite", "memory", "file")  # these URLs have no login
_WEB = ("http", "https")  # paths and options of such URLs may contain an @
# A host or [IPv6 address], and optionally a port.
_PLACE = re.compile(r"(?:\[[^\[\]]*\]|[^:\[\]]*)(?::([0-9]{1,5}))?")
_NAMED = re.compile(rf"(?i)(?:{_WORDS})\s*=")

# Patterns for prose: a URL up to the colon after its user or host, the text after that colon, and
# the next URL. Each pattern reads a text only once, because callers choose the texts that are
# logged and could make repeated reads slow.
_LOGIN = re.compile(r"://[^\s/:]*:")
_PORT = re.compile(r"""[0-9]{1,5}(?![^/?#\s"',;)\]}])""")
_WORD = re.compile(r"\S{0,1000}")
_NEXT_URL = re.compile(r"\s[A-Za-z][A-Za-z0-9+.-]*://")
_OPTION = re.compile(
    rf"""(?i)((?:{_WORDS})\s*=\s*)"""
    r"""('(?:[^'\\]|\\.){0,1000}'|"(?:[^"\\]|\\.){0,1000}"|(?!\.\.\.(?:\W|$))[^\s&]+)"""
)
_IN_HEADER = re.compile(r"(?i)\b(bearer|x-api-key:)(\s+)[\w.~+/=-]{8,}")


def redact_value(text: str) -> str:
    """Mask the secrets in one value: a URL, a connection string of libpq, or any other text."""
    scheme, mark, rest = text.partition("://")
    if mark and _SCHEME.fullmatch(scheme):
        rest = _without_options(rest)
        if scheme.lower() not in _FILES:
            rest = _without_login(rest, web=scheme.lower() in _WEB)
        return redact(f"{scheme}{mark}{rest}")
    if named := _NAMED.search(text):
        return f"{text[: named.end()]}{MASK}"  # masks all the rest: a closing quote may be missing
    login, at, place = text.rpartition("@")
    if at and ":" in login:
        return f"{login.partition(':')[0]}:{MASK}@{place}"
    return redact(text)


def _without_options(rest: str) -> str:
    """Mask the values of secret options, like ``password``, after the first '?'."""
    before, mark, options = rest.partition("?")
    shown = []
    for option in options.split("&"):
        name, sep, _ = option.partition("=")
        secret = sep and any(word in unquote(name).lower() for word in _SECRET_WORDS)
        shown.append(f"{name}={MASK}" if secret else option)
    return f"{before}{mark}{'&'.join(shown)}"


def _without_login(rest: str, *, web: bool) -> str:
    """Mask the password of a URL without its scheme.

    The password is masked up to the last @, because it may contain an @ that is not escaped.
    """
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    names_places = all(_is_place(one) for one in authority.split(","))
    login, at, place = rest.rpartition("@")
    if at and not (web and names_places and "@" not in authority):
        user, colon, _ = login.partition(":")
        return f"{user}:{MASK}@{place}" if colon else rest
    if names_places:
        return rest
    return f"{rest.partition(':')[0]}:{MASK}"  # a login without a host


def _is_place(text: str) -> bool:
    found = _PLACE.fullmatch(text)
    return found is not None and (found[1] is None or int(found[1]) <= _MAX_PORT)


def redact(text: str) -> str:
    """Mask passwords in URLs and connection strings, and keys in HTTP headers, inside a text."""
    if "://" in text and "@" in text:
        text = "\n".join(_without_logins(line) for line in text.split("\n"))
    if "=" in text:
        text = _OPTION.sub(rf"\1{MASK}", text)
    if " " in text:
        text = _IN_HEADER.sub(rf"\1\2{MASK}", text)
    return text


def _without_logins(line: str) -> str:
    """Mask the passwords of all URLs in a line.

    A password is masked up to the last @ before the next URL, or the last @ of the line.
    """
    shown, position = [], 0
    while found := _LOGIN.search(line, position):
        begin = found.end()
        shown.append(line[position:begin])
        position = begin
        if line.startswith(f"{MASK}@", begin) or _names_a_port(line, found.start(), begin):
            continue
        following = _NEXT_URL.search(line, begin)
        end = line.rfind("@", begin, following.start()) if following else -1
        if end < 0:
            end = line.rfind("@", begin)
        if end < 0:
            break
        shown.append(MASK)
        position = end
    return "".join([*shown, line[position:]])


def _names_a_port(line: str, mark: int, begin: int) -> bool:
    """Return True if a port begins at ``begin``, not a password.

    ``mark`` is the position at which the URL's scheme ends.
    """
    if _PORT.match(line, begin) is None:
        return False
    if line[max(0, mark - 5) : mark].lower().endswith(_WEB):
        return True
    word = _WORD.match(line, begin)
    return word is None or "@" not in word[0]


def holds_secret(value: str) -> bool:
    """Return True if ``redact_value`` would mask a part of the value."""
    return redact_value(value) != value
