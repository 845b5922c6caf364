"""What a device reaches at best."""

from __future__ import annotations

import subprocess
import sys

import pytest

from workbench.capture.peaks import measure_peaks


def test_a_product_and_a_copy_are_timed() -> None:
    """Within three decades of any machine that runs this: no performance is asserted."""
    import torch  # noqa: F401 - measured by torch where it is imported

    peaks = measure_peaks("cpu", all_threads=False)
    assert peaks is not None
    assert 1e8 < peaks.flops["f32"] < 1e15
    assert 1e7 < peaks.bytes_per_s < 1e13


@pytest.mark.slow
def test_without_torch_numpy_measures() -> None:
    code = (
        "import sys; from workbench.capture.peaks import measure_peaks; "
        "p = measure_peaks('cpu', all_threads=True); assert 'torch' not in sys.modules; "
        "assert measure_peaks('cpu', all_threads=False) is None; "
        "assert measure_peaks('cuda:0', all_threads=True) is None; print(p.flops['f32'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 1e8 < float(done.stdout) < 1e15
