"""Extra work whose size is known by construction, put below an unchanged scheduler.

Every call of the baseline passes the model `PASSES` times, on the same inputs, and every call
of a variant some more times: 21 passes are 5 % more work, in each call alike. All passes are
the model's own call through the engine's own pipeline file, so nothing has to be calibrated:
beside the passes a call holds a loop of well under a microsecond, of at least a millisecond.

The scheduler takes an artifact that is already there for what it would build. So the loop is
put into copies of a built artifact's `pipeline.py`, below the keys of recipes that serve as
names; building apart, the study, the scheduler, the workers and the rounds are those of any
other study.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workbench.core.device import Host
from workbench.core.errors import RunError
from workbench.core.json import Json
from workbench.core.model import PreparedModel
from workbench.core.recipe import Recipe
from workbench.engines import load_all
from workbench.levers.step import Context
from workbench.run.artifacts import Artifact
from workbench.study.study import Study

PASSES = 20
# "auto" is what is done anyway; the three are one recipe under three names.
NAMES = ("auto", "auto:passive", "1:passive")

_LOOP = '''

_load_single = load


def load(out_dir):
    """load(), whose every call passes the model {num_passes} times."""
    pipeline = _load_single(out_dir)
    single = pipeline.call

    def call(placed):
        for _ in range({num_passes}):
            raw = single(placed)
        return raw

    pipeline.call = call
    return pipeline
'''


@dataclass(frozen=True, kw_only=True)
class Built:
    """A baseline's artifact as some study built it, and what its key was made from."""

    folder: Path
    engine: str
    host: Host
    prepared: PreparedModel
    settings: dict[str, Json]

    def key(self, recipe: Recipe) -> str:
        """Where a scheduler looks for the artifact of a recipe of this model."""
        load_all()
        context = Context(
            host=self.host,
            device=self.host.devices[0],
            model=self.prepared,
            recipe=recipe,
            settings=self.settings,
        )
        return Artifact(Path(), context).key


def built_by(study: Study) -> Built:
    """What a study whose baseline has run built."""
    baseline = study.variants()[0]
    host, prepared = study.host, study.prepared
    if host is None or prepared is None or baseline.artifact is None:
        why = baseline.failure.message if baseline.failure is not None else baseline.state
        raise RunError(f"the baseline of {study.folder} built nothing: {why}")
    built = Built(
        folder=study.folder / "artifacts" / baseline.artifact,
        engine=baseline.recipe.engine,
        host=host,
        prepared=prepared,
        settings=study.model.settings,
    )
    assert built.key(baseline.recipe) == baseline.artifact, "the key is made of something else"
    return built


def recipe_named(engine: str, index: int) -> Recipe:
    """A recipe to stand for one amount of injected work."""
    return Recipe(engine=engine, threads=NAMES[index])


def plant(study: Path, built: Built, num_passes: Mapping[Recipe, int]) -> dict[Recipe, str]:
    """Put an artifact for each recipe into a new study; returns their keys."""
    keys = {}
    for recipe, num in num_passes.items():
        key = built.key(recipe)
        folder = study / "artifacts" / key
        shutil.copytree(built.folder, folder)
        with (folder / "pipeline.py").open("a", encoding="utf-8") as stream:
            stream.write(_LOOP.format(num_passes=num))
        keys[recipe] = key
    assert len(set(keys.values())) == len(num_passes), "two recipes share an artifact"
    return keys
