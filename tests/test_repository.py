"""Facts about the repository itself: what an import costs, what ships, what the files promise."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import klimb

# The heavy parts of scipy and everything optional are imported where they are used, never by `import klimb`.
HEAVY = ["scipy.stats", "scipy.optimize", "scipy.sparse", "scipy.integrate", "scipy.interpolate", "sklearn", "pandas",
         "matplotlib", "mpmath"]


def modules_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_is_light() -> None:
    loaded = modules_after("import klimb")
    assert "klimb" in loaded
    assert [name for name in [*HEAVY, "scipy.special", "scipy.linalg"] if name in loaded] == []


def test_parts_are_light() -> None:
    loaded = modules_after("import klimb; klimb.infer, klimb.latents, klimb.methods, klimb.sites, klimb.steps")
    assert {"klimb.infer", "klimb.sites", "klimb.latents", "klimb.methods", "klimb.steps"} <= loaded
    assert [name for name in HEAVY if name in loaded] == []


@pytest.mark.parametrize("first", ["import klimb.infer.loop", "import klimb.methods", "from klimb.infer import Result"])
def test_infer_can_be_called_whatever_was_imported_first(first: str) -> None:
    code = f"{first}\nimport klimb\nassert callable(klimb.infer) and klimb.infer.loop.infer"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names() -> None:
    assert set(klimb.__all__) <= set(dir(klimb))
    with pytest.raises(AttributeError, match="no attribute 'inferr'"):
        klimb.inferr


def test_runtime_dependencies_are_few(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    names = sorted(requirement.split(">")[0] for requirement in project["dependencies"])
    assert names == ["click", "narwhals", "numpy", "rich", "safetensors", "scipy", "threadpoolctl"]


def test_version_is_a_version() -> None:
    assert len([int(part) for part in klimb.__version__.split(".")[:2]]) == 2


def test_package_is_typed(root: Path) -> None:
    assert (root / "src" / "klimb" / "py.typed").is_file()


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "VISION.md", "CONTRIBUTING.md", "LICENSE", "Makefile"])
def test_front_matter_exists(root: Path, name: str) -> None:
    assert (root / name).stat().st_size > 0


def test_modules_stay_readable(root: Path) -> None:
    """One duty per module: about 400 lines is the limit, 450 is the point where this test says so."""
    long = {str(path.relative_to(root)): count for path in (root / "src").rglob("*.py")
            if (count := len(path.read_text().splitlines())) > 450}
    assert long == {}


def test_ci_runs_make_test(root: Path) -> None:
    script = root / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert "make test" in script.read_text()
