"""A recipe: an engine and its levers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from workbench.core.errors import RecipeError
from workbench.core.json import Json, canonical, digest

# Values that mean "this lever is left alone": they are not part of a recipe.
_UNSET = ("", "default", "none")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:+-]*\Z")


@dataclass(frozen=True, init=False, order=True)
class Recipe:
    """An engine and its levers, with a canonical form and a short stable id.

    `levers` holds (lever, value) pairs sorted by lever, values as text. A lever that is
    absent is left alone; `None`, "default" and "none" say the same. Whether a lever and a
    value exist is the lever table's business (`workbench.levers.resolve`).

        Recipe(engine="onnxruntime", quantization="int8-dynamic", batch=8)
        Recipe.parse("engine=onnxruntime,quantization=int8-dynamic,batch=8")
    """

    engine: str
    levers: tuple[tuple[str, str], ...]

    def __init__(self, engine: str = "torch", **levers: str | int | None) -> None:
        pairs: dict[str, str] = {}
        for lever, value in levers.items():
            text = "" if value is None else str(value).strip()
            if text in _UNSET:
                continue
            name = lever.replace("_", "-")
            for word in (name, text):
                if not _WORD.match(word):
                    raise RecipeError(
                        f"{lever}={text!r}: a lever and its value are one word each, "
                        "such as precision=bf16"
                    )
            pairs[name] = text
        if not isinstance(engine, str) or not _WORD.match(engine):
            raise RecipeError(f"engine={engine!r}: an engine is one word, such as onnxruntime")
        object.__setattr__(self, "engine", engine)
        object.__setattr__(self, "levers", tuple(sorted(pairs.items())))

    @classmethod
    def parse(cls, spec: str) -> Recipe:
        """Read "engine=onnxruntime,batch=8". Raises RecipeError on anything else."""
        pairs: dict[str, str] = {}
        for part in spec.split(","):
            name, equals, value = part.strip().partition("=")
            if not equals or not name.strip():
                raise RecipeError(
                    f"{part.strip()!r} in the recipe {spec!r} is not lever=value, "
                    "such as engine=onnxruntime,quantization=int8-dynamic,batch=8"
                )
            key = name.strip().replace("_", "-")
            if key in pairs:
                raise RecipeError(f"{key} is given twice in the recipe {spec!r}")
            pairs[key] = value.strip()
        engine = pairs.pop("engine", "torch")
        return cls(engine=engine, **pairs)

    @classmethod
    def from_json(cls, value: Json) -> Recipe:
        """Inverse of `to_json`. Raises RecipeError on any other shape."""
        if not isinstance(value, dict) or not isinstance(value.get("levers", {}), dict):
            raise RecipeError(f"not a recipe: {value!r}")
        levers = value.get("levers", {})
        assert isinstance(levers, dict)
        engine = value.get("engine")
        if not isinstance(engine, str) or not all(isinstance(v, str) for v in levers.values()):
            raise RecipeError(f"not a recipe: {value!r}")
        return cls(engine=engine, **{k: str(v) for k, v in levers.items()})

    def to_json(self) -> Json:
        """{"engine": ..., "levers": {...}}: the canonical form as JSON values."""
        return {"engine": self.engine, "levers": dict(self.levers)}

    @property
    def spec(self) -> str:
        """The text that `parse` reads: "engine=torch,precision=bf16"."""
        return ",".join([f"engine={self.engine}", *(f"{k}={v}" for k, v in self.levers)])

    @property
    def id(self) -> str:
        """Eight hexadecimal digits, the same in every process and version."""
        return digest(self.to_json())[:8]

    def get(self, lever: str) -> str | None:
        """The lever's value, or None where it is left alone."""
        return dict(self.levers).get(lever)

    def replace(self, *, engine: str | None = None, **levers: str | int | None) -> Recipe:
        """A copy with some levers changed; `None` removes one."""
        merged: dict[str, str | int | None] = dict(self.levers)
        merged.update({k.replace("_", "-"): v for k, v in levers.items()})
        return Recipe(engine=engine or self.engine, **merged)

    def __repr__(self) -> str:
        return f"Recipe.parse({self.spec!r})"

    def __str__(self) -> str:
        return self.spec


def from_mapping(values: Mapping[str, str | int | None]) -> Recipe:
    """A recipe from {"engine": ..., lever: value, ...}."""
    rest = {k: v for k, v in values.items() if k != "engine"}
    return Recipe(engine=str(values.get("engine", "torch")), **rest)


__all__ = ["Recipe", "canonical", "from_mapping"]
