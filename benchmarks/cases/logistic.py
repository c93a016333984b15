"""Logistic regression under the prior N(0, I): the posterior beside modes."""

from __future__ import annotations

import numpy as np

from benchmarks import problems
from benchmarks.cases.base import Answer, Case, Data


def stored(name: str) -> Data:
    made = problems.a1a() if name == "a1a" else problems.a9a()
    return {"X": made.X, "y": made.y}


def synthetic(n: int) -> Data:
    made = problems.synthetic(n)
    return {"X": made.X, "y": made.y}


def klimb(data: Data) -> Answer:
    import klimb

    posterior = klimb.infer(klimb.latents.Weights(data["X"], cov=1.0), klimb.sites.Logistic(), data["y"]).posterior
    return {"estimate": posterior.mean, "cov": posterior.covariance()}


def sklearn(solver: str, tol: float) -> object:
    def solve(data: Data) -> Answer:
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression(C=1.0, fit_intercept=False, solver=solver, tol=tol, max_iter=1000)
        return {"estimate": model.fit(data["X"], data["y"]).coef_[0]}

    return solve


def glum(data: Data) -> Answer:
    from glum import GeneralizedLinearRegressor

    n = len(data["y"])
    model = GeneralizedLinearRegressor(family="binomial", alpha=1.0 / n, l1_ratio=0.0, fit_intercept=False,
                                       gradient_tol=1e-6 / n)
    return {"estimate": model.fit(data["X"], (data["y"] > 0).astype(float)).coef_}


def numpyro(data: Data) -> Answer:
    import jax
    import numpyro as package
    from numpyro import distributions, infer, optim

    jax.config.update("jax_enable_x64", True)

    def model(X: object, y: object) -> None:
        w = package.sample("w", distributions.Normal(0, 1).expand([X.shape[1]]).to_event(1))
        package.sample("y", distributions.Bernoulli(logits=X @ w), obs=y)

    guide = infer.autoguide.AutoMultivariateNormal(model)
    svi = infer.SVI(model, guide, optim.Adam(0.02), infer.Trace_ELBO(num_particles=8))
    run = svi.run(jax.random.PRNGKey(0), 3000, data["X"], (data["y"] > 0).astype(float), progress_bar=False)
    posterior = guide.get_posterior(run.params)
    return {"estimate": np.asarray(posterior.mean), "cov": np.asarray(posterior.covariance_matrix)}


def pymc(data: Data) -> Answer:
    import pymc as package

    with package.Model():
        w = package.Normal("w", 0.0, 1.0, shape=data["X"].shape[1])
        package.Bernoulli("y", logit_p=package.math.dot(data["X"], w), observed=(data["y"] > 0).astype(int))
        found = package.fit(10_000, method="fullrank_advi", random_seed=0, progressbar=False,
                            obj_optimizer=package.adam(learning_rate=0.01))
    return {"estimate": found.mean.eval(), "cov": found.cov.eval()}


def judge(data: Data, answers: dict[str, Answer]) -> dict[str, float]:
    """How far below the best the evidence lower bound of each answer is, in nats: modes get the inverse Hessian."""
    import klimb as ours

    X, y = data["X"], data["y"]
    site, bounds = ours.sites.Logistic(), {}
    for who, answer in answers.items():
        m = answer["estimate"]
        cov = answer.get("cov")
        if cov is None:
            p = 0.5 * (1.0 + np.tanh(0.5 * X @ m))
            cov = np.linalg.inv((X * (p * (1.0 - p))[:, None]).T @ X + np.eye(X.shape[1]))
        root = np.linalg.cholesky(0.5 * (cov + cov.T))
        v = np.concatenate([np.square(part @ root).sum(axis=1) for part in np.array_split(X, max(len(X) // 50_000, 1))])
        kl = 0.5 * (np.square(root).sum() + m @ m - len(m)) - np.log(np.diag(root)).sum()
        bounds[who] = float(site.oracle(y, X @ m, v).value.sum()) - float(kl)
    best = max(bounds.values())
    return {who: best - bound for who, bound in bounds.items()}


POINTS = {"scikit-learn lbfgs": sklearn("lbfgs", 1e-4),
          "scikit-learn newton-cholesky": sklearn("newton-cholesky", 1e-4), "glum": glum}
JUDGED = "nats below the best evidence lower bound (modes with the inverse Hessian)"
CASES = {
    "logistic, a1a": Case(lambda n: stored("a1a"), (1605,), {"klimb": klimb, **POINTS, "NumPyro SVI": numpyro,
                                                           "PyMC ADVI": pymc}, judge, JUDGED,
                          lambda n: ("weights", 1605, 119)),
    "logistic, a9a": Case(lambda n: stored("a9a"), (32_561,), {"klimb": klimb, **POINTS}, judge, JUDGED,
                          lambda n: ("weights", 32_561, 123)),
    "logistic, 50 columns": Case(synthetic, (10_000, 100_000, 1_000_000), {"klimb": klimb, **POINTS}, judge, JUDGED,
                                 lambda n: ("weights", n, 50)),
}
