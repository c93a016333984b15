"""Long NUTS runs for the models of `nuts_problems.py`: ``python make_nuts.py`` writes nuts.npz.

Needs numpyro (and the nodal data, see KLIMB_DATA). Sampling is in whitened coordinates, 8 chains; what is stored is
small: mean, sd, skewness, quantiles, Monte Carlo error of the mean in sd, and the largest R-hat.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

CHAINS, WARMUP, DRAWS = 8, 2000, 25_000
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


def model(Z: Any, y: Any, site: str) -> None:
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from nuts_problems import DF, SCALE

    u = numpyro.sample("u", dist.Normal(0.0, 1.0).expand([Z.shape[1]]).to_event(1))
    f = Z @ u
    if site == "logistic":
        value = -jnp.logaddexp(0.0, -y * f).sum()
    elif site == "poisson":
        value = (y * f - jnp.exp(f)).sum()
    else:
        value = dist.StudentT(DF, f, SCALE).log_prob(y).sum()
    numpyro.factor("likelihood", value)


def summarise(draws: np.ndarray) -> dict[str, np.ndarray]:
    """``draws``: chains x draws x parameters."""
    import numpyro

    flat = draws.reshape(-1, draws.shape[-1])
    mean, sd = flat.mean(0), flat.std(0)
    cube = (((flat - mean) / sd) ** 3).mean(0)
    ess = numpyro.diagnostics.effective_sample_size(draws)
    rhat = numpyro.diagnostics.split_gelman_rubin(draws)
    return {"mean": mean, "sd": sd, "skewness": cube, "quantiles": np.quantile(flat, LEVELS, axis=0),
            "mcse": 1.0 / np.sqrt(ess), "rhat": np.array(rhat.max())}


def main() -> None:
    import jax
    import jax.numpy as jnp
    from numpyro.infer import MCMC, NUTS
    from nuts_problems import NAMES, problem

    jax.config.update("jax_enable_x64", True)
    path = Path(__file__).parent / "nuts.npz"
    stored = dict(np.load(path)) if path.is_file() else {}
    for name in sys.argv[1:] or NAMES:
        spec = problem(name)
        if spec is None:
            print(f"{name}: data missing, skipped")
            continue
        mcmc = MCMC(NUTS(model, target_accept_prob=0.9), num_warmup=WARMUP, num_samples=DRAWS, num_chains=CHAINS,
                    chain_method="vectorized", progress_bar=False)
        mcmc.run(jax.random.PRNGKey(0), jnp.array(spec["Z"]), jnp.array(spec["y"]), spec["site"])
        u = np.asarray(mcmc.get_samples(group_by_chain=True)["u"])
        divergences = int(np.sum(np.asarray(mcmc.get_extra_fields()["diverging"])))
        found = summarise(u @ spec["map"].T) | {"divergences": np.array(divergences)}
        print(name, "mcse", found["mcse"].max(), "rhat", found["rhat"], "divergences", divergences, flush=True)
        stored |= {f"{name}_{key}": value for key, value in found.items()}
    np.savez_compressed(path, **stored)


if __name__ == "__main__":
    main()
