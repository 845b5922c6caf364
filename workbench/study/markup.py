"""HTML and SVG put together so that no text can become an element."""

from __future__ import annotations

import re
from html import escape

# Characters that HTML does not allow, not even escaped.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_VOID = frozenset({"br", "meta", "line", "rect", "circle", "path"})


class Markup(str):
    """Text that is HTML already. Only `element`, `text` and `join` make it."""

    __slots__ = ()


def text(value: str) -> Markup:
    """Plain text as HTML: whatever it holds is shown, never run."""
    return Markup(escape(_FORBIDDEN.sub("\ufffd", value)))


def join(*parts: Markup | str | None, by: str = "") -> Markup:
    """Parts one after the other; plain strings are escaped, None is left out."""
    return Markup(by.join(p if isinstance(p, Markup) else text(p) for p in parts if p is not None))


def element(name: str, /, *children: Markup | str | None, **attributes: object) -> Markup:
    """One element. Plain strings among children and attributes are escaped.

    An attribute that is None is left out; `class_` is class, and an underscore becomes a
    hyphen (`stroke_width`).
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        close = " />" if name in ("line", "rect", "circle", "path") else ">"
        return Markup(f"<{name}{written}{close}")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")
