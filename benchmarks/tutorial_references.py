"""Long NUTS runs for the models of two tutorials (needs NumPyro): ``python -m benchmarks.tutorial_references``.

The seeds of docs/tutorials/inla.md and the lynxes and hares of docs/tutorials/strange-density.md, with the priors
that those pages use. Data are taken from the pages; nothing but NumPyro, NumPy and this file is needed to run it.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS, init_to_value

jax.config.update("jax_enable_x64", True)
DOCS = Path(__file__).resolve().parents[1] / "docs" / "tutorials"


def from_page(page: str, name: str) -> dict[str, Any]:
    """What the block that begins with ``name =`` defines."""
    text = (DOCS / page).read_text(encoding="utf-8")
    block = re.search(rf"^({name} = .*?)^(?:fit|names) = ", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    names: dict[str, Any] = {"np": np}
    exec(block.group(1), names)
    return names


def seeds() -> None:
    """Priors as klimb prints them; the intercept is where the columns are at their means."""
    data = {key: np.asarray(value) for key, value in from_page("inla.md", "seeds")["seeds"].items()}
    X = np.column_stack([data["seed73"], data["cucumber"], data["seed73"] * data["cucumber"]]).astype(float)
    width = 2.5 / X.std(axis=0)

    def model() -> None:
        middle = numpyro.sample("middle", dist.Normal(0.0409, 2.5))
        slopes = numpyro.sample("slopes", dist.Normal(0.0, width))
        sd = numpyro.sample("sd(plate)", dist.Exponential(1.0))
        plate = numpyro.sample("plate", dist.Normal(0.0, 1.0).expand([21]))
        numpyro.deterministic("Intercept", middle - X.mean(axis=0) @ slopes)
        f = middle + (X - X.mean(axis=0)) @ slopes + sd * plate
        numpyro.sample("r", dist.Binomial(data["n"], logits=f), obs=data["r"])

    report(model, {}, ["Intercept", "slopes", "sd(plate)"])


def lynx_and_hare() -> None:
    """The model of the Stan case study, by a Runge-Kutta rule with twenty steps a year."""
    pelts = from_page("strange-density.md", "hare")
    logs = jnp.log(jnp.stack([pelts["hare"], pelts["lynx"]], axis=1))
    h = 1 / 20

    def model() -> None:
        rate = numpyro.sample("alpha, gamma", dist.TruncatedNormal(1.0, 0.5, low=0.0).expand([2]))
        pull = numpyro.sample("beta, delta", dist.TruncatedNormal(0.05, 0.05, low=0.0).expand([2]))
        start = numpyro.sample("start", dist.LogNormal(jnp.log(10.0), 1.0).expand([2]))
        noise = numpyro.sample("noise", dist.LogNormal(-1.0, 1.0).expand([2]))

        def slope(w: Any) -> Any:
            return jnp.array([rate[0] - pull[0] * jnp.exp(w[1]), pull[1] * jnp.exp(w[0]) - rate[1]])

        def step(w: Any, _: Any) -> Any:
            k1 = slope(w)
            k2 = slope(w + h / 2 * k1)
            k3 = slope(w + h / 2 * k2)
            k4 = slope(w + h * k3)
            return w + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

        def year(w: Any, _: Any) -> Any:
            w, _ = jax.lax.scan(step, w, None, length=20)
            return w, w

        first = jnp.log(start)
        _, later = jax.lax.scan(year, first, None, length=20)
        numpyro.sample("pelts", dist.Normal(jnp.concatenate([first[None], later]), noise).to_event(2), obs=logs)

    near = {
        "alpha, gamma": jnp.array([0.5, 0.8]),
        "beta, delta": jnp.array([0.03, 0.03]),
        "start": jnp.array([30.0, 4.0]),
        "noise": jnp.array([0.3, 0.3]),
    }
    report(model, near, list(near), draws=2000)


def report(model: Any, near: dict[str, Any], names: list[str], draws: int = 10_000) -> None:
    """Four chains; mean, sd and Monte Carlo error."""
    begin = time.process_time()
    kernel = NUTS(model, init_strategy=init_to_value(values=near)) if near else NUTS(model, target_accept_prob=0.95)
    run = MCMC(
        kernel, num_warmup=1000, num_samples=draws, num_chains=4, chain_method="sequential", progress_bar=False
    )
    run.run(jax.random.PRNGKey(0))
    chains = run.get_samples(group_by_chain=True)
    for name in names:
        found = np.asarray(chains[name])
        size = numpyro.diagnostics.effective_sample_size(found)
        sd = found.std(axis=(0, 1))
        print(
            name,
            "mean",
            found.mean(axis=(0, 1)).round(4),
            "sd",
            sd.round(4),
            "error",
            (sd / np.sqrt(size)).round(4),
            "R-hat",
            numpyro.diagnostics.split_gelman_rubin(found).round(4),
        )
    print(f"{4 * draws} draws, {time.process_time() - begin:.0f} CPU s", flush=True)


if __name__ == "__main__":
    seeds()
    lynx_and_hare()
