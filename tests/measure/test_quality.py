"""Outputs against a reference: statuses, places and figures on fixed samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from workbench.core.measurement import Quality
from workbench.measure.intervals import wilson
from workbench.measure.quality import compare, rows_needed


def scores(num: int, num_classes: int = 10, seed: int = 0) -> NDArray[np.float32]:
    """Scores whose highest class is clear: row n's is n modulo the classes."""
    rng = np.random.default_rng(seed)
    values = rng.normal(0, 0.1, (num, num_classes)).astype(np.float32)
    values[np.arange(num), np.arange(num) % num_classes] += 5
    return values


def flipped(values: NDArray[np.float32], num: int) -> NDArray[np.float32]:
    """The same scores with another class on top in the first `num` rows."""
    changed = values.copy()
    changed[:num] = np.roll(changed[:num], 1, axis=1)
    return changed


def one(reference: NDArray[np.generic], output: NDArray[np.generic], **more: object) -> Quality:
    return compare({"logits": reference}, {"logits": output}, **more)  # type: ignore[arg-type]


# Failures, whatever the metric says -----------------------------------------------------


def test_overflow_is_not_finite_with_counts_and_place() -> None:
    """P05: an fp16 product of 102400 is inf: "N of M outputs not finite"."""
    reference = np.full((4, 256), 102400.0, dtype=np.float32)
    with np.errstate(over="ignore"):
        output = reference.astype(np.float16)
    quality = one(reference, output)
    assert quality.status == "not_finite"
    assert quality.reasons[0].startswith("1,024 of 1,024 outputs not finite")
    assert "'logits' at [0, 0]" in quality.reasons[0]


def test_one_nan_is_found_where_it_stands() -> None:
    reference = scores(400)
    output = reference.copy()
    output[37, 4] = np.nan
    quality = one(reference, output, task="classification")
    assert quality.status == "not_finite"
    assert "1 of 4,000 outputs not finite" in quality.reasons[0]
    assert "[37, 4]" in quality.reasons[0]
    assert quality.worst_rows == (37,)


def test_a_mask_of_infinities_is_no_failure() -> None:
    reference = scores(400)
    reference[:, 9] = -np.inf
    quality = one(reference, reference.copy(), task="classification")
    assert quality.status == "kept"
    assert all(math.isfinite(value) for value in quality.details.values())


def test_a_baseline_that_is_not_finite_itself_judges_nobody() -> None:
    reference = scores(400)
    reference[3, 3] = np.nan
    quality = one(reference, scores(400), task="classification")
    assert quality.status == "unknown"
    assert "baseline itself" in quality.reasons[0]


def test_outputs_a_thousand_times_too_large_are_a_mismatch() -> None:
    """P08: no class changes, and still the check has failed, with numbers."""
    reference = scores(400)
    quality = one(reference, reference * 1000, task="classification")
    assert quality.status == "mismatch"
    assert quality.value == pytest.approx(999, rel=1e-3)
    assert quality.max_abs_error == pytest.approx(999 * float(np.abs(reference).max()), rel=1e-3)
    assert "'logits' differs by up to" in quality.reasons[0]


def test_an_added_tenth_fails_where_only_rounding_is_allowed() -> None:
    """P03: y + 0.1 from an optimisation level: failing, with max, mean and element index."""
    reference = scores(400)
    output = reference + np.float32(0.1)
    output[7, 2] += np.float32(0.2)
    quality = one(reference, output, task="classification", lossless_error=1e-3)
    assert quality.status == "mismatch"
    assert quality.max_abs_error == pytest.approx(0.3, abs=1e-5)
    assert "by up to 0.3 at [7, 2], 0.1 on average" in quality.reasons[0]
    assert quality.worst_rows[0] == 7
    rounding = one(
        reference, reference * np.float32(1 + 1e-6), task="classification", lossless_error=1e-3
    )
    assert rounding.status == "kept"


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        ({"logits": np.zeros((4, 3))}, "'aux' is missing"),
        ({"logits": np.zeros((4, 3)), "aux": np.ones(4)}, "no longer None"),
        ({"logits": None, "aux": None}, "None where the baseline has a value"),
        ({"logits": np.zeros((4, 2)), "aux": None}, "shape [4, 2], the baseline's [4, 3]"),
        ({"logits": np.zeros((4, 3), bool), "aux": None}, "dtype bool"),
        ({"logits": np.zeros((4, 3)), "aux": None, "new": np.ones(1)}, "not one of the baseline's"),
    ],
)
def test_another_structure_is_a_mismatch(
    outputs: dict[str, NDArray[np.generic] | None], said: str
) -> None:
    """P55: leaves are compared by name and None is kept."""
    quality = compare({"logits": np.zeros((4, 3)), "aux": None}, outputs)
    assert quality.status == "mismatch"
    assert said in quality.reasons[0]
    assert quality.value is None


def test_an_empty_result_is_a_failure() -> None:
    empty = np.zeros((0, 10), dtype=np.float32)
    quality = one(empty, empty)
    assert quality.status == "mismatch"
    assert "empty" in quality.reasons[0]


def test_an_optional_output_may_be_empty_beside_others() -> None:
    reference = {"boxes": np.zeros((0, 4)), "scores": scores(400)}
    assert compare(reference, dict(reference)).status == "kept"


def test_zeros_and_their_rounding_are_the_same() -> None:
    reference = {"logits": scores(400), "aux": np.zeros((400, 3))}
    outputs = {"logits": scores(400), "aux": np.full((400, 3), 1e-9)}
    assert compare(reference, outputs).status == "kept"
    outputs["aux"] = np.full((400, 3), 0.1)
    assert compare(reference, outputs).status == "mismatch"


# Classification --------------------------------------------------------------------------


def test_381_rows_without_a_flip_keep_one_per_cent() -> None:
    assert rows_needed(0.01) == 381
    kept = one(scores(381), scores(381), task="classification")
    assert kept.status == "kept"
    assert kept.metric == "top-1 agreement"
    assert (kept.value, kept.num_rows) == (1.0, 381)
    assert kept.low is not None
    assert kept.low >= 0.99


def test_too_few_rows_say_how_many_more_would_decide() -> None:
    quality = one(scores(300), scores(300), task="classification")
    assert quality.status == "undecided"
    assert quality.reasons == ("81 more rows would decide",)


def test_agreement_has_wilsons_interval() -> None:
    """P69: a target of full agreement is not met by 96.5 %, and the figure is there to say so."""
    reference = scores(600)
    quality = one(reference, flipped(reference, 21), task="classification", tolerance=1e-9)
    assert quality.status == "lost"
    assert quality.value == pytest.approx(0.965)
    assert (quality.low, quality.high) == pytest.approx(wilson(579, 600))
    assert quality.worst_rows == (0, 1, 2, 3, 4)


def test_many_flips_are_lost_even_on_few_rows() -> None:
    reference = scores(100)
    quality = one(reference, flipped(reference, 30), task="classification")
    assert quality.status == "lost"
    assert any("differs by up to" in reason for reason in quality.reasons)


def test_a_few_flips_need_more_rows_at_the_same_rate() -> None:
    reference = scores(600)
    quality = one(reference, flipped(reference, 3), task="classification")
    assert quality.status == "undecided"
    more = int(quality.reasons[0].split()[0].replace(",", ""))
    total = 600 + more
    assert wilson(0.995 * total, total)[0] >= 0.99
    assert wilson(0.995 * (total - 2), total - 2)[0] < 0.99


def test_generated_inputs_leave_quality_unknown() -> None:
    quality = one(scores(1000), scores(1000), task="classification", is_real=False)
    assert quality.status == "unknown"
    assert quality.num_rows == 1000
    assert quality.reasons == ("the inputs are generated",)
    assert quality.value == 1.0


def test_a_handful_of_rows_leaves_quality_unknown() -> None:
    quality = one(scores(8), scores(8), task="classification")
    assert quality.status == "unknown"
    assert quality.num_rows == 8


def test_labels_lead_with_the_difference_in_accuracy() -> None:
    """Of 1,000 rows the baseline has all right; the variant loses 40 of them."""
    reference = scores(1000)
    labels = np.arange(1000) % 10
    quality = one(reference, flipped(reference, 40), labels=labels)
    assert quality.metric == "accuracy difference"
    assert quality.value == pytest.approx(-0.04)
    assert quality.low is not None
    assert quality.high is not None
    assert quality.low < -0.04 < quality.high < -0.01
    assert quality.status == "lost"
    assert quality.details["baseline accuracy"] == 1.0
    assert quality.details["accuracy"] == pytest.approx(0.96)
    assert quality.details["top-1 agreement"] == pytest.approx(0.96)


def test_flips_between_wrong_classes_lose_no_accuracy() -> None:
    reference = scores(2000)
    labels = (np.arange(2000) + 5) % 10
    labels[200:] = np.arange(200, 2000) % 10
    quality = one(reference, flipped(reference, 100), labels=labels)
    assert quality.value == 0.0
    assert quality.status == "kept"
    assert quality.details["top-1 agreement"] == pytest.approx(0.95)


def test_one_score_is_a_binary_class() -> None:
    logits = np.linspace(-3, 3, 500)[:, np.newaxis]
    quality = one(logits, logits * 0.9, task="classification")
    assert quality.metric == "top-1 agreement"
    assert quality.value == 1.0
    shares = 1 / (1 + np.exp(-logits))
    moved = np.clip(shares + 0.2, 0, 1)
    assert one(shares, moved, task="classification").value == pytest.approx(
        float(np.mean((shares >= 0.5) == (moved >= 0.5))), abs=0.003
    )


def test_divergence_is_kl_in_nats() -> None:
    before = np.tile(np.log([0.5, 0.5]), (400, 1))
    after = np.tile(np.log([0.25, 0.75]), (400, 1))
    expected = 0.5 * math.log(2) + 0.5 * math.log(0.5 / 0.75)
    logits = one(before, after, task="classification")
    assert logits.details["KL divergence"] == pytest.approx(expected)
    shares = one(np.exp(before), np.exp(after), task="classification")
    assert shares.details["KL divergence"] == pytest.approx(expected)


def test_rows_may_lie_along_another_axis() -> None:
    reference = scores(400).T.copy()
    quality = one(reference, reference, task="classification", batch_axes={"logits": 1})
    assert quality.num_rows == 400
    assert quality.status == "kept"


def test_an_output_without_rows_is_one_row() -> None:
    quality = one(scores(400), scores(400), batch_axes={})
    assert quality.num_rows == 1
    assert quality.status == "unknown"


# Other tasks -----------------------------------------------------------------------------


def language(num_rows: int, num_tokens: int = 16, vocab: int = 32) -> NDArray[np.float64]:
    rng = np.random.default_rng(1)
    return rng.normal(0, 2, (num_rows, num_tokens, vocab))


def test_token_agreement_counts_tokens_and_trusts_rows() -> None:
    reference = language(200)
    output = reference.copy()
    output[:20, :4] = -output[:20, :4]
    quality = one(reference, output, task="language-model")
    assert quality.metric == "token agreement"
    assert quality.value == pytest.approx(1 - 80 / 3200)
    assert quality.status == "lost"
    assert set(quality.worst_rows) <= set(range(20))
    # As many tokens agree, but they were not drawn independently: wider than 3,200 trials.
    assert quality.low is not None
    assert quality.low < wilson(3120, 3200)[0]


def test_perplexity_is_compared_by_its_ratio() -> None:
    """Uniform over 8 against uniform over 4 of the same tokens: perplexities 4 and 8."""
    reference = np.zeros((60, 5, 8))
    reference[..., 4:] = -40.0
    output = np.zeros((60, 5, 8))
    labels = np.zeros((60, 5), dtype=np.int64)
    labels[:, -1] = -100
    quality = one(reference, output, labels=labels, task="language-model", tolerance=1.5)
    assert quality.metric == "perplexity ratio"
    assert quality.value == pytest.approx(2.0)
    assert quality.details["baseline perplexity"] == pytest.approx(4.0)
    assert quality.details["perplexity"] == pytest.approx(8.0)
    assert quality.status == "kept"
    assert one(reference, output, labels=labels, task="language-model").status == "lost"


def test_equal_language_models_are_kept() -> None:
    quality = one(language(400), language(400), task="language-model")
    assert quality.status == "kept"
    labels = np.zeros((400, 16), dtype=np.int64)
    assert one(language(400), language(400), labels=labels, task="language-model").value == 1.0


def test_a_high_cosine_can_hide_changed_neighbours() -> None:
    rng = np.random.default_rng(2)
    reference = rng.normal(size=(500, 32))
    output = reference + rng.normal(0, 0.12, reference.shape)
    quality = one(reference, output, task="embedding")
    assert quality.metric == "neighbour overlap@10"
    assert quality.details["mean cosine"] > 0.99
    assert quality.value is not None
    assert quality.value < 0.9
    assert quality.status == "lost"


def test_neighbours_are_counted() -> None:
    """Twelve points on a line of growing angles: ten of eleven others are near."""
    angles = np.linspace(0, 1.1, 12)
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    same = one(points, points * 3.0 / 2, task="embedding")
    assert same.value == 1.0
    swapped = points.copy()
    swapped[[0, 11]] = swapped[[11, 0]]
    changed = one(points, swapped, task="embedding")
    # Each row leaves out its furthest: for ten rows that is another one now, or not.
    expected = []
    for row in range(12):
        before = np.argsort(-(points @ points[row]))
        after = np.argsort(-(swapped @ swapped[row]))
        near = [[i for i in order if i != row][:10] for order in (before, after)]
        expected.append(len(set(near[0]) & set(near[1])) / 10)
    assert changed.value == pytest.approx(np.mean(expected))


def test_token_vectors_are_pooled() -> None:
    rng = np.random.default_rng(3)
    reference = rng.normal(size=(400, 5, 16))
    quality = one(reference, reference, task="embedding")
    assert quality.metric == "neighbour overlap@10"
    assert quality.status == "kept"


def test_regression_error_is_relative_to_the_targets_spread() -> None:
    """Targets of standard deviation 10, all off by 0.5: 5 %."""
    targets = np.tile([-10.0, 10.0], 300)
    quality = one(targets, targets + 0.5, labels=targets, task="regression")
    assert quality.metric == "error over target spread"
    assert quality.value == pytest.approx(0.05)
    assert quality.status == "lost"
    assert quality.details["error"] == pytest.approx(0.5)
    assert quality.details["baseline error"] == 0.0
    assert one(targets, targets + 0.5, task="regression", tolerance=0.06).status == "kept"


def test_without_a_task_the_relative_error_of_the_worst_output_counts() -> None:
    reference = {"a": np.full((100, 4), 2.0), "b": np.full((100, 2), 3.0)}
    outputs = {"a": np.full((100, 4), 2.0), "b": np.full((100, 2), 3.03)}
    quality = compare(reference, outputs, tolerance=0.02)
    assert quality.metric == "relative error"
    assert quality.value == pytest.approx(0.01)
    assert quality.status == "kept"
    assert compare(reference, outputs, tolerance=0.005).status == "lost"


def test_ids_are_compared_by_equality() -> None:
    reference = np.arange(1000).reshape(500, 2)
    output = reference.copy()
    output[:50, 1] = 0
    quality = one(reference, output)
    assert quality.metric == "row agreement"
    assert quality.value == pytest.approx(0.9)
    assert quality.status == "lost"


def test_text_is_compared_by_equality() -> None:
    words = np.array(["cat", "dog"] * 250)
    assert one(words, words.copy()).value == 1.0
    other = words.copy()
    other[:5] = "eel"
    assert one(words, other).value == pytest.approx(0.99)


def test_float64_is_the_yardstick_of_a_coarse_baseline() -> None:
    """A bf16 baseline is off by 2 %; a variant as far off on the other side loses nothing."""
    rng = np.random.default_rng(4)
    exact = rng.normal(size=(100, 8))
    noise = 0.02 * rng.normal(size=exact.shape)
    baseline, variant = exact + noise, exact - 0.9 * noise
    alone = one(baseline, variant)
    assert alone.status == "lost"
    known = one(baseline, variant, exact_reference={"logits": exact[:16]})
    assert known.status == "kept"
    assert "float64" in known.reasons[0]
    assert known.details["error to float64"] < known.details["baseline error to float64"]
    worse = one(baseline, exact - 3 * noise, exact_reference={"logits": exact[:16]})
    assert worse.status == "lost"


def test_half_precision_outputs_are_compared_in_float64() -> None:
    reference = np.full((100, 3), 1000.0, dtype=np.float16)
    output = np.full((100, 3), 1001.0, dtype=np.float16)
    quality = one(reference, output)
    assert quality.value == pytest.approx(0.001)
    assert quality.max_abs_error == pytest.approx(1.0)


def test_a_large_output_is_read_in_pieces() -> None:
    reference = np.zeros((900, 100, 50), dtype=np.float32)
    reference += 1
    output = reference.copy()
    output[899, 99, 49] = 3
    quality = one(reference, output)
    assert quality.max_abs_error == pytest.approx(2.0)
    assert quality.worst_rows == (899,)
    assert quality.details["mean absolute error"] == pytest.approx(2 / reference.size)
