"""The helper modules beside a notebook: found on its path, and copied with the model.

A module is local when its file lies neither in the standard library nor in a folder of
installed packages. Files are read, never imported.
"""

from __future__ import annotations

import ast
import shutil
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

# What a helper package may keep beside its code and read at run time.
_SUFFIXES = (".py", ".json", ".yaml", ".yml", ".toml", ".txt")
_MAX_FILE_BYTES = 1 << 20
_MAX_NUM_FILES = 2000


def current_path() -> list[str]:
    """This process's `sys.path` in absolute form, "" as the working directory."""
    return [str(Path(entry or ".").resolve()) for entry in sys.path]


def find_local(root: str, path: Iterable[str]) -> Path | None:
    """The file or package folder of a top-level module if it is local, else None."""
    if root in sys.builtin_module_names or root in sys.stdlib_module_names:
        return None
    namespace: Path | None = None
    for entry in path:
        folder = Path(entry)
        package, module = folder / root, folder / f"{root}.py"
        if (package / "__init__.py").is_file():
            return package if _is_local(package) else None
        if module.is_file():
            return module if _is_local(module) else None
        # A folder without __init__.py counts only where nothing better is on the path.
        if namespace is None and package.is_dir() and any(package.glob("*.py")):
            namespace = package
    return namespace if namespace is not None and _is_local(namespace) else None


def copy_local(roots: Iterable[str], path: list[str], target: Path) -> tuple[str, ...]:
    """Copy local modules, and the local modules that they import, into `target`.

    `roots` are top-level names; the rest is followed through import statements. Returns the
    names that were copied. A package travels whole, except files above 1 MB.
    """
    pending = list(roots)
    seen: set[str] = set()
    copied: list[str] = []
    while pending:
        root = pending.pop()
        if root in seen or root in ("__main__", "workbench"):
            continue
        seen.add(root)
        found = find_local(root, path)
        if found is None:
            continue
        copied.append(root)
        for file in _files(found):
            relative = file.relative_to(found.parent)
            (target / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target / relative)
            if file.suffix == ".py":
                pending.extend(imported_roots(file.read_text(encoding="utf-8", errors="replace")))
    return tuple(sorted(copied))


def imported_roots(source: str) -> set[str]:
    """The top-level names that a module's source imports, wherever it does so."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return set()
    roots: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            roots.add(node.module.partition(".")[0])
    return roots


def requirements(folder: Path) -> tuple[str, ...]:
    """ "name==version" of every distribution that the modules in `folder` import.

    Leaves out the standard library, the modules in the folder itself and torch with numpy,
    which every engine that opens a factory brings.
    """
    from importlib.metadata import packages_distributions, version

    own = {p.stem if p.is_file() else p.name for p in folder.iterdir()}
    roots: set[str] = set()
    for file in folder.rglob("*.py"):
        roots |= imported_roots(file.read_text(encoding="utf-8", errors="replace"))
    roots -= own | set(sys.stdlib_module_names) | {"torch", "numpy", "safetensors"}
    if not roots:
        return ()
    by_root = packages_distributions()
    names = {by_root[root][0] for root in roots if by_root.get(root)}
    return tuple(f"{name}=={version(name)}" for name in sorted(names))


def _files(found: Path) -> Iterator[Path]:
    if found.is_file():
        yield found
        return
    num_files = 0
    for file in sorted(found.rglob("*")):
        parts = file.relative_to(found).parts
        hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
        if hidden or file.suffix not in _SUFFIXES or not file.is_file():
            continue
        if file.stat().st_size <= _MAX_FILE_BYTES and num_files < _MAX_NUM_FILES:
            num_files += 1
            yield file


def _is_local(found: Path) -> bool:
    resolved = found.resolve()
    if any(part in ("site-packages", "dist-packages") for part in resolved.parts):
        return False
    paths = sysconfig.get_paths()
    installed = {paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"]}
    if site.ENABLE_USER_SITE:
        installed.add(site.getusersitepackages())
    return not any(resolved.is_relative_to(Path(folder).resolve()) for folder in installed)
