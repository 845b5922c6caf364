"""accel-workbench: make a model fast, cheap and small, and believe the result.

import workbench as wb
model = wb.load(net, inputs=x)
study = wb.Study(model)
study.run(wb.Recipe(engine="onnxruntime"), wb.Recipe(engine="torch-compile"))
study.compare()
study.export("best", "out/")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.core import errors
    from workbench.core.recipe import Recipe
    from workbench.core.variant import RunOptions
    from workbench.sources.load import load
    from workbench.sources.samples import sample_names as samples
    from workbench.study.study import Study, open_study
    from workbench.traces.opening import open_trace

__version__ = "0.1.0"

# Imported when first asked for: a client that only shows a study pays for nothing else.
_WHERE = {
    "Recipe": ("workbench.core.recipe", "Recipe"),
    "RunOptions": ("workbench.core.variant", "RunOptions"),
    "Study": ("workbench.study.study", "Study"),
    "errors": ("workbench.core.errors", None),
    "load": ("workbench.sources.load", "load"),
    "open_study": ("workbench.study.study", "open_study"),
    "open_trace": ("workbench.traces.opening", "open_trace"),
    "samples": ("workbench.sources.samples", "sample_names"),
}

__all__ = [
    "Recipe",
    "RunOptions",
    "Study",
    "errors",
    "load",
    "open_study",
    "open_trace",
    "samples",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module_name, attribute = _WHERE[name]
    module = import_module(module_name)
    value = module if attribute is None else getattr(module, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
