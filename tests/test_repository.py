"""Facts about the repository itself: what an import costs, what ships, what the files promise."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

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
    assert {"klimb.infer", "klimb.sites", "klimb.latents", "klimb.infer.methods", "klimb.steps"} <= loaded
    assert [name for name in HEAVY if name in loaded] == []


@pytest.mark.parametrize("first", ["import klimb.infer.loop", "import klimb.infer.methods",
                                   "from klimb.infer import Result"])
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


def test_types_are_checked_alike_with_and_without_extras(root: Path) -> None:
    # `make test` has the extra dev alone, continuous integration all of them: mypy must not need what only one has.
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    always = {requirement.split(">")[0] for requirement in settings["project"]["dependencies"]}
    named = {module.partition(".")[0] for override in settings["tool"]["mypy"]["overrides"]
             if override.get("ignore_missing_imports") for module in override["module"]}
    found = set()
    for path in (root / "src" / "klimb").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    assert found - set(sys.stdlib_module_names) - always - named == {"klimb"}


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


def classes(root: Path) -> dict[str, tuple[ast.ClassDef, set[str]]]:
    """Every class at the top of a module of the package, with the names of its bases."""
    found = {}
    for path in (root / "src" / "klimb").rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                bases = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
                found[f"{path.relative_to(root)}: {node.name}"] = (node, bases)
    return found


# What others share without an abstract method of its own: Fit, families of likelihoods and priors, estimators, ...
SHARED = {"Fit", "Likelihood", "Binary", "Counts", "PositiveMean", "NamedPrior", "Group", "Leaf", "StationaryPairs",
          "StoredDesign", "Summand", "HalfLine", "Estimator", "Classifier", "Regressor", "GrowingRegressor",
          "LinearRegressor", "_GaussianProcess", "_RidgeModel", "KlimbError", "InputError"}


def test_classes_that_others_derive_from_are_abstract(root: Path) -> None:
    # Decision 4: a class is abstract, or nothing derives from it.
    found = {node.name: (place.partition(":")[0], bases) for place, (node, bases) in classes(root).items()}
    assert len(found) > 300
    derived_from = set().union(*(bases for _, bases in found.values())) & found.keys()
    concrete = set()
    for name in derived_from:
        module = found[name][0].removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        base = getattr(importlib.import_module(module), name)
        if not inspect.isabstract(base) and not getattr(base, "_is_protocol", False):
            concrete.add(name)
    assert concrete == SHARED


@pytest.fixture(scope="module")
def measure(root: Path) -> ModuleType:
    """tools/measure.py: what it counts is kept here."""
    spec = importlib.util.spec_from_file_location("measure", root / "tools" / "measure.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tree(root: Path, measure: ModuleType) -> Any:
    return measure.Tree(root)


def test_class_names_stand_once(tree: Any, measure: ModuleType) -> None:
    assert measure.twice(tree) == {}


def test_a_class_name_that_stands_twice_is_found(tmp_path: Path, measure: ModuleType) -> None:
    for place, name in [("kernels", "Kernel"), ("latents", "Kernel"), ("sites", "Gamma"), ("priors", "Gamma"),
                        ("sites", "Step"), ("infer", "Step"), ("kernels", "Sum"), ("latents", "Sum"), ("rows", "Own")]:
        file = tmp_path / "src" / "klimb" / place / f"{name.lower()}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"class {name}:\n    pass\n\n\nclass _Hidden:\n    pass\n")
    assert sorted(measure.twice(measure.Tree(tmp_path))) == ["Step", "Sum"]


def test_few_lines_ask_for_the_class_of_a_latent(tree: Any, measure: ModuleType) -> None:
    """What a latent can do stands in its contract; the learner of `klimb.active` knows that it made `Weights`."""
    assert len(measure.asking(tree, measure.derived(tree), r"isinstance\(")) <= 2
    assert len(measure.asking(tree, measure.everything(tree), measure.BROAD)) <= 4


def test_tests_mirror_the_rooms(root: Path) -> None:
    """Tests of a room stand in a folder of its name; beside them those of contracts and of whole answers."""
    across = {"contracts", "equivalence", "extension", "papers", "references"}
    folders = {path.parent.relative_to(root / "tests").parts[0] for path in (root / "tests").glob("*/**/test_*.py")}
    rooms = {path.name for path in (root / "src" / "klimb").iterdir() if path.is_dir()}
    assert folders - across <= rooms
