"""Covariance functions of Gaussian processes, and mean functions (``klimb.kernels.means``).

    kernel = 2.0 * RBF(lengthscale=[1.0, 3.0]) + White(0.1)
    klimb.latents.Kernel(kernel.gram(X))
"""

from klimb._stored import stored
from klimb.kernels import means
from klimb.kernels.algebra import Product, Sum
from klimb.kernels.base import Kernel
from klimb.kernels.dot import Constant, Cosine, Linear, Polynomial, White
from klimb.kernels.inducing_points import choose_inducing
from klimb.kernels.stationary import RBF, Matern12, Matern32, Matern52, Periodic, RationalQuadratic

# One parametrised test suite and the table in the documentation run over this registry.
KERNELS: dict[str, type[Kernel]] = {
    kernel.__name__: kernel for kernel in (RBF, Matern12, Matern32, Matern52, RationalQuadratic, Periodic, Linear,
                                           Polynomial, Constant, White, Cosine)
}

_STORED: tuple[type[Kernel], ...] = (*KERNELS.values(), Sum, Product)
for _kernel in _STORED:
    stored(f"kernel.{_kernel.__name__}")(_kernel)
_MEANS: tuple[type[means.Mean], ...] = (means.ZeroMean, means.ConstantMean, means.LinearMean)
for _mean in _MEANS:
    stored(f"mean.{_mean.__name__.removesuffix('Mean')}")(_mean)

# Spelled out, because type checkers do not read a computed list.
__all__ = ["KERNELS", "RBF", "Constant", "Cosine", "Kernel", "Linear", "Matern12", "Matern32", "Matern52", "Periodic",
           "Polynomial", "Product", "RationalQuadratic", "Sum", "White", "choose_inducing", "means"]
