"""What the levers' values are, what is offered of them, and why the rest is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.engines.onnx_sources import CPU, H100, context_of, prepared
from workbench.core.device import Device
from workbench.core.errors import RecipeError, UnavailableError
from workbench.core.model import BatchClaim, TensorSpec
from workbench.core.recipe import Recipe
from workbench.engines import load_all
from workbench.engines.table import check_available, support
from workbench.levers import Batching, Precision, Threads, levers, offer, resolve, warnings
from workbench.levers.step import Context
from workbench.levers.threads import default_environment, process_environment

load_all()
IMAGES = (TensorSpec(name="x", dtype="float32", shape=("batch", 1, 8, 8)),)
MODEL = prepared("factory", IMAGES, layers={"Conv2d": 2, "BatchNorm2d": 1, "Linear": 1})
GPU = Device(id="cuda:0", kind="cuda", name="NVIDIA T4", capability=(7, 5))


def reason(spec: str, **changes: object) -> str:
    """Why a recipe's one lever cannot be had, "" where it can."""
    recipe = Recipe.parse(spec)
    device = changes.pop("device", CPU)
    assert isinstance(device, Device)
    context = context_of(replace(MODEL, **changes), recipe, device=device)  # type: ignore[arg-type]
    ((lever, value),) = recipe.levers
    return offer(lever, recipe.engine, value, context) or ""


def without(context: Context, package: str) -> Context:
    packages = {k: v for k, v in context.host.packages.items() if k != package}
    return replace(context, host=replace(context.host, packages=packages))


@pytest.mark.parametrize("name", list(levers()))
def test_every_value_that_a_lever_lists_can_be_read(name: str) -> None:
    lever = levers()[name]
    for value in lever.values:
        assert lever.parse(value).name == name


def test_an_unknown_value_names_the_closest_and_all_there_are() -> None:
    with pytest.raises(RecipeError, match=r"did you mean bf16\?.*fp16-autocast"):
        Precision.parse("bf17")


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "eight", "٣"])
def test_a_batch_is_a_positive_number(text: str) -> None:
    with pytest.raises(RecipeError, match="positive"):
        Batching.parse(text)


def test_any_positive_batch_may_be_asked_for() -> None:
    assert Batching.parse("12").size == 12


@pytest.mark.parametrize(
    ("text", "num", "wait"),
    [
        ("2", 2, "passive"),
        ("2:active", 2, "active"),
        ("auto:active", None, "active"),
        ("16:passive", 16, "passive"),
    ],
)
def test_threads_are_a_number_and_how_they_wait(text: str, num: int | None, wait: str) -> None:
    threads = Threads.parse(text)
    assert (threads.num, threads.wait) == (num, wait)


@pytest.mark.parametrize("text", ["0", "two", "2:lazy", "2:", ":active"])
def test_other_threads_are_refused(text: str) -> None:
    with pytest.raises(RecipeError, match="2:active"):
        Threads.parse(text)


def test_an_unknown_lever_names_the_closest() -> None:
    with pytest.raises(RecipeError, match=r"did you mean precision\?"):
        resolve(Recipe(precison="bf16"))


def test_a_warm_spare_serves_every_recipe_but_one_whose_threads_spin() -> None:
    assert process_environment(Recipe(), {"num_threads": 2}) == {}
    assert process_environment(Recipe(threads="2", precision="bf16"), {}) == {}
    needed = process_environment(Recipe(threads="2:active"), {})
    assert needed["OMP_WAIT_POLICY"] == "active"
    assert default_environment()["OMP_WAIT_POLICY"] == "passive"


def test_a_reason_names_the_device_and_what_it_lacks() -> None:
    assert "tensor cores" in reason("engine=torch,precision=tf32")
    assert "CPU with AVX2" in reason("engine=torch,precision=tf32")
    assert "compute capability 8.0" in reason("engine=torch,precision=tf32", device=GPU)
    assert reason("engine=torch,precision=tf32", device=H100) == ""
    fp8 = reason("engine=torch-compile,quantization=fp8")
    assert fp8 == "fp8 needs compute capability 8.9; this is a CPU with AVX2"
    assert "CUDA graphs need" in reason("engine=torch-compile,fusion=reduce-overhead")
    assert "NVIDIA" in reason("engine=torch,attention=cudnn")


def test_a_reason_names_the_missing_package() -> None:
    context = context_of(MODEL, Recipe(quantization="int8-dynamic"))
    said = offer("quantization", "torch", "int8-dynamic", without(context, "torchao"))
    assert said is not None
    assert said.startswith("torchao is not installed")


def test_a_reason_names_the_model() -> None:
    static = "engine=torch-compile,quantization=int8-static"
    assert "calibration rows" in reason(static)
    assert reason(static, has_calibration=True) == ""
    assert "TorchScript" in reason("engine=torch,quantization=int8-dynamic", kind="torchscript")
    assert "no batch normalisation" in reason("engine=torch,fusion=conv-bn", layers={"Linear": 1})
    flat = (TensorSpec(name="x", dtype="float32", shape=("batch", 8)),)
    assert "images" in reason("engine=torch,layout=channels-last", inputs=flat, layers={})


def test_a_value_of_another_engine_says_whose_it_is() -> None:
    assert reason("engine=torch,fusion=freezing") == (
        "freezing is a value of torch-compile, not of torch"
    )


def test_a_gpus_flash_attention_asks_for_half_precision() -> None:
    assert "add precision=bf16" in reason("engine=torch,attention=flash", device=H100)


def test_a_fixed_batch_is_offered_at_its_own_size_only() -> None:
    """P61: a sweep over a model of one batch size ends with a reason, not with failures."""
    fixed = BatchClaim(axes={"x": 0}, dynamic=False, example_size=1, reason="[1,4] is baked in")
    assert reason("engine=torch,batch=1", batch=fixed) == ""
    assert reason("engine=torch,batch=32", batch=fixed) == "[1,4] is baked in"


def test_rows_that_depend_on_each_other_are_announced() -> None:
    """P10: batching is not offered as free where it changes an item's result."""
    claim = BatchClaim(
        axes={"x": 0}, dynamic=True, example_size=4, verified_sizes=(2, 3), rows_independent=False
    )
    model = replace(MODEL, batch=claim)
    (said,) = warnings(context_of(model, Recipe(batch=8)))
    assert "rows depend on the batch" in said
    assert warnings(context_of(MODEL, Recipe(batch=8))) == ()


def test_an_emulated_format_names_the_missing_instructions() -> None:
    """P21: the warning comes before the run, and the value can be run all the same."""
    (said,) = warnings(context_of(MODEL, Recipe(precision="bf16")))
    assert "AVX512_BF16" in said
    assert "CPU with AVX2" in said
    assert reason("engine=torch,precision=bf16") == ""
    native = replace(CPU, native=("fp32", "bf16"))
    assert warnings(context_of(MODEL, Recipe(precision="bf16"), device=native)) == ()


def test_int8_without_vnni_is_announced() -> None:
    """P11: one of the reasons why quantised is not faster is known beforehand."""
    (said,) = warnings(context_of(MODEL, Recipe(quantization="int8-dynamic")))
    assert "no VNNI" in said


def test_compiling_on_a_cpu_needs_a_compiler() -> None:
    context = context_of(MODEL, Recipe(engine="torch-compile"))
    bare = replace(context, host=replace(context.host, tools={}))
    with pytest.raises(UnavailableError, match=r"needs a C\+\+ compiler"):
        check_available(bare)
    equipped = replace(context, host=replace(context.host, tools={"c++": "/usr/bin/g++"}))
    check_available(equipped)


def test_the_support_table_has_a_reason_or_none_for_every_value() -> None:
    context = context_of(MODEL, Recipe())
    rows = support(context)
    assert {row.key for row in rows} >= {"torch", "torch,precision=bf16", "onnxruntime"}
    for row in rows:
        assert row.reason is None or row.reason.strip(), row
        if row.lever and row.reason is None:
            check_available(replace(context, recipe=Recipe.parse(f"engine={row.key}")))


def test_support_on_an_onnx_graph_says_that_torch_does_not_run_it() -> None:
    rows = support(context_of(prepared("onnx", IMAGES), Recipe()))
    torch = next(row for row in rows if row.key == "torch,precision=bf16")
    assert torch.reason == "the model is an ONNX graph, which torch does not run"
