"""Every item of the five papers: the code that does it, the test that would fail without it, the page that explains it.

    python tools/papers_coverage.py        writes docs/papers/coverage.md

`tests/apps/papers/test_coverage.py` checks that every name here exists and that the page is up to date.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "papers" / "coverage.md"
PAPERS = {"P": "[A], [B] KL proximal variational inference", "F": "[S] Fixed-point operator",
          "C": "[N] Convex variational inference for large models", "B": "[G] Boosting variational inference"}
NUMBERS, OPTIMUM, LOOP = ("tests/apps/papers/test_numbers.py", "tests/equivalence/test_one_optimum.py",
                          "tests/infer/test_loop.py")
NETWORK, DOUBLE, DUALS = ("tests/conjugate/test_network.py", "tests/infer/test_double_loop.py",
                          "tests/sites/test_duals.py")
CERTIFICATE, REGION, THEORY = ("tests/infer/test_certificate.py", "tests/infer/test_trust_region.py",
                               "tests/boosting/test_theory.py")
FACTS, SCORES, COUNTS = ("tests/contracts/test_site_facts.py", "tests/active/test_scores.py",
                         "tests/conjugate/test_count_factorisation.py")
SUMS = "tests/rows/test_reduction.py"
A, S, N, G = "papers/kl-proximal.md", "papers/fixed-point.md", "papers/convex.md", "papers/boosting.md"


class Item(NamedTuple):
    """``code`` is module:name, ``test`` path::function, ``page`` a file of the documentation, ``left`` what is open."""

    key: str
    what: str
    code: str
    test: str
    page: str
    left: str = ""


ITEMS = (
    Item("P1", "the bound of a latent-variable model, (1)", "klimb.infer.problem:Problem",
         f"{OPTIMUM}::test_the_optimum_is_one_of_the_full_bound", "one-loop.md"),
    Item("P2", "KL proximal-point, (2)", "klimb.conjugate:ProximalPoint",
         f"{NETWORK}::test_every_step_reaches_the_same_optimum", "conjugate.md"),
    Item("P3", "trust region of the natural gradient, (3)", "klimb.steps:TrustRegion",
         f"{REGION}::test_it_is_the_proximal_step_at_the_matching_beta", A),
    Item("P4", "conjugate networks with factorised q, (4), (5)", "klimb.conjugate:fit",
         f"{NETWORK}::test_the_bound_never_falls", "conjugate.md"),
    Item("P5", "Theorem 1: proximal point is a natural gradient", "klimb.conjugate:ProximalPoint",
         f"{NETWORK}::test_proximal_point_is_a_step_along_the_natural_gradient", "conjugate.md"),
    Item("P6", "conditions A, B, C of proximal point", "klimb.infer.methods:safe_step",
         f"{CERTIFICATE}::test_the_condition_of_eq_8_holds_with_alpha", A),
    Item("P7", "the split into easy and difficult factors, (6)", "klimb.conjugate:potential",
         f"{NETWORK}::test_a_site_on_a_fixed_prior_is_the_engine", "conjugate.md"),
    Item("P8", "KL proximal-gradient, (7)", "klimb.steps:Proximal",
         f"{OPTIMUM}::test_proximal_steps_follow_the_papers_equations", A),
    Item("P9", "L, alpha, beta < alpha / L, (8)", "klimb.infer.methods:safe_step",
         f"{CERTIFICATE}::test_safe_steps_converge_and_counts_have_none", A),
    Item("P10", "generalised linear model, (9), (10)", "klimb.latents:Weights",
         f"{OPTIMUM}::test_the_optimum_is_one_of_the_full_bound", "one-loop.md"),
    Item("P11", "alpha and gamma of a datum, (11), (12)", "klimb.sites.base:Site",
         f"{FACTS}::test_gamma_is_minus_twice_the_derivative_in_v", "one-loop.md"),
    Item("P12", "closed-form updates with D x D matrices, (13)-(17)", "klimb.steps:Proximal",
         f"{OPTIMUM}::test_proximal_steps_follow_the_papers_equations", A),
    Item("P13", "the same with N x N matrices, (18), (19)", "klimb.latents:Kernel",
         f"{OPTIMUM}::test_every_rule_reaches_the_same_optimum", A),
    Item("P14", "A_k in place of B_k", "klimb.steps:Proximal",
         f"{REGION}::test_a_in_place_of_b_is_another_path_to_the_same_point", A),
    Item("P15", "convergence criterion from optimality", "klimb.infer.problem:State",
         f"{OPTIMUM}::test_every_rule_reaches_the_same_optimum", A),
    Item("P16", "linear basis functions and Gaussian processes, Algorithm 1", "klimb.models.gp:gp",
         f"{NUMBERS}::test_a_table3", "gaussian-processes.md"),
    Item("P17", "prediction, (20)", "klimb.latents:Kernel",
         "tests/contracts/test_latents.py::test_kernel_prediction_against_the_joint_gaussian", "gaussian-processes.md"),
    Item("P18", "matrix factorisation", "klimb.conjugate.models:matrix_factorisation",
         "tests/conjugate/test_models.py::test_factorisation_recovers_the_planted_rank_with_calibrated_intervals",
         "conjugate.md"),
    Item("P19", "logistic and Laplace expectations", "klimb.sites:Logistic",
         "tests/sites/test_digits.py::test_digits", "choose.md"),
    Item("P20", "MAP, mean-field, Cholesky, EP, Laplace", "klimb.infer.methods:ep",
         f"{NUMBERS}::test_the_methods_under_their_names", "one-loop.md"),
    Item("P21", "hyperparameters by grid, by the bound, by cross-validation", "klimb.apps.papers.logistic:sweep",
         f"{NUMBERS}::test_a_table2", A),
    Item("P22", "evidence, log-loss, time, heat maps, probabilities", "klimb.apps.papers.processes:tables",
         f"{NUMBERS}::test_a_table3", A),
    Item("P23", "the data sets and settings of the tables", "klimb.apps.papers.logistic:look",
         f"{NUMBERS}::test_the_settings_of_table3", "papers/data.md",
         "Gisette is run where its files are"),
    Item("P24", "future work: stochastic gradients, line search, distributed optimisation",
         "klimb.infer.rows:fit_by_sums", f"{SUMS}::test_same_bits_for_any_number_of_workers", A),
    Item("F1", "extended model; p(f | w) that is not Gaussian, (1)", "klimb.sites:Custom",
         "tests/sites/test_custom.py::test_noise_on_f_need_not_be_gaussian", S),
    Item("F2", "q(w, f) = q(w) p(f | w), (2)", "klimb.latents:Weights",
         f"{OPTIMUM}::test_weights_with_slack_equal_an_explicit_extra_weight_per_site", S),
    Item("F3", "the bound, (3)", "klimb.infer.problem:Problem",
         f"{OPTIMUM}::test_the_optimum_is_one_of_the_full_bound", "one-loop.md"),
    Item("F4", "v = c + d'Vd for GLM, GP and sparse GP, (4)", "klimb.latents:Inducing",
         "tests/latents/test_inducing.py::test_marginals_are_those_of_the_definition", S),
    Item("F5", "gamma with and without derivatives, (5)-(7)", "klimb.sites:Custom",
         "tests/sites/test_custom.py::test_a_built_in_site_from_its_values", S),
    Item("F6", "the operator T, (8), (9)", "klimb.steps:FixedPoint",
         f"{OPTIMUM}::test_incremental_fixed_point_alternates", S),
    Item("F7", "Proposition 1", "klimb.steps:FixedPoint",
         f"{OPTIMUM}::test_every_rule_reaches_the_same_optimum", S),
    Item("F8", "conditions 1, 2a, 2b, Theorem 1, the sandwich (10)-(14), the aggregate condition",
         "klimb.infer.methods:certificate", f"{CERTIFICATE}::test_matrices_enclose_the_best_covariance", S),
    Item("F9", "gamma in closed form: Poisson, volatility, exponential", "klimb.sites:StochasticVolatility",
         f"{FACTS}::test_gamma_is_minus_twice_the_derivative_in_v", S),
    Item("F10", "map of the sign of d gamma / dv", "klimb.apps.papers.traces:sign_map",
         f"{NUMBERS}::test_s_figure1", S),
    Item("F11", "negative gamma: zero, or a gradient step", "klimb.steps:FixedPoint",
         f"{LOOP}::test_clipping_changes_the_fixed_point_and_says_so", S),
    Item("F12", "gradient readings, (15), (16)", "klimb.steps:FullNatural",
         f"{OPTIMUM}::test_the_full_natural_step_is_the_default_with_r_zero", S),
    Item("F13", "fixed points for the mean are not stable", "klimb.steps:FullNatural",
         f"{LOOP}::test_a_cycle_of_two_is_named", S),
    Item("F14", "FPb and FPi", "klimb.steps:FixedPoint", f"{NUMBERS}::test_s_figures", S),
    Item("F15", "GRAD", "klimb.infer.methods:cholesky_gradient",
         f"{OPTIMUM}::test_every_rule_reaches_the_same_optimum", S),
    Item("F16", "GLM, GP, sparse GP, PPCA", "klimb.conjugate.models:probabilistic_pca",
         "tests/conjugate/test_models.py::test_principal_components_with_missing_entries_match_the_dense_answer",
         S),
    Item("F17", "logistic, Poisson, Laplace, Student-t, ordinal", "klimb.sites:Ordinal",
         f"{FACTS}::test_every_site_is_covered", "choose.md"),
    Item("F18", "settings of the experiments", "klimb.apps.papers.traces:setting", f"{NUMBERS}::test_s_figures", S),
    Item("F19", "the bound against time", "klimb.apps.papers.traces:traced", f"{NUMBERS}::test_s_figures", S),
    Item("F20", "future work: matrix factorisation, fixed points in stochastic gradients",
         "klimb.conjugate.models:poisson_factorisation",
         f"{COUNTS}::test_rates_are_found_and_the_fixed_point_is_one", S),
    Item("C1", "model by operators, (1)", "klimb.latents:Implicit",
         f"{DOUBLE}::test_every_kind_of_operator_gives_the_same_fit", "sparse-models.md"),
    Item("C2", "super-Gaussian sites, (2), (3)", "klimb.sites:SuperGaussian", f"{FACTS}::test_super_gaussian", N),
    Item("C3", "Gaussian and sparsity priors", "klimb.sites:Stack",
         f"{DOUBLE}::test_local_bound_with_a_sparsity_prior_is_the_optimum_of_a_direct_solver", "sparse-models.md"),
    Item("C4", "Legendre-Fenchel bounds of sites, (4)", "klimb.sites:SuperGaussian",
         f"{DUALS}::test_gaussians_lie_below", N),
    Item("C5", "the criterion phi(gamma)", "klimb.steps:DoubleLoop",
         f"{DOUBLE}::test_local_bound_with_a_gaussian_prior_is_the_optimum_of_a_direct_solver", N),
    Item("C6", "Theorems 1 and 2", "klimb.sites:SuperGaussian", f"{DUALS}::test_theorem_1", N),
    Item("C7", "the double loop", "klimb.steps:DoubleLoop",
         f"{DOUBLE}::test_local_bound_with_a_gaussian_prior_is_the_optimum_of_a_direct_solver", "sparse-models.md"),
    Item("C8", "h, h* and their derivatives", "klimb.sites.local:penalty", f"{DUALS}::test_penalties", N),
    Item("C9", "Lanczos variances from below, k of them", "klimb.steps:DoubleLoop",
         f"{DOUBLE}::test_the_number_of_lanczos_vectors", "variances.md"),
    Item("C10", "products and storage", "klimb.apps.papers.products:count", f"{NUMBERS}::test_n_table1", N),
    Item("C11", "active learning in blocks", "klimb.active:ActiveLearner",
         "tests/active/test_learner.py::test_blocks_learn_like_the_paper_says", "active-learning.md"),
    Item("C12", "scores S_IG and S_CU", "klimb.active.scores:information_gain",
         f"{SCORES}::test_information_gain_is_the_papers_formula", "active-learning.md"),
    Item("C13", "inclusion algebra", "klimb.active.marginals:Marginals",
         "tests/equivalence/test_inclusion.py::test_everything_after_ten_inclusions_is_that_of_one_big_system",
         "active-learning.md"),
    Item("C14", "coordinate ascent and direct gradients", "klimb.steps:CoordinateAscent",
         f"{DOUBLE}::test_the_baselines_of_the_paper_end_where_the_double_loop_does", N),
    Item("C15", "the experiments of Figure 2, by the paper's algorithm and by ours",
         "klimb.apps.papers.active_learning:ConvexLearner", f"{NUMBERS}::test_a_block_of_the_papers_own_learner", N),
    Item("C16", "future work: scores for tasks, poor variances, sparse priors on larger sets",
         "benchmarks.poor_variances:compared", f"{NUMBERS}::test_poor_variances", N),
    Item("B1", "all finite mixtures, (1)", "klimb.boosting.mixture:Mixture",
         "tests/boosting/test_boost.py::test_banana", "boosting.md"),
    Item("B2", "greedy steps with tolerance eps_t, rate 1/t, (2)", "benchmarks.boosting_theory:greedy",
         f"{THEORY}::test_the_rate", G),
    Item("B3", "functional gradients, (3)", "benchmarks.boosting_theory:greedy",
         f"{THEORY}::test_the_tolerance_of_the_functional_gradient", G),
    Item("B4", "convexity and smoothness, (4)-(6), Theorem 1, the set of mass 1 - eps",
         "benchmarks.boosting_theory:mass_set", f"{THEORY}::test_strong_smoothness_and_convexity", G),
    Item("B5", "weights by Newton, (7)-(10), Algorithm 1", "klimb.boosting.paper:newton_exclusive",
         "tests/boosting/test_boost.py::test_newton_weights_recover_a_mixture", G),
    Item("B6", "Laplacian components, Sigma = S / 2, (11)-(17), Algorithm 2", "klimb.boosting.paper:residual_peak",
         f"{THEORY}::test_a_new_component_has_half_the_covariance_of_the_residual", G),
    Item("B7", "the inclusive direction, Lemma 1, (18)-(21)", "benchmarks.boosting_theory:divergence",
         f"{THEORY}::test_strong_smoothness_and_convexity", G),
    Item("B8", "inclusive weights, (22)-(25), Algorithm 3", "klimb.boosting.paper:newton_inclusive",
         "tests/boosting/test_boost.py::test_newton_weights_recover_a_mixture", G),
    Item("B9", "inclusive objective and its Jensen bound, (26)-(29)", "klimb.boosting.divergences:inclusive_refined",
         "tests/boosting/test_boost.py::test_the_inclusive_direction_covers_more", G),
    Item("B10", "Cauchy, mixtures, nodal regression", "klimb.apps.papers.boosting:fitted",
         f"{NUMBERS}::test_g_figure1", G),
    Item("B11", "ADVI and the Polya-Gamma sampler", "klimb.apps.papers.boosting:gibbs",
         f"{NUMBERS}::test_g_figure2", G),
    Item("B12", "weights and divergences step by step; scatter of moments", "klimb.apps.papers.boosting:toy_tables",
         f"{NUMBERS}::test_g_figure1", G),
    Item("B13", "future work: biased means, several modes", "klimb.boosting.api:boost",
         "tests/boosting/test_boost.py::test_modes_forty_deviations_apart", "boosting.md"),
)

FUTURE = (
    ("[A]", "line search for the step size", "done: the bound judges every step of the default"),
    ("[A]", "stochastic gradients", "done: `klimb.infer.minibatch`, without a learning rate"),
    ("[A], [B]", "distributed optimisation",
     "done: `klimb.infer.rows`, the same bits for any number of processes; Bregman ADMM needs more rounds"),
    ("[S]", "matrix factorisation", "done: `klimb.conjugate.models.poisson_factorisation`, `matrix_factorisation`"),
    ("[S]", "fixed points inside stochastic gradients", "done: batches replace their share of T"),
    ("[N]", "which design score for which task", "measured on five sets ([active learning](../active-learning.md))"),
    ("[N]", "robustness to poor variances", "measured: `python -m benchmarks.poor_variances`"),
    ("[N]", "sparsity priors on the larger sets", "done: fits by `klimb.sparse_glm`, active learning over any columns"),
    ("[G]", "posteriors whose mean-field means are biased, several modes", "done: `klimb.boost` looks for modes"),
)


def page() -> str:
    """The page in Markdown."""
    lines = ["# Every item of the papers", "", (
        "73 items of the five papers: the code that does each, the test that would fail without it, and the page that"
        " explains it. Written by `python tools/papers_coverage.py` from the table in that file; a test checks that"
        " every name is alive."), ""]
    for letter, title in PAPERS.items():
        lines += [f"## {title}", "", "| item | what | code | test | page | left to do |", "|---|---|---|---|---|---|"]
        for item in ITEMS:
            if item.key[0] == letter:
                path, name = item.test.split("::")
                where = item.page.removeprefix("papers/") if item.page.startswith("papers/") else f"../{item.page}"
                label = Path(item.page).stem.replace("-", " ")
                what = item.what.replace("|", "\\|")
                lines.append(f"| {item.key} | {what} | `{item.code.replace(':', '.')}` | `{name}` in"
                             f" `{path.removeprefix('tests/')}` | [{label}]({where}) | {item.left} |")
        lines.append("")
    lines += ["## What they left to the future", "", "| paper | what | where it stands |", "|---|---|---|",
              *(f"| {paper} | {what} | {state} |" for paper, what, state in FUTURE)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
