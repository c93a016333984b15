"""Fits by products alone: the double loop of [N] for `klimb.latents.Implicit`, for either bound."""
