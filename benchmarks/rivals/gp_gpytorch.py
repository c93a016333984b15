"""GPyTorch: ApproximateGP by natural gradients and by L-BFGS, its inducing points the inputs or given ones."""
# ruff: noqa: E402  (the clock runs while the package is imported)

from __future__ import annotations

import time

BEGIN = time.perf_counter()
import gpytorch
import numpy as np
import torch

IMPORTS = time.perf_counter() - BEGIN

from benchmarks.rivals import gp_common as common

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
gpytorch.settings.num_gauss_hermite_locs._set_value(20)
gpytorch.settings.max_cholesky_size._set_value(10**6)


class Logit(gpytorch.likelihoods.likelihood._OneDimensionalLikelihood):
    """The package's Bernoulli is probit."""

    def forward(self, f, **options):
        return torch.distributions.Bernoulli(logits=f)


class LogPoisson(gpytorch.likelihoods.likelihood._OneDimensionalLikelihood):
    """The package's Poisson has a softplus link."""

    def forward(self, f, **options):
        return torch.distributions.Poisson(f.exp(), validate_args=False)


def likelihood(name):
    if name in ("logistic", "poisson"):
        return {"logistic": Logit, "poisson": LogPoisson}[name]()
    if name == "laplace":
        made = gpytorch.likelihoods.LaplaceLikelihood()
        made.noise = common.LAPLACE_SCALE**2
    else:
        made = gpytorch.likelihoods.StudentTLikelihood(deg_free_constraint=gpytorch.constraints.GreaterThan(2.0))
        made.deg_free, made.noise = common.STUDENT_DF, common.STUDENT_SCALE**2
    for parameter in made.parameters():
        parameter.requires_grad_(False)
    return made


class Model(gpytorch.models.ApproximateGP):
    """The inputs, or given points, as inducing points; q whitened."""

    def __init__(self, task, natural, learn):
        family = gpytorch.variational.NaturalVariationalDistribution if natural else (
            gpytorch.variational.CholeskyVariationalDistribution)
        super().__init__(gpytorch.variational.VariationalStrategy(
            self, torch.as_tensor(task.points), family(len(task.points)), learn_inducing_locations=False))
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
        self.covar_module.outputscale = task.variance
        self.covar_module.base_kernel.lengthscale = task.lengthscale
        for parameter in self.covar_module.parameters():
            parameter.requires_grad_(learn)

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def posterior(self, task):
        q = self.variational_strategy._variational_distribution()
        V = q.covariance_matrix.detach().numpy()
        return task.whitened(q.mean.detach().numpy(), np.linalg.cholesky(0.5 * (V + V.T)))

    @property
    def hyperparameter_values(self):
        return self.covar_module.base_kernel.lengthscale.item(), self.covar_module.outputscale.item()


def prepare(task, watch, natural, learn=False):
    """The model, and a function that computes the loss and its gradient."""
    model = Model(task, natural, learn)
    objective = gpytorch.mlls.VariationalELBO(likelihood(task.likelihood), model, num_data=task.n)
    X, y = torch.as_tensor(task.X), torch.as_tensor(task.y)
    model.train()

    def loss():
        model.zero_grad()
        value = -objective(model(X), y)
        value.backward()
        return value

    model(X[:10])  # sets q to the prior
    watch.compiling(loss)
    return model, loss


def natural(step_size):
    def fit(task, watch):
        model, loss = prepare(task, watch, natural=True)
        optimiser = gpytorch.optim.NGD(model.variational_parameters(), num_data=task.n, lr=step_size)
        watch.start()
        while not watch.over:
            loss()
            optimiser.step()
            watch.lap(model.posterior)

    return fit


def lbfgs(task, watch):
    model, loss = prepare(task, watch, natural=False)
    optimiser = torch.optim.LBFGS(list(model.variational_parameters()), lr=1.0, max_iter=10, history_size=20,
                                  line_search_fn="strong_wolfe", tolerance_grad=1e-9, tolerance_change=1e-13)
    watch.start()
    while not watch.over:
        optimiser.step(loss)
        watch.lap(model.posterior)


def natural_and_adam(task, watch):
    model, loss = prepare(task, watch, natural=True, learn=True)
    on_q = gpytorch.optim.NGD(model.variational_parameters(), num_data=task.n, lr=0.5)
    on_theta = torch.optim.Adam(model.hyperparameters(), lr=0.05)
    watch.start()
    while not watch.over:
        loss()
        on_q.step()
        on_theta.step()
        watch.lap(model.posterior, model.hyperparameter_values)


if __name__ == "__main__":
    common.compete({"natural": natural(1.0), "natural-0.3": natural(0.3), "lbfgs": lbfgs,
                    "learn-natural-adam": natural_and_adam},
                   f"gpytorch {gpytorch.__version__}, torch {torch.__version__}", IMPORTS)
