"""What the scheduler writes, as an interface: a study implements it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from workbench.core.device import Host
from workbench.core.measurement import Visit
from workbench.core.model import Model, PreparedModel
from workbench.core.profile import Profile
from workbench.core.recipe import Recipe
from workbench.core.variant import Role, RunOptions, Variant


class Records(Protocol):
    """The writer of one study. Every method commits before it returns."""

    folder: Path

    def model(self) -> Model:
        """The model that the study is about; its folder is absolute."""
        ...

    def prepared(self) -> PreparedModel | None:
        """The prepared model, or None before a worker made it."""
        ...

    def set_prepared(self, prepared: PreparedModel) -> None: ...

    def host(self) -> Host | None: ...

    def set_host(self, host: Host) -> None: ...

    def add_variant(self, recipe: Recipe, role: Role, options: RunOptions) -> Variant:
        """A new row in state "queued"; its number is one more than the highest."""
        ...

    def variant(self, number: int) -> Variant: ...

    def variants(self) -> Sequence[Variant]:
        """Every row, the control included, by number."""
        ...

    def update(self, number: int, **changes: Any) -> Variant:
        """Replace fields of a row, `dataclasses.replace` style, and return it."""
        ...

    def add_visit(self, number: int, visit: Visit) -> None: ...

    def visits(self, number: int) -> Sequence[Visit]:
        """Every visit of a row against the baseline, in order."""
        ...

    def add_profile(self, number: int, profile: Profile) -> None:
        """Keep what was recorded of a row, beside earlier recordings of it."""
        ...

    def clear_visits(self, number: int) -> None:
        """Forget a row's visits, before it is measured anew."""
        ...
