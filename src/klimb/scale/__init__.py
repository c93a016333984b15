"""Large data: rows computed when they are asked for, minibatches, and the choice of inducing points."""

from klimb.scale.choose import choose_inducing
from klimb.scale.minibatch import minibatch
from klimb.scale.rows import KernelRows, inducing_latent
from klimb.scale.source import ArrayRows, RowSource, StreamedRows, as_source

__all__ = ["ArrayRows", "KernelRows", "RowSource", "StreamedRows", "as_source", "choose_inducing", "inducing_latent",
           "minibatch"]
