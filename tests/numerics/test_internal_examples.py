"""Small functions behind the doors, each at a value that one can check by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from klimb.formula import parse
from klimb.formula.errors import FormulaError
from klimb.linalg.operators import as_operator


def close(found: object, wanted: object, tolerance: float = 1e-9) -> bool:
    return bool(np.allclose(np.asarray(found, dtype=float), np.asarray(wanted, dtype=float), rtol=tolerance, atol=1e-9))


def test_numbers_as_text() -> None:
    from klimb.report.text import decimals, fixed, percent, plain, table, visible

    assert [plain(x) for x in (0.012345, 1234567.0, 12.0, -3.14159, None)] == ["0.0123", "1.23e+06", "12", "-3.14", "-"]
    assert [decimals(x) for x in ([0.52, 0.031], [120.0, 35.0], [1e-9], [0.001, 40.0])] == [3, 0, None, None]
    assert [fixed(1.23456, 2), fixed(-0.0001, 2), fixed(1.5e-9, None)] == ["1.23", "0.00", "1.50e-09"]
    assert [percent(x) for x in (0.05, 0.975, 0.9)] == ["5%", "97.5%", "90%"]
    assert visible("two\nlines") == "two\\nlines"
    lines = table(["name", "mean"], [["x", "1.25"], ["long name", "-0.50"]]).split("\n")
    assert lines == ["name        mean", "x           1.25", "long name  -0.50"]


def test_axes_and_texts_of_pictures() -> None:
    from klimb.report.svg import escape, labels, round_numbers, shorten, span

    assert [labels(x) for x in ([0.0, 0.5, 1.0], [0.0, 2e6], [0.0, 1e-7])] == [
        ["0", "0.5", "1.0"], ["0", "2e6"], ["0", "1e-7"]]
    assert close(round_numbers(0.0, 1.0), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert round_numbers(-3.0e6, 4.0e6, 4) == [-2e6, 0.0, 2e6, 4e6]
    assert [span([1.0, 3.0], pad=0.0), span([2.0], pad=0.0)] == [(1.0, 3.0), (1.0, 3.0)]
    assert close(span([]), (-1.08, 1.08))
    assert (shorten("a long name", 7), shorten("short", 7)) == ("a long…", "short")
    assert escape('<b a="1">') == "&lt;b a=&quot;1&quot;&gt;"
    assert escape("it's\x00") == "it&#x27;s\\x00"


def test_records_of_reports() -> None:
    from klimb.report.diagnostics import calibration, pit_histogram, quantile_residuals
    from klimb.report.page import page
    from klimb.report.records import CoefficientRow, FitReport, to_json

    text = page(FitReport("y ~ <x>", "poisson", 0.9, 3, 0, -4.2, True, "converged", "Nothing to do.", ()))
    assert text.startswith("<!doctype html>")
    assert "<x>" not in text
    assert to_json(CoefficientRow("x", 1.0, 0.5, 0.2, float("inf")))["upper"] is None
    curve = calibration(np.repeat([0.2, 0.8], 50), np.full(100, 0.16), np.tile([0.0, 0, 0, 0, 1], 20))
    assert curve is not None
    assert curve.counts == (50, 50)
    assert close(curve.observed, [0.2, 0.2])
    even = (np.arange(100) + 0.5) / 100
    histogram = pit_histogram(even, even, bins=4)
    assert histogram is not None
    assert close(histogram.density, np.ones(4))
    assert close(quantile_residuals([0.025, 0.0], [0.025, 1e-300]), [-1.959963985, -8.0])


def test_arguments_of_the_command_line() -> None:
    from klimb.cli.fit import columns_of
    from klimb.cli.label import beside, check_keys
    from klimb.cli.reproduce import completions
    from klimb.cli.saved import unique_names
    from klimb.cli.shell import named
    from klimb.cli.tables.csvfile import guess_delimiter, number, shown

    assert named(("x=normal(0, 1)", "a=b=exponential(2)"), "--prior") == {"x": "normal(0, 1)", "a=b": "exponential(2)"}
    assert columns_of("y ~ log(x) + (1 | g)", "w")(("g", "w", "x", "y", "z")) == ["g", "w", "x", "y"]
    assert (check_keys(None, 2), check_keys(("Y", "n"), 2)) == ("12", "yn")
    assert str(beside("reviews.csv.gz", ".labels.jsonl")) == "reviews.labels.jsonl"
    assert beside("a.b/c", ".labels.csv").as_posix() == "a.b/c.labels.csv"
    assert completions("g-f") == ["G-figure1", "G-figure2"]
    assert unique_names(("a/m.klimb", "a/n.klimb")) == ["m", "n"]
    assert unique_names(("a/m.klimb", "b/m.klimb")) == ["a/m.klimb", "b/m.klimb"]
    assert [guess_delimiter(x) for x in (["a;b\n", "1,5;2\n"], ["a\tb\n"], ["x\n", "1\n"])] == [";", "\t", ","]
    assert (shown("maybe"), shown("a" * 70)) == ("'maybe'", f"'{'a' * 60}'... (70 characters)")
    assert [number(x) for x in (" 1.5e3 ", "12_3", "x")] == [1500.0, None, None]


def test_formulas() -> None:
    from klimb.formula.factors import contrast, contrast_labels, full_rank
    from klimb.formula.functions import FUNCTIONS, usage
    from klimb.formula.nodes import quote
    from klimb.formula.parts import expand
    from klimb.rows.quantiles import counted_quantile

    formula = parse("y ~ x + log(z) + (1 | g)")
    assert (str(formula.response), str(formula.right)) == ("y", "((x + log(z)) + (1 | g))")
    with pytest.raises(FormulaError, match=r"(?s)got the end of the formula.*y ~ x \+ *\n {12}\^"):
        parse("y ~ x + ")
    terms = expand(parse("y ~ a*b + (1 | g)"), ["y", "a", "b", "g"])
    assert [":".join(map(str, term)) for term in terms.fixed] == ["", "a", "b", "a:b"]
    assert full_rank([[], ["a"], ["a", "x"]], lambda key: key == "a") == [
        (), (("a", False),), (("a", True), ("x", True))]
    assert full_rank([["a"], ["a", "b"]], lambda key: True) == [(("a", True),), (("a", True), ("b", False))]
    assert contrast("Sum", ("a", "b", "c"), None).tolist() == [[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]
    assert contrast_labels("Treatment", ("a", "b", "c"), "b") == ("T.a", "T.c")
    assert usage(FUNCTIONS["poly"]) == "poly(x, degree=1, raw=False)"
    assert (quote("age"), quote("age at entry")) == ("age", "`age at entry`")
    assert close(counted_quantile(np.array([3.0, 1.0]), np.array([1.0, 2.0]), [0.0, 0.5, 0.75]), [1.0, 1.0, 2.0])


def test_averages_over_normals() -> None:
    from klimb.numerics.adaptive import Panels, bounded_average, derivative_free_moments, gaussian_average, integrate
    from klimb.numerics.mixtures import mixture_moments, mixture_quantile
    from klimb.numerics.responses import (
        double_exponential_tilted,
        lognormal_moments,
        power_moments,
        sigmoid_moments,
    )
    from klimb.numerics.softmax import softmax_moments
    from klimb.numerics.tilted import tilted

    zero, one = np.zeros(1), np.ones(1)
    panels = Panels(np.array([0, 1]), np.array([0.0, -1.0]), np.array([1.0, 2.0]))
    assert close(integrate(lambda rows, x: np.abs(x)[None], panels, count=2, functions=1).values, [[0.5, 2.5]])
    assert close(gaussian_average(lambda rows, f: np.maximum(f, 0.0)[None], zero, one, 1), (2 * np.pi) ** -0.5)
    mean = bounded_average(lambda rows, f: 1.0 / (1.0 + np.exp(-f))[None], one, np.full(1, 2.0))
    assert close(mean, 0.675056702338)
    found = derivative_free_moments(lambda rows, f: -np.abs(f), np.array([0.3]), one)
    assert close([part[0] for part in found], [-0.8335224842, 0.2358228444, 0.7627756309])  # E|f|, erf, twice a density
    half = np.array([0.5, 0.5])
    assert close(mixture_moments(half, np.array([[0.0], [2.0]]), np.ones((2, 1))), [[1.0], [2.0]])
    assert close(mixture_quantile(half, np.array([[-1.0], [1.0]]), np.ones((2, 1)), 0.5), 0.0)
    e = np.exp(1.0)
    assert close([part[0] for part in lognormal_moments(zero, np.full(1, 2.0))], [e, e**4, e**4 - e**2])
    assert close([part[0] for part in sigmoid_moments(zero, np.full(1, 1e-4))], [0.5, 0.24999375, 6.25e-06], 1e-4)
    value, _, bend = power_moments(zero, one, one)  # E|x| = sqrt(2 / pi)
    assert close([value**2 * np.pi, bend**2 * np.pi], [[2.0], [2.0]])
    t = double_exponential_tilted(zero, one, one)
    assert close([t.log_z[0], t.slope[0], t.curvature[0]], [-0.647874464449, 0.0, -0.525135276161])
    moments = softmax_moments(np.array([0]), np.zeros((3, 1)), np.zeros((3, 1)))
    assert close(moments.value, -np.log(3.0))
    assert close(moments.probabilities[:, 0], np.full(3, 1 / 3))
    t = tilted(lambda rows, f: (-0.5 * f * f, -f, -np.ones_like(f)), zero, one, log_concave=True)
    assert close([t.log_z[0], t.curvature[0]], [-0.5 * np.log(2.0), -0.5])


def test_special_functions() -> None:
    from klimb.numerics.special import exponentials, gamma_family, log_binomial, log_cosh_even, stirling_error

    assert close(stirling_error(np.array([1e6])) * 12e6, 1.0)
    assert close([part[0] for part in gamma_family(np.array([3.0]))], [np.log(2.0), 0.922784335098, 0.394934066848])
    assert close(np.exp(log_binomial(np.array([5.0]), np.array([2.0]))), 10.0)
    whole, first, second = (part[0] for part in exponentials(np.array([1e-9])))
    assert close([whole, first * 1e9, second * 2e18], [1.0, 1.0, 1.0], 2e-9)
    _, slope, _, bend = log_cosh_even(np.array([0.0, 4.0]))
    assert close(slope, [-0.125, -0.095199], 1e-5)
    assert close(bend, [0.25, 0.104994], 1e-5)


def test_searches() -> None:
    from klimb.boosting.paper import bracketed_newton
    from klimb.numerics.quasi_newton import climb
    from klimb.numerics.search import highest_point, monotone_root, smallest_integer

    found = climb(lambda x: (-float((x - 1) @ (x - 1)), -2 * (x - 1)), np.zeros(2), np.full(2, -5.0), np.full(2, 5.0),
                  tol=1e-6)
    assert found.converged
    assert close(found.x, np.ones(2), 1e-6)
    centre, width, inside = highest_point(lambda rows, x: -0.5 * (x - 3.0) ** 2, [np.zeros(1)])
    assert close(centre, 3.0, 1e-6)
    assert close(width, 1.0, 1e-2)
    assert inside.all()
    assert smallest_integer(lambda rows, k: k - 41.5, 1).tolist() == [42.0]
    assert close(monotone_root(lambda rows, t: t**3 - 8.0, np.zeros(1), np.ones(1)), 2.0)
    assert close(bracketed_newton(lambda a: (a - 0.3, 1.0)), 0.3)


def test_draws() -> None:
    from klimb.boosting.divergences import affinities
    from klimb.boosting.gaussians import Gaussians, gaps, nodes
    from klimb.numerics.lowdiscrepancy import matched_draws, normal_draws
    from klimb.numerics.pareto import bulk_ess, fit_generalised_pareto, pareto_quantile, rhat, smooth_log_weights
    from klimb.numerics.surrogate import fit_surrogate

    draws = np.random.default_rng(0).standard_normal((4, 1000, 1))
    assert bulk_ess(draws)[0] > 3000
    assert abs(rhat(draws)[0] - 1.0) < 0.01
    assert abs(rhat(draws + np.arange(4)[:, None, None])[0] - 1.6) < 0.1
    z = normal_draws(1000, 3)
    assert np.allclose(z.mean(0), 0)
    assert np.allclose(z.T @ z / 1000, np.eye(3), atol=0.02)
    z = matched_draws(400, 5)
    assert np.allclose(z.T @ z / 400, np.eye(5))
    z = nodes(16, 2)
    assert z.shape == (16, 2)
    assert np.allclose(z.T @ z / 16, np.eye(2))
    assert close(gaps(np.array([0.0, 1.0]), np.array([0.5, 0.5])), [np.log((1 + np.e) / 2) - 0.5, 0.5])
    assert close(affinities(Gaussians(np.array([[0.0], [2.0]]), np.ones((2, 1, 1))))[0], [1.0, np.exp(-0.5)])
    k, sigma = fit_generalised_pareto(pareto_quantile((np.arange(1, 2001) - 0.5) / 2000, 0.5, 2.0))
    assert abs(k - 0.5) < 0.01
    assert abs(sigma - 2.0) < 0.05
    exponential = -np.log1p(-(np.arange(4000) + 0.5) / 4000) / 3.0  # rate 3; for a target with rate 1, k = 2/3
    assert abs(smooth_log_weights(2.0 * exponential).khat - 2 / 3) < 0.05
    z = np.random.default_rng(0).standard_normal((80, 2))
    surrogate = fit_surrogate(z, -0.5 * (z**2).sum(1) + 0.2 * np.sin(z[:, 0]), np.full(80, 1 / 80))
    assert surrogate is not None
    assert surrogate.error < 1e-3


def test_matrices() -> None:
    from scipy.sparse import csr_matrix

    from klimb.apps.label.model import main_directions
    from klimb.kernels import RBF
    from klimb.kernels.inducing_points import GreedyPoints
    from klimb.linalg.factors import cheapest_plan, factorise
    from klimb.linalg.images import daubechies
    from klimb.linalg.krylov import lanczos, solve
    from klimb.linalg.krylov.surrogates import LowRankPlusDiagonal
    from klimb.linalg.normal_matrix import NormalMatrix
    from klimb.numerics.dense import Whitener

    A = NormalMatrix(np.ones(2), [(as_operator([[1.0, 2.0]], "B"), 1.0)])
    for found in (factorise(A), LowRankPlusDiagonal(np.ones(2), np.array([[1.0], [2.0]]))):
        assert close(found.solve(np.array([1.0, 5.0])), [-5 / 6, 4 / 3])
        assert close(found.log_det, np.log(6.0))
    solution = solve(A, np.array([2.0, 2.0]))
    assert solution.converged
    assert close(solution.x, [1.0, 0.0])
    wide = NormalMatrix(np.ones(400), [(as_operator(np.ones((3, 400)), "B"), 1.0)])
    assert cheapest_plan(wide).kind == "dual"
    D = np.diag([1.0, 2.0, 3.0])
    assert close(lanczos(lambda U: D @ U, 3, 3, rng=np.random.default_rng(0)).ritz[0], [1.0, 2.0, 3.0])
    assert close(daubechies(1), np.full(2, 0.5**0.5))
    assert close(Whitener(np.array([[2.0, 0.0], [1.0, 1.0]])).whitened(np.array([[2.0, 3.0]])), [[1.0, 2.0]])
    points = GreedyPoints(RBF(), np.linspace(0.0, 4.0, 9)[:, None])
    assert points.extend(3).ravel().tolist() == [0.0, 4.0, 2.0]
    assert points.unexplained < 0.2
    X = csr_matrix(np.outer([1.0, 2.0, 3.0, 4.0], [0.6, 0.8, 0.0, 0.0, 0.0]))
    assert np.allclose(np.abs(main_directions(X, 1)).ravel(), [0.6, 0.8, 0.0, 0.0, 0.0])


def test_targets_and_blocks() -> None:
    from klimb.active.inclusion import expected_gamma
    from klimb.active.pool import as_pool
    from klimb.boosting import Positive, Real
    from klimb.boosting.target import Target
    from klimb.boosting.transforms import TransformedBlocks
    from klimb.bridges.densities import gathered
    from klimb.priors import Beta
    from klimb.sites import Gaussian
    from klimb.theta import BoundedParameter

    assert close(expected_gamma(Gaussian(scale=0.5), np.zeros(1), np.ones(1)), 4.0)
    assert as_pool([[1.0, 2.0], [3.0, 4.0]], intercept=True).times(np.array([0.0, 0.0, 5.0])).tolist() == [5.0, 5.0]
    target = Target(lambda x: -0.5 * np.dot(x, x), 2)
    value, slope = target.with_slopes(np.array([[1.0, 2.0]]), scale=np.ones(2))
    assert close(value, -2.5)
    assert close(slope, [[-1.0, -2.0]], 1e-4)
    assert (target.batched, target.n_values) == (False, 11)
    blocks = TransformedBlocks.of([Real(2), Positive()], 3)
    assert blocks.to_user(np.zeros((1, 3)))[0].tolist() == [[0.0, 0.0, 1.0]]
    assert blocks.to_free(np.array([[1.0, 2.0, 1.0]])).tolist() == [[1.0, 2.0, 0.0]]
    found = gathered(["mu", "a.1.1", "a.2.1", "a.1.2", "a.2.2"], np.arange(5.0)[None])
    assert found["mu"].tolist() == [0.0]
    assert found["a"].tolist() == [[[1.0, 3.0], [2.0, 4.0]]]
    block = BoundedParameter("phi", Beta(1.0, 1.0), 0.0, 1.0)  # a logistic density of theta
    assert close(block.value(np.zeros(1)), 0.5)
    assert close(block.log_prior(np.zeros(1))[0], np.log(0.25))


def test_words_and_shares_of_the_labelling_page() -> None:
    from klimb.apps.label.figures import Foreseen, _percent, check_curve, kappa, share
    from klimb.apps.label.items import items_of, levels, normal_form, spans, tf_idf
    from klimb.apps.label.journal import csv_text, decode, encode, standing
    from klimb.apps.label.progress import LabelProgress

    assert [_percent(x) for x in (0.0623, 0.0004, 0.0, 0.31)] == ["6.2%", "less than 0.1%", "0%", "31%"]
    assert (kappa(np.array([0, 0, 1, 1]), np.array([0, 0, 1, 0])), kappa(np.zeros(3), np.zeros(3))) == (0.5, None)
    curve = check_curve([Foreseen(False, True), Foreseen(True, False), Foreseen(True, True)])
    assert [row[:2] for row in curve] == [(1, 1.0), (3, 0.5)]
    assert close(share(9, 10)[2:], (0.652, 0.977), 2e-2)
    assert share(0, 0)[2:] == (0.0, 1.0)
    items = items_of({"review": ["good film", "bad film", None], "stars": [5.0, 1.0, 3.0]}, text=["review"])
    assert (items.names, items.askable.tolist()) == (("film",), [0, 1])
    assert items.notes == ("1 of 3 rows has no text and will not be asked.",)
    vocabulary, X = tf_idf(["a good film", "a bad film", "good good"])
    assert vocabulary.words == ("a", "good", "film")
    assert close(X.toarray()[2], [0.0, 1.0, 0.0])
    assert [normal_form(x) for x in ("ＣＡＦÉ", "Don’t", "Straße")] == ["café", "don't", "strasse"]
    assert list(spans("Don't worry")) == [("Don't", 0, 5), ("worry", 6, 11)]
    assert [word for word, _, _ in spans("東京都 2024 naïve 😀!")] == ["東京", "京都", "2024", "naïve", "😀"]
    entry = {"row": 7, "id": "7", "label": "yes", "time": "2026-01-02T03:04:05.678Z", "p": 0.25, "why": "model"}
    assert csv_text([entry]) == "row,id,label,time,probability,chosen\n7,7,yes,2026-01-02T03:04:05.678Z,0.25,model\n"
    given = [{"kind": "label", "row": 1}, {"kind": "skip", "row": 2}, {"kind": "undo"}, {"kind": "undo"},
             {"kind": "label", "row": 3}]
    assert standing(given) == [{"kind": "label", "row": 3}]
    assert encode({"kind": "skip", "row": 3}) == b'{"kind":"skip","row":3,"crc":"22b5e402"}\n'
    assert decode(encode({"row": 3}).rstrip()) == {"row": 3}
    assert decode(b'{"row":3,"crc":"0000') is None
    progress = LabelProgress(askable=10, batch=2)
    assert [order.size for order in progress.place_orders()] == [2]
    progress.fulfil(0, [7, 3])
    progress.answer(7, 1)
    assert [order.labels for order in progress.place_orders()] == [((7, 1),)]
    undone = progress.undo()
    assert (undone.row, undone.label, list(progress.queue)) == (7, 1, [7, 3])
    assert levels(np.array([0.0, 0.05, -0.2, 0.25]), 0.25).tolist() == [0, 1, -2, 2]
    assert levels(np.array([0.2, 2.0]), 2.0).tolist() == [0, 3]


def test_tables_of_the_papers() -> None:
    from klimb.apps.papers.experiment import PaperTable, by_parts, canonical, compact, stem
    from klimb.apps.papers.pictures import as_markdown, seconds, with_error

    lines = as_markdown(PaperTable("Losses", ("set", "ours"), (("a|b", "0.41"),))).split("\n")
    assert lines == ["**Losses**", "", "| set | ours |", "|---|---:|", "| a\\|b | 0.41 |"]
    assert [with_error(x, 2) for x in ([1.0, 2.0, 3.0], [1.0], [])] == ["2.00 (0.58)", "1.00", "-"]
    assert [seconds(x) for x in (0.0123, 4.21, 75.0, 4000.0, 40000.0)] == ["0.012 s", "4.2 s", "75 s", "67 min", "11 h"]
    assert by_parts({"sonar/ep/3": {"loss": 0.5}}) == {("sonar", "ep", "3"): {"loss": 0.5}}
    assert canonical("a-TABLE2") == "A-table2"
    assert (stem("A-table2", "full"), stem("A-table2", "quick")) == ("A-table2", "A-table2-quick")
    assert compact({"a": [1, 2.5], "b": {"c": None}}) == '{\n "a": [1, 2.5],\n "b": {\n  "c": null\n }\n}'


def test_numbers_of_a_formula() -> None:
    from klimb.formula.numeric import learn_numeric
    from klimb.rows.frames import read_frame
    from klimb.rows.quantiles import counted_quantile
    from klimb.rows.table import Source

    source = Source(read_frame({"x": [1.0, 2.0, 4.0]}))
    expression = learn_numeric(parse("~ center(log2(x))").right, source)
    assert str(expression) == "center(log2(x))"
    assert close(expression.evaluate(source), [-1.0, 0.0, 1.0])
    assert close(counted_quantile(np.array([3.0, 1.0]), np.array([1.0, 2.0]), [0.0, 0.5, 0.75]), [1.0, 1.0, 2.0])


def test_triangles() -> None:
    from klimb.numerics.dense import mirror, triangle

    assert mirror(np.array([[1.0, 9.0, 9.0], [2.0, 3.0, 9.0], [4.0, 5.0, 6.0]])).tolist() == [
        [1.0, 2.0, 4.0], [2.0, 3.0, 5.0], [4.0, 5.0, 6.0]]
    A = np.random.default_rng(0).standard_normal((500, 3)) @ np.array([[1, 0, 5], [0, 1, 0], [0, 0, 1e-3]])
    R = triangle(lambda: (A[k : k + 100] for k in range(0, 500, 100)), 3)
    assert np.allclose(R.T @ R, A.T @ A, rtol=1e-13)
    assert (np.triu(R) == R).all()


def test_inverse_roots_of_a_diagonal() -> None:
    from klimb.linalg.krylov.cg import inverse_roots
    from klimb.linalg.normal_matrix import NormalMatrix

    found = inverse_roots(NormalMatrix(np.array([4.0, 9.0])), np.ones(2), np.eye(2), 1e-8)
    assert found.x.round(3).tolist() == [[0.5, 0.0], [0.0, 0.333]]
    assert close(found.logs.sum(), np.log(36.0), 1e-5)


def test_rules_and_pieces_of_posteriors() -> None:
    from klimb.boosting.gaussians import Gaussians
    from klimb.trust.levels import quadrature
    from klimb.trust.marginals import skewed_pieces
    from klimb.trust.tempered import tempered

    nodes, log_weights = quadrature(1, 9)
    assert close(np.exp(log_weights) @ nodes[:, 0] ** 4, 3.0)
    shares, means, variances = skewed_pieces(np.array([0.8]))
    assert (shares @ (variances + means**2)).round(9).tolist() == [1.0]
    assert (shares @ (means**3 + 3 * means * variances)).round(2).tolist() == [0.79]
    start = Gaussians(np.zeros((1, 2)), np.eye(2)[None])
    found = tempered(lambda z: (-0.5 * ((z - 3.0) ** 2).sum(axis=1), 3.0 - z), start, 16)
    assert np.abs(found.weights @ found.z - 3.0).max() < 0.2
    assert abs(round(found.log_evidence - np.log(2 * np.pi))) == 0


def test_hyperparameters() -> None:
    from klimb.priors import exponential, fixed
    from klimb.theta import PositiveParameter, Theta
    from klimb.theta.single import Support

    half, short = Support(0.0, np.inf), Support(-1.0, 1.0)
    assert (float(half.value(0.0)), float(short.value(0.0))) == (1.0, 0.0)
    assert round(float(short.theta(short.value(2.0))), 12) == 2.0
    block = PositiveParameter("sigma", exponential(2.0), begin=1.0)
    assert (block.names, round(block.value(np.log([3.0])), 12)) == (("sigma",), 3.0)
    assert PositiveParameter("sigma", fixed(2.0)).value(np.zeros(0)) == 2.0
    scale = PositiveParameter("prior scale", exponential(1.0))
    theta = Theta.of([scale, PositiveParameter("sigma", exponential(1.0)), scale])
    assert theta.names == ("prior scale", "sigma")
    assert [part.tolist() for part in theta.split(np.array([0.5, 1.0]))] == [[0.5], [1.0]]


def test_posteriors_of_weights() -> None:
    from klimb.latents.base import sites_of
    from klimb.latents.corrected_weights import CutWeights, WidenedWeights
    from klimb.latents.outputs import CoupledOutputs, independent_variances
    from klimb.latents.weights_posterior import DenseWeights

    assert sites_of(np.array([0, 2]), 2, 6).tolist() == [0, 2, 3, 5]
    row = np.array([[1.0, -1.0]])
    q = DenseWeights(np.array([1.0, 2.0]), np.array([[1.0, 0.0], [1.0, 2.0]]))
    assert [x.tolist() for x in q.at(row, 0.5)] == [[-1.0], [4.5]]
    assert q.moments(slice(0, 2)).blocks(1).tolist() == [[11.0]]  # E[w_1^2] + E[w_2^2]
    wide = WidenedWeights(q.mean, q, np.array([[1.0, 0.0]]), np.zeros((0, 3)))
    assert [x.tolist() for x in wide.at(row, 0.5)] == [[-1.0], [5.5]]
    ends = DenseWeights(np.array([-1.0]), np.eye(1)), DenseWeights(np.array([1.0]), np.eye(1))
    cut = CutWeights(DenseWeights(np.zeros(1), np.sqrt(2.0) * np.eye(1)), np.full(2, 0.5), ends)
    assert close(cut.sd(), [1.41421356], 1e-8)
    assert [share for share, _ in cut.split()] == [0.5, 0.5]
    both = CoupledOutputs(np.zeros(2), np.array([[2.0, 1.0], [2.0, -1.0]]), 2)  # one weight each, sd of both large
    assert both.at(np.ones((1, 1)))[1].tolist() == [5.0, 5.0]
    assert independent_variances(both.within(np.ones((1, 1)))).tolist() == [[2.0, 2.0]]  # their difference has 4


def test_texts_and_files(tmp_path: Path) -> None:
    from klimb._calls import parse_call
    from klimb._files import whole_file
    from klimb._stan import comment, literal

    assert parse_call("student_t(df=4)", "family") == ("student_t", {"df": 4.0})
    assert comment("x; } model {*/") == "x_ _ model _*_"
    assert (literal(2), literal(0.1)) == ("2.0", "0.1")
    with whole_file(tmp_path / "a.txt") as stream:
        stream.write("all of it")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.txt", "all of it")]
