"""Files: what goes in comes out, nothing is half written, and nothing damaged or foreign gets in."""

from __future__ import annotations

import json
import os
import pickle
import stat
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import klimb
from klimb import _files as wholefile
from klimb.errors import InputError
from klimb.models import files
from klimb.models.files import KEY, Container, read_container, write_container

GOLDEN = Path(__file__).resolve().parent.parent / "references" / "golden.klimb"


def small(path: Path, **more: Any) -> Path:
    write_container(path, "example", {"name": "ä fit", "levels": ["a", "b"]},
                    {"w": np.arange(6.0).reshape(2, 3), "n": np.array(7)}, **more)
    return path


def refused(path: Path, *parts: str, kind: str | None = None) -> None:
    with pytest.raises(InputError) as caught:
        read_container(path, kind)
    message = str(caught.value)
    assert "; got " in message  # expected; got came. advice
    assert message.endswith(".")
    for part in parts:
        assert part in message, message


# -- what goes in comes out


@pytest.mark.parametrize("array", [
    np.array([[1.0, np.nan], [np.inf, -0.0]]), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.arange(12.0)[::-2],
    np.arange(6.0).reshape(2, 3).T, np.arange(4, dtype=">f8"), np.arange(4, dtype=">i4"), np.float32([1e-45, 3.0]),
    np.array(5), np.array(2.5), np.zeros((0, 3)), np.array([True, False]), np.array([2**63], dtype=np.uint64),
    np.array([5e-324, 1.7976931348623157e308]), np.int8([-128]), np.broadcast_to(1.0, (3, 2)),
], ids=str)
def test_arrays_come_back_bit_for_bit(tmp_path: Path, array: np.ndarray) -> None:
    write_container(tmp_path / "a.klimb", "example", {}, {"x": array})
    back = read_container(tmp_path / "a.klimb").arrays["x"]
    native = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="))).reshape(array.shape)
    assert back.dtype == native.dtype
    assert back.shape == array.shape
    assert back.tobytes() == native.tobytes()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=8)


@given(st.dictionaries(st.text(max_size=8).filter(lambda key: key != "$float"), json_values, max_size=4))
@settings(max_examples=40)
def test_headers_come_back(tmp_path_factory: pytest.TempPathFactory, header: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("h") / "h.klimb"
    try:
        write_container(path, "example", header, {})
    except InputError:  # a nested "$float"
        assert "$float" in str(header)
        return
    assert read_container(path).header == header


def test_headers_keep_what_json_has_no_words_for(tmp_path: Path) -> None:
    header = {"nan": np.nan, "limits": (-np.inf, np.inf), "count": np.int64(3), "scale": np.float64(0.1),
              "on": np.True_}
    write_container(tmp_path / "h.klimb", "example", header, {})
    back = read_container(tmp_path / "h.klimb").header
    assert np.isnan(back.pop("nan"))
    assert back == {"limits": [-np.inf, np.inf], "count": 3, "scale": 0.1, "on": True}


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    found = read_container(small(tmp_path / "a.klimb", schema=3, holds=("training inputs", "responses")))
    assert isinstance(found, Container)
    assert (found.kind, found.schema, found.klimb_version) == ("example", 3, klimb.__version__)
    assert found.holds == ("training inputs", "responses")


def test_the_same_content_makes_the_same_bytes(tmp_path: Path) -> None:
    assert small(tmp_path / "a.klimb").read_bytes() == small(tmp_path / "b.klimb").read_bytes()


def test_other_programs_can_read_it(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    assert np.array_equal(load_file(small(tmp_path / "a.klimb"))["w"], np.arange(6.0).reshape(2, 3))


def test_lazy_arrays_are_checked_when_they_are_read(tmp_path: Path) -> None:
    path = small(tmp_path / "a.klimb")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    found = read_container(path, lazy=True)
    assert list(found.arrays) == ["n", "w"]
    with pytest.raises(InputError, match="checksum"):
        dict(found.arrays)
    refused(path, "checksum")


@pytest.mark.parametrize(("header", "arrays", "part"), [
    ({"f": lambda: 0}, {}, "function at header.f"), ({"a": [{"b": {1, 2}}]}, {}, "set at header.a[0].b"),
    ({3: 4}, {}, "3 in header"), ({"$float": "nan"}, {}, "$float"), ({}, {"x": np.array(["a"])}, "dtype <U1"),
    ({}, {"x": np.array([None])}, "dtype object"), ({}, {"x": np.array([1j])}, "complex128"), ({}, {"": [1.0]}, "''"),
    ({}, {"__metadata__": [1.0]}, "__metadata__"),
])
def test_what_can_not_be_saved_is_said(tmp_path: Path, header: Any, arrays: Any, part: str) -> None:
    with pytest.raises(InputError) as caught:
        write_container(tmp_path / "a.klimb", "example", header, arrays)
    assert part in str(caught.value)
    assert list(tmp_path.iterdir()) == []


# -- written all at once


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small(tmp_path / "a.klimb")
    before = path.read_bytes()

    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(wholefile, "to_disk", full)
    with pytest.raises(InputError, match="No space left on device"):
        small(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small(tmp_path / "a.klimb")

    def interrupted(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(wholefile, "to_disk", interrupted)
    with pytest.raises(KeyboardInterrupt):
        small(path)
    assert list(tmp_path.iterdir()) == [path]
    assert read_container(path).kind == "example"


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    path = small(tmp_path / "a.klimb")
    plain = tmp_path / "plain"
    plain.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    os.chmod(path, 0o640)
    link = tmp_path / "link.klimb"
    link.symlink_to(path)
    small(link, schema=2)
    assert link.is_symlink()
    assert read_container(path).schema == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_places_that_can_not_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a directory"):
        small(tmp_path)
    with pytest.raises(InputError, match="Create it first"):
        small(tmp_path / "none" / "a.klimb")


# -- what does not get in


def test_foreign_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.klimb"
    refused(tmp_path / "none.klimb", "does not exist")
    refused(tmp_path, "a directory")
    for content, part in [(b"", "0 bytes"), (b"abc", "3 bytes"), (pickle.dumps({"a": 1}), "a pickle"),
                          (pickle.dumps([1], protocol=2), "a pickle"), (b"x,y\n1,2\n3,4\n5,6\n", "begins with"),
                          (b'{"json": "file", "of": "some length"}', "begins with"), (b"\0" * 100, "begins with"),
                          (b"\x1f\x8b" + b"\0" * 40, "gzip")]:
        path.write_bytes(content)
        refused(path, part)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", "y")
    refused(path, "a zip archive")
    np.save(tmp_path / "a.npy", np.arange(3))
    refused(tmp_path / "a.npy", ".npy")


def test_other_safetensors_are_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"x": np.arange(3.0)}, tmp_path / "a.klimb")
    refused(tmp_path / "a.klimb", "klimb did not write")
    save_file({"x": np.arange(3.0)}, tmp_path / "a.klimb", metadata={KEY: "not json"})
    refused(tmp_path / "a.klimb", "cannot be read")


def forged(path: Path, change: Any) -> Path:
    """A file whose document was changed by someone who knows how to compute checksums."""
    from safetensors.numpy import save_file

    small(path)
    import safetensors

    with safetensors.safe_open(path, framework="np") as stored:
        whole = json.loads(stored.metadata()[KEY])
        arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    document = change(whole["document"])
    digest = files._digest(files._canonical(document).encode())
    save_file(arrays, path, metadata={KEY: json.dumps({"document": document, "sha256": digest})})
    return path


@pytest.mark.parametrize(("change", "part"), [
    ({"format": 2}, "format 2"), ({"format": "1"}, "format 1"), ({"arrays": {}}, "do not match"),
    ({"arrays": {"w": 1, "n": 2}}, "lacks"), ({"kind": 5}, "lacks"), ({"header": []}, "lacks"),
    ({"header": {"x": {"$float": "seven"}}}, "lacks"), ({"schema": None}, "lacks"), ({"holds": 3}, "lacks"),
], ids=str)
def test_documents_that_are_not_ours(tmp_path: Path, change: dict[str, Any], part: str) -> None:
    refused(forged(tmp_path / "a.klimb", lambda document: document | change), part)


def test_a_document_that_is_no_document(tmp_path: Path) -> None:
    refused(forged(tmp_path / "a.klimb", lambda _: "text"), "cannot be read")


def test_kinds(tmp_path: Path) -> None:
    path = small(tmp_path / "a.klimb", schema=9)
    refused(path, "'fit'", "'example'", kind="fit")
    with pytest.raises(InputError, match="kind 'example'"):
        klimb.load(path)
    with pytest.raises(InputError, match=r"in version 2; got version 9.*Update klimb"):
        files.refuse_other_schema(read_container(path), 2)
    with pytest.raises(InputError, match=r"in version 2; got version 1.*fit again"):
        files.refuse_other_schema(read_container(small(path, schema=1)), 2)


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    whole = small(tmp_path / "a.klimb").read_bytes()
    path = tmp_path / "cut.klimb"
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        refused(path)
    path.write_bytes(whole + b"\0")
    refused(path)


def test_flipped_bits_are_caught_or_harmless(tmp_path: Path) -> None:
    path = small(tmp_path / "a.klimb")
    good, whole = read_container(path), path.read_bytes()
    rng = np.random.default_rng(0)
    harmless = 0
    for place in range(len(whole)):
        data = bytearray(whole)
        data[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        try:
            found = read_container(path)
        except InputError:
            continue
        harmless += 1
        assert (found.kind, found.schema, found.holds) == (good.kind, good.schema, good.holds)
        assert found.header == good.header
        for name, array in good.arrays.items():
            assert found.arrays[name].tobytes() == array.tobytes()
    assert harmless < 0.02 * len(whole)


@given(st.binary(max_size=200), st.integers(0, 400))
@settings(max_examples=100)
def test_garbage_is_refused(tmp_path_factory: pytest.TempPathFactory, garbage: bytes, announced: int) -> None:
    path = tmp_path_factory.mktemp("g") / "g.klimb"
    for content in (garbage, announced.to_bytes(8, "little") + b"{" + garbage):
        path.write_bytes(content)
        refused(path)


# -- old files stay readable


def test_golden_file() -> None:
    """Written once by format 1; never to be rewritten. A later klimb must go on reading it."""
    found = read_container(GOLDEN, "example")
    assert (found.schema, found.klimb_version, found.holds) == (1, "0.1.0", ("training inputs",))
    assert found.header == {"name": "golden", "levels": ["low", "hüben", "drüben"], "limit": float("inf"), "count": 3}
    assert np.array_equal(found.arrays["weights"], [[1.0, -2.5], [np.inf, 5e-324]])
    assert np.isnan(found.arrays["gap"]).all()
    assert np.array_equal(found.arrays["codes"], [-1, 0, 2**40])
    assert found.arrays["flags"].dtype == bool
    assert found.arrays["empty"].shape == (0, 4)


# -- what klimb.load brings back


def test_a_fit_comes_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = {"x": rng.standard_normal(60), "g": np.array(list("abc") * 20), "y": rng.poisson(2.0, 60)}
    fit = klimb.fit("y ~ x + (1|g)", data, family="poisson")
    fit.save(tmp_path / "m.klimb")
    back = klimb.load(tmp_path / "m.klimb")
    assert str(back) == str(fit)
    expected, found = fit.predict(data), back.predict(data)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert read_container(tmp_path / "m.klimb").holds == ("the response",)


def changed(fit: Any, path: Path, change: Any) -> Path:
    """A file of a fit whose header someone changed who knows how to compute checksums."""
    fit.save(path)
    found = read_container(path)
    header = json.loads(json.dumps(found.header))
    change(header["fit"])
    write_container(path, found.kind, header, found.arrays, schema=found.schema)
    return path


def set_at(*path: Any) -> Any:
    def change(document: Any) -> None:
        *places, last, value = path
        for place in places:
            document = document[place]
        document[last] = value

    return change


@pytest.mark.parametrize(("change", "part"), [
    (set_at("$", "magic"), "unknown kind of record 'magic'"), (set_at("extra", 1), "extra"),
    (lambda document: document.pop("bound"), "bound"), (set_at("bound", "high"), "bound is str"),
    (set_at("n_fits", True), "n_fits is bool"),
    (set_at("components", "weights", "name", "nobody"), "no array 'nobody'"),
    (set_at("components", "weights", [1.0]), "weights is tuple"), (set_at("notes", [1]), "notes is tuple"),
    (set_at("status", "name", "GREAT"), "GREAT"), (set_at("status", "kind", "colour"), "colour"),
    (set_at("model", {"$": "encoder"}), "encoder with the fields"),
    (set_at("model", "likelihood", None), "likelihood is NoneType"),
    (set_at("encoder", {"$": "again", "number": 999}), "something else"), (set_at("$", "prior.normal"), "prior.normal"),
    (set_at("model", "likelihood", "$", "os.system"), "os.system"),
], ids=lambda value: value if isinstance(value, str) else "")
def test_damaged_fits_are_refused_in_words(tmp_path: Path, change: Any, part: str) -> None:
    fit = klimb.fit("y ~ x", {"x": [0.0, 1.0, 2.0], "y": [1, 0, 1]}, family="poisson")
    with pytest.raises(InputError) as caught:
        klimb.load(changed(fit, tmp_path / "m.klimb", change))
    assert part in str(caught.value)
    assert "; got " in str(caught.value)


def test_a_file_of_another_record_is_no_fit(tmp_path: Path) -> None:
    write_container(tmp_path / "m.klimb", "fit", {"fit": {"$": "prior.lkj", "eta": 2.0}}, {}, schema=2)
    with pytest.raises(InputError, match="must hold a fit"):
        klimb.load(tmp_path / "m.klimb")


ESTIMATORS = [
    "GLMRegressor('negative_binomial')", "GLMRegressor('student_t(df=4)', fit_intercept=False)", "GLMClassifier()",
    "GLMClassifier(multi_class='ovr', link='probit')", "SparseLinearRegressor()", "GPRegressor('poisson', ard=True)",
    "GPRegressor(kernel=kernels.RBF(1.0, 0.5).bounded(lengthscale=(0.1, 9.0)) * kernels.Linear(), inducing=9)",
    "GPClassifier(multi_class='ovr')", "GPClassifier(max_iter=2)",
]


@pytest.mark.filterwarnings("ignore:GPClassifier did not converge:sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("text", "n_classes"), [
    (text, n_classes) for text in ESTIMATORS for n_classes in ((2, 3) if "Classifier" in text else (0,))
])
def test_estimators_come_back(tmp_path: Path, text: str, n_classes: int) -> None:
    import pandas as pd

    from klimb import kernels, sklearn

    estimator: Any = eval(text, {**vars(sklearn), "kernels": kernels})
    rng = np.random.default_rng(1)
    X = pd.DataFrame(rng.standard_normal((40, 2)), columns=["a", "b"])
    y: Any = rng.poisson(np.exp(X["a"]))
    if "Classifier" in text:
        y = np.array(["x", "y", "z"])[np.minimum(y, n_classes - 1)]
    estimator.fit(X, y)
    estimator.save(tmp_path / "e.klimb")
    back = klimb.load(tmp_path / "e.klimb")
    assert type(back) is type(estimator)
    assert str(back) == str(estimator)
    for name in ("bound_", "n_features_in_", "converged_", "n_iter_"):
        assert np.array_equal(getattr(back, name), getattr(estimator, name)), name
    assert back.feature_names_in_.tolist() == ["a", "b"]
    if hasattr(estimator, "predict_proba"):
        assert np.array_equal(back.predict(X), estimator.predict(X))
        assert np.allclose(back.predict_proba(X), estimator.predict_proba(X), rtol=1e-9)
    else:
        assert np.allclose(back.predict(X, return_std=True), estimator.predict(X, return_std=True), rtol=1e-9)
    if hasattr(estimator, "coef_"):
        assert np.allclose(back.coef_std_, estimator.coef_std_)
        assert read_container(tmp_path / "e.klimb").holds == ()
    else:
        assert read_container(tmp_path / "e.klimb").holds == ("training inputs", "responses")
        assert str(back.kernel_) == str(estimator.kernel_)
    if hasattr(estimator, "partial_fit"):
        more = [one.partial_fit(X[:5], y[:5]).bound_ for one in (back, estimator)]
        assert np.allclose(more[0], more[1], rtol=1e-6)


def test_estimators_that_do_not_fit_a_file(tmp_path: Path) -> None:
    from sklearn.exceptions import NotFittedError

    from klimb.sklearn import GLMClassifier, GLMRegressor

    X, y = np.arange(6.0)[:, None], np.arange(6.0)
    with pytest.raises(NotFittedError):
        GLMRegressor().save(tmp_path / "e.klimb")
    own = klimb.sites.Custom(lambda y, f: -((y - f) ** 2))
    with pytest.raises(InputError, match="functions cannot be saved"):
        GLMRegressor(own).fit(X, y).save(tmp_path / "e.klimb")
    wide = np.random.default_rng(0).standard_normal((3, 2001))  # no matrix of the size of its coefficients is stored
    model = GLMRegressor(prior_scale=1.0, dispersion=1.0).fit(wide, y[:3])
    model.save(tmp_path / "e.klimb")
    assert np.array_equal(klimb.load(tmp_path / "e.klimb").predict(wide), model.predict(wide))
    assert (tmp_path / "e.klimb").stat().st_size < 1_000_000
    GLMClassifier().fit(X, y > 2).save(tmp_path / "e.klimb")
    assert klimb.load(tmp_path / "e.klimb").classes_.tolist() == [False, True]
    assert not list(tmp_path.glob(".*"))
