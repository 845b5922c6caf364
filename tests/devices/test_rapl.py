"""The processor's energy counters, from a copy of the kernel's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.devices.rapl import find_domains


def domain(root: Path, folder: str, name: str, energy_uj: str) -> None:
    path = root / "sys/class/powercap" / folder
    path.mkdir(parents=True)
    (path / "name").write_text(name + "\n")
    (path / "max_energy_range_uj").write_text("1000000\n")
    (path / "energy_uj").write_text(energy_uj + "\n")


def test_domains_are_listed_packages_first(tmp_path: Path) -> None:
    domain(tmp_path, "intel-rapl:0:0", "dram", "7")
    domain(tmp_path, "intel-rapl:1", "package-1", "7")
    domain(tmp_path, "intel-rapl:0", "package-0", "7")
    domains, reason = find_domains(tmp_path)
    assert [found.name for found in domains] == ["package-0", "package-1", "dram"]
    assert reason is None
    assert domains[0].read_uj() == 7


def test_a_counter_that_turned_over_still_gives_the_energy(tmp_path: Path) -> None:
    domain(tmp_path, "intel-rapl:0", "package-0", "0")
    ((package,), _) = find_domains(tmp_path)
    assert package.joules_between(200_000, 700_000) == 0.5
    assert package.joules_between(900_000, 99_999) == pytest.approx(0.2)


def test_an_absent_counter_is_no_domain_and_has_a_reason(tmp_path: Path) -> None:
    """P76: never 0 J."""
    domains, reason = find_domains(tmp_path)
    assert domains == ()
    assert reason


def test_an_unreadable_counter_says_how_to_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P76: RAPL readable by root only."""
    domain(tmp_path, "intel-rapl:0", "package-0", "7")
    read_text = Path.read_text

    def refuse(path: Path) -> str:
        if path.name == "energy_uj":
            raise PermissionError(path)
        return read_text(path)

    monkeypatch.setattr(Path, "read_text", refuse)
    domains, reason = find_domains(tmp_path)
    assert domains == ()
    assert reason is not None
    assert "chmod" in reason


def test_a_counter_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    domain(tmp_path, "intel-rapl:0", "package-0", "")
    assert find_domains(tmp_path)[0] == ()
