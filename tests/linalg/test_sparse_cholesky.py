"""Sparse Cholesky against dense algebra, on every kind of pattern that the ordering treats differently."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from klimb.errors import NotPositiveDefiniteError
from klimb.linalg import ordering, sparse_cholesky
from klimb.linalg.sparse_cholesky import SparseCholesky, SymbolicCholesky


@contextmanager
def small_parts(leaf: int = 4, small: int = 2) -> Iterator[None]:
    """Parts and sets small enough for all of the code to run on matrices that dense algebra can check."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordering, "LEAF", leaf)
        patch.setattr(sparse_cholesky, "SMALL", small)
        yield


def laplacian(head: Any, tail: Any, size: int, extra: float = 0.5, seed: int = 0) -> sp.csc_array:
    """A weighted graph Laplacian plus a multiple of the identity."""
    weights = np.random.default_rng(seed).uniform(0.2, 2.0, len(head))
    half = sp.coo_array((weights, (head, tail)), shape=(size, size))
    adjacency = (half + half.T).tocsr()
    return finished(sp.diags_array(np.asarray(adjacency.sum(axis=1)).ravel() + extra) - adjacency)


def finished(matrix: Any) -> sp.csc_array:
    out = sp.csc_array(matrix)
    out.sum_duplicates()
    out.sort_indices()
    return out


def lattice(n: int, m: int) -> sp.csc_array:
    number = np.arange(n * m).reshape(n, m)
    head = np.r_[number[1:].ravel(), number[:, 1:].ravel()]
    return laplacian(head, np.r_[number[:-1].ravel(), number[:, :-1].ravel()], n * m)


def band(n: int, width: int) -> sp.csc_array:
    head = np.concatenate([np.arange(n - k) for k in range(1, width + 1)])
    return laplacian(head, head + np.concatenate([np.full(n - k, k) for k in range(1, width + 1)]), n)


def bordered(matrix: sp.csc_array, rows: int) -> sp.csc_array:
    """A few rows that are coupled to everything."""
    B = sp.csc_array(np.random.default_rng(3).normal(size=(matrix.shape[0], rows)) * 0.05)
    return finished(sp.block_array([[matrix, B], [B.T, sp.eye_array(rows) * (1.0 + 0.1 * matrix.shape[0])]]))


def crossed(rows: int, first: int, second: int, slopes: bool = False) -> sp.csc_array:
    rng = np.random.default_rng(5)
    i, j, r = rng.integers(0, first, rows), rng.integers(0, second, rows), np.arange(rows)
    blocks = [sp.csr_array((np.ones(rows), (r, at)), shape=(rows, levels)) for at, levels in ((i, first), (j, second))]
    if slopes:
        blocks.append(sp.csr_array((rng.normal(size=rows), (r, i)), shape=(rows, first)))
    Z = sp.hstack(blocks)
    return finished(Z.T @ Z + sp.eye_array(Z.shape[1]))


def tree(n: int, seed: int) -> sp.csc_array:
    rng = np.random.default_rng(seed)
    return laplacian(np.arange(1, n), (rng.random(n - 1) * np.arange(1, n)).astype(int), n)


def with_leaves(matrix: sp.csc_array) -> sp.csc_array:
    eye = sp.eye_array(matrix.shape[0])
    return finished(sp.block_array([[matrix + eye, -eye], [-eye, 2.0 * eye]]))


STRUCTURED = {
    "lattice": lattice(17, 23),
    "chain": band(150, 1),
    "band2": band(150, 2),
    "band7": band(150, 7),
    "block chain": finished(sp.kron(band(40, 1), np.ones((3, 3)) + np.eye(3))),
    "bordered band": bordered(band(200, 2), 3),
    "arrow": bordered(sp.csc_array(sp.eye_array(300)), 2),
    "crossed": crossed(900, 120, 15),
    "slopes": crossed(900, 60, 15, slopes=True),
    "tree": tree(300, 0),
    "star": laplacian(np.arange(1, 80), np.zeros(79, int), 80),
    "leaves on a lattice": with_leaves(lattice(9, 11)),
    "leaves on a band": with_leaves(band(80, 2)),
    "disconnected": finished(sp.block_diag([lattice(5, 6), band(20, 2), sp.eye_array(4), tree(30, 2)])),
    "one": finished(sp.eye_array(1)),
    "diagonal": finished(sp.eye_array(60) * 3.0),
    "dense": finished(np.full((30, 30), 0.5) + np.eye(30)),
}


def agrees(matrix: sp.csc_array, coordinates: Any = None, tolerance: float = 1e-10) -> SymbolicCholesky:
    """Everything that a factor gives, beside dense algebra."""
    symbolic = SymbolicCholesky(matrix, coordinates)
    factor = symbolic.factor(matrix.data)
    dense = matrix.toarray()
    inverse = np.linalg.inv(dense)
    column = np.repeat(np.arange(len(dense)), np.diff(matrix.indptr))
    scale = np.abs(inverse).max()
    close = {"rtol": tolerance, "atol": tolerance * scale}
    np.testing.assert_allclose(factor.inverse_entries, inverse[matrix.indices, column], **close)
    np.testing.assert_allclose(factor.logdet, np.linalg.slogdet(dense)[1], rtol=1e-10, atol=1e-9)
    b = np.random.default_rng(1).normal(size=(len(dense), 3))
    np.testing.assert_allclose(factor.solve(b), inverse @ b, rtol=1e-8, atol=tolerance * len(b) * scale)
    np.testing.assert_allclose(factor.solve(b[:, 0]), factor.solve(b)[:, 0], rtol=1e-8, atol=tolerance * scale)
    squares = np.einsum("ij,ij->j", b, inverse @ b)
    np.testing.assert_allclose((factor.half_solve(b) ** 2).sum(axis=0), squares, rtol=max(1e-9, tolerance))
    root = factor.root_solve(np.eye(len(dense)))
    np.testing.assert_allclose(root @ root.T, inverse, **close)
    return symbolic


@st.composite
def patterns(draw: st.DrawFn) -> sp.csc_array:
    """Random graphs of 1 to 40 nodes, from no edge to many; most are not connected."""
    size = draw(st.integers(1, 40))
    edges = draw(st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)), max_size=3 * size))
    kept = [(i, j) for i, j in edges if i != j]
    head, tail = np.array(kept, dtype=int).reshape(-1, 2).T
    return laplacian(head, tail, size, seed=draw(st.integers(0, 100)))


@given(matrix=patterns(), leaf=st.integers(1, 8), small=st.sampled_from([2, 1000]))
@settings(max_examples=150, deadline=None)
def test_random_patterns_agree_with_dense_algebra(matrix: sp.csc_array, leaf: int, small: int) -> None:
    with small_parts(leaf, small):
        agrees(matrix)


@given(matrix=patterns(), data=st.data())
@settings(max_examples=50, deadline=None)
def test_any_coordinates_give_the_same_matrix(matrix: sp.csc_array, data: st.DataObject) -> None:
    size = matrix.shape[0]
    points = data.draw(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 1)), min_size=size, max_size=size))
    with small_parts():
        agrees(matrix, np.array(points, dtype=float))


@pytest.mark.parametrize("small", [2, 1000])
@pytest.mark.parametrize("name", STRUCTURED)
def test_structured_patterns_agree_with_dense_algebra(name: str, small: int) -> None:
    with small_parts(small=small):
        agrees(STRUCTURED[name])


def test_sets_are_used_where_they_should_be() -> None:
    assert [len(stage.taken) for stage in agrees(bordered(sp.csc_array(sp.eye_array(1200)), 2)).stages] == [1200]
    stages = agrees(crossed(12000, 1100, 30)).stages
    assert [(len(stage.taken), stage.dense) for stage in stages] == [(1100, True)]
    assert len(agrees(with_leaves(lattice(24, 24))).stages) == 1
    assert not agrees(lattice(33, 33)).stages


def test_products_too_many_to_list_are_products_of_matrices_in_blocks_of_rows() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse_cholesky, "PAIRS", 100)
        patch.setattr(sparse_cholesky, "BLOCK", 1000)
        (stage,) = agrees(bordered(sp.csc_array(sp.eye_array(1100)), 4)).stages
    assert stage.dense
    assert not stage.listed


def test_a_lattice_is_dissected_as_well_without_coordinates_as_with_them() -> None:
    n = 60
    points = np.stack(np.meshgrid(np.arange(n), np.arange(n), indexing="ij"), axis=-1).reshape(-1, 2).astype(float)
    matrix = lattice(n, n)
    without, given_ = SymbolicCholesky(matrix), SymbolicCholesky(matrix, points)
    assert without.tree.length < 1.2 * given_.tree.length < 1.2 * 0.03 * n**4
    for tree_ in (without.tree, given_.tree):
        assert max(front.pivots for front in tree_.fronts) <= max(1.3 * n, 1.3 * ordering.LEAF)


def test_storage_of_a_chain_grows_linearly() -> None:
    lengths = [SymbolicCholesky(band(n, 2)).tree.length / n for n in (2000, 16000)]
    assert lengths[1] < 1.2 * lengths[0]


def test_one_analysis_serves_many_values() -> None:
    matrix = lattice(12, 12)
    symbolic = SymbolicCholesky(matrix)
    first, second = symbolic.factor(matrix.data), symbolic.factor(4.0 * matrix.data)
    np.testing.assert_allclose(second.inverse_entries, first.inverse_entries / 4.0, rtol=1e-12)
    np.testing.assert_allclose(second.logdet, first.logdet + 144 * np.log(4.0), rtol=1e-12)
    assert first.inverse_entries is first.inverse_entries


def test_factors_are_deterministic_and_leave_their_input_alone() -> None:
    matrix = bordered(lattice(20, 20), 2)
    before, b = matrix.data.copy(), np.ones(402)
    results = [SymbolicCholesky(matrix).factor(matrix.data) for _ in range(2)]
    np.testing.assert_array_equal(results[0].inverse_entries, results[1].inverse_entries)
    np.testing.assert_array_equal(results[0].solve(b), results[1].solve(b))
    np.testing.assert_array_equal(matrix.data, before)
    np.testing.assert_array_equal(b, 1.0)


@given(matrix=patterns(), shift=st.floats(-3.0, 3.0), small=st.sampled_from([2, 1000]))
@settings(max_examples=100, deadline=None)
def test_only_indefinite_matrices_are_refused(matrix: sp.csc_array, shift: float, small: int) -> None:
    shifted = finished(matrix + shift * sp.eye_array(matrix.shape[0]))
    least, most = np.linalg.eigvalsh(shifted.toarray())[[0, -1]]
    with small_parts(small=small):
        if least > 1e-6 * most:
            agrees(shifted, tolerance=1e-7)
        elif least < -1e-9 * max(abs(most), 1.0):
            with pytest.raises(NotPositiveDefiniteError):
                SymbolicCholesky(shifted).factor(shifted.data)


@pytest.mark.parametrize("small", [2, 1000])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1.0, 0.0])
def test_bad_entries_never_give_numbers(bad: float, small: int) -> None:
    matrix = lattice(9, 9)
    column = np.repeat(np.arange(81), np.diff(matrix.indptr))
    with small_parts(small=small):
        symbolic = SymbolicCholesky(matrix)
        for node in (0, 40, 80):
            values = matrix.data.copy()
            values[(matrix.indices == node) & (column == node)] = bad
            with pytest.raises(NotPositiveDefiniteError):
                symbolic.factor(values)


def test_a_singular_matrix_is_refused_and_a_nearly_singular_one_is_accurate() -> None:
    twins = finished(sp.kron(lattice(5, 5), np.ones((2, 2))))  # the second of each pair has the pivot 0 up to rounding
    with pytest.raises(NotPositiveDefiniteError):
        SymbolicCholesky(twins).factor(twins.data)
    D = np.diff(np.eye(60), 2, axis=0)
    near = finished(D.T @ D + 1e-7 * np.eye(60))
    with small_parts():
        factor: SparseCholesky = SymbolicCholesky(near).factor(near.data)
    # the inverse is dominated by the two straight lines, whose variance is 1e7: known in closed form to leading order
    X = np.linalg.qr(np.stack([np.ones(60), np.arange(60.0)], axis=1))[0]
    values, vectors = np.linalg.eigh(D.T @ D)
    exact = 1e7 * (X**2).sum(axis=1) + (vectors[:, 2:] ** 2 / (values[2:] + 1e-7)).sum(axis=1)
    Z = near.copy()
    Z.data = factor.inverse_entries
    np.testing.assert_allclose(Z.diagonal(), exact, rtol=1e-6)


@pytest.mark.parametrize("matrix", [band(30_000, 2), lattice(120, 90), tree(20_000, 4), crossed(20_000, 3000, 200)],
                         ids=["band", "lattice", "tree", "crossed"])
def test_large_matrices_satisfy_their_identities(matrix: sp.csc_array) -> None:
    """tr M Z = n, M x = b, and the derivative of the log determinant is Z."""
    symbolic = SymbolicCholesky(matrix)
    factor = symbolic.factor(matrix.data)
    Z, n = factor.inverse_entries, matrix.shape[0]
    np.testing.assert_allclose(matrix.data @ Z, n, rtol=1e-10)
    b = np.random.default_rng(0).normal(size=n)
    np.testing.assert_allclose(matrix @ factor.solve(b), b, atol=1e-9)
    step = sp.csc_array((1e-4 * np.abs(matrix.data), matrix.indices, matrix.indptr), shape=matrix.shape)
    up, down = symbolic.factor(matrix.data + step.data), symbolic.factor(matrix.data - step.data)
    np.testing.assert_allclose(up.logdet - down.logdet, 2.0 * step.data @ Z, rtol=1e-5)


def test_factors_of_one_analysis_do_not_disturb_each_other() -> None:
    matrix = lattice(40, 40)
    symbolic, b = SymbolicCholesky(matrix), np.arange(1600.0)
    first = symbolic.factor(matrix.data)
    inverse, solved = first.inverse_entries.copy(), first.solve(b)
    for scale in (2.0, 3.0):  # each takes the memory that the one before it gave back
        factor = symbolic.factor(scale * matrix.data)
        np.testing.assert_allclose(scale * factor.inverse_entries, inverse, rtol=1e-12)
        del factor
    np.testing.assert_allclose(first.solve(b), solved, rtol=1e-14)
    np.testing.assert_allclose(first.inverse_entries, inverse, rtol=0.0)


def test_one_column_is_solved_as_several_are() -> None:
    matrix = lattice(40, 40)
    factor, b = SymbolicCholesky(matrix).factor(matrix.data), np.random.default_rng(0).standard_normal((1600, 3))
    for solve in (factor.solve, factor.half_solve, factor.root_solve):
        np.testing.assert_allclose(solve(b)[:, 1], solve(b[:, 1]), rtol=1e-11, atol=1e-12)
