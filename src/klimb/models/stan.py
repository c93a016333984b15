"""A fitted formula as a program in Stan: ``fit.to_stan()``.

The unconstrained parameters of the program are theta, as the blocks of hyperparameters have it, and the weights, as the
terms have them or in units of their prior's root. Its log density is that of klimb's joint per unit of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from klimb._files import whole_file
from klimb._stan import StanDefinition, StanPart, StanScope, ToldLevels, comment, literal, said
from klimb.errors import require
from klimb.formula.factors import INTERCEPT
from klimb.likelihoods import Likelihood, Observed
from klimb.models.linear import LinearModel
from klimb.numerics.arrays import Array
from klimb.terms.base import Coded, Dense, Nodes, Term
from klimb.theta import ParameterBlock

if TYPE_CHECKING:
    from klimb.models.formula_fit import FormulaFit

INFORMED = 0.3  # posterior over prior variance of weights below which the data tell them, so that they are centred
LIKELY = 0.02  # share of the heaviest point from which a theta counts in that


@dataclass(frozen=True, eq=False)
class WrittenTerm:
    """How one term stands in a program."""

    term: Term
    number: int  # among the terms of the model
    part: StanPart
    centred: bool  # whether its parameters are the weights themselves
    told: ToldLevels | None = None  # what they are in units of, if not of their prior's root


@dataclass(frozen=True, eq=False)
class StanProgram:
    """The text of a program and its data; ``print`` shows the text.

    >>> import klimb
    >>> program = klimb.fit("y ~ x", {"y": [1.0, 3.0, 2.0, 5.0], "x": [0.0, 1.0, 2.0, 3.0]}).to_stan()
    >>> print(program.code[program.code.index("generated") :].rstrip())
    generated quantities {
      vector[2] coefficient = U * b;  // Intercept, x
    }
    """

    code: str
    data: dict[str, Any]
    model: LinearModel = field(repr=False)
    blocks: tuple[tuple[ParameterBlock, StanPart], ...] = field(repr=False)  # of hyperparameters
    terms: tuple[WrittenTerm, ...] = field(repr=False)  # that have weights

    def __str__(self) -> str:
        return self.code

    def save(self, path: Any) -> None:
        """Write ``path`` with the text, and its data beside it: model.stan and model.data.json."""
        target = Path(path)
        for file, content in ((target, self.code), (target.with_suffix(".data.json"), self.data_json())):
            with whole_file(file) as stream:
                stream.write(content)

    def data_json(self) -> str:
        """The data as CmdStan and others read them."""
        return json.dumps({name: np.asarray(value).tolist() for name, value in self.data.items()}, allow_nan=False)

    def point(self, theta: Array, weights: Array) -> tuple[dict[str, Array], Array]:
        """The parameters at theta and klimb's weights: by name, and as one unconstrained vector."""
        here, by_class = self.model.moved(theta), weights.reshape(self._classes, -1)
        named, vector = dict[str, Array](), [np.zeros(0)]
        for block, part in self.blocks:
            own = theta[self.model.theta.slice_of(block)]
            named |= dict(zip(part.names, block.to_stan(own), strict=True))
            vector.append(block.unconstrained(own))
        for written in self.terms:
            own, part = by_class[:, self.model.places[written.number]], written.part
            if written.told is not None:
                root, shared = here.values[written.number][0], weights[self.model.places[0]]
                own = written.told.standardised(root, own.reshape(-1, len(root)), shared).reshape(1, -1)
            elif not written.centred:
                own = written.term.standardised(here.values[written.number], own)
            shape = part.free or part.shape
            shaped = np.swapaxes(own.reshape(-1, *shape[::-1]), 1, -1)  # levels come one after the other
            named[part.names[0]] = shaped if self._classes > 1 else shaped[0]
            vector.append(own.ravel())
        return named, np.concatenate(vector)

    def read(self, draws: Callable[[str], Array]) -> tuple[Array, Array]:
        """(S, d) of theta and (S, D) of klimb's weights, from (S, ...) draws of the variables of the program."""
        own = [(block, block.from_stan([draws(name) for name in part.names]))
               for block, part in self.blocks if block.size]
        levels = [(written.number, draws(written.part.weights), written.part.shape) for written in self.terms]
        count = len(own[0][1] if own else levels[0][1])
        theta, places = np.empty((count, self.model.theta.size)), self.model.places
        for block, values in own:
            theta[:, self.model.theta.slice_of(block)] = values
        weights = np.zeros((count, self._classes, max(1, *(place.stop for place in places))))
        for number, values, shape in levels:
            ordered = np.swapaxes(values.reshape(count, self._classes, *shape), 2, -1)
            weights[:, :, places[number]] = ordered.reshape(count, self._classes, -1)
        return theta, weights.reshape(count, -1)

    @property
    def _classes(self) -> int:
        return len(self.model.likelihood.fields)


def stan_program(fit: FormulaFit, centred: bool | None = None) -> StanProgram:
    """The program of a fit; ``centred`` says how weights with a learnt scale are written, None leaves it to the fit."""
    model, data = fit.linear, fit.observed
    require(not data.sampled_from, "Stan needs all rows of a fit in memory", f"a sample of {data.sampled_from:,} rows",
            "Fit the sample by itself, and sample that.")
    likelihood, classes = model.likelihood, len(model.likelihood.fields)
    blocks, terms, follows = list[tuple[ParameterBlock, StanPart]](), list[WrittenTerm](), likelihood.centre_words()
    if follows:
        follows = f"({follows} - ({literal(float(likelihood.centre(data)[0]))}))"
    for number, (term, block) in enumerate(zip(model.terms, model.prepare(None).blocks, strict=True)):
        if not term.size and term.shift(block) is None:
            continue
        tag = f"_{number}" if number else ""  # the fixed columns are the first term
        told = _told(fit, number, block) if centred is None and isinstance(block, Coded) else None
        how = not term.parameters or (_informed(fit, number) if centred is None and told is None else bool(centred))
        how = how and not isinstance(block, Nodes)  # fields have constraints, which weights of their own would break
        scope = StanScope(tag, classes, how, follows, told)
        values = []
        for j, own in enumerate(term.parameters):  # rho of "rho(ar1(t))"
            word = own.names[0].partition("(")[0] if own.kind == "field" and own.names else "sd"
            values.append(_add(blocks, own, f"{word}{tag}" + (f"_{j}" if j else "")))
        terms.append(WrittenTerm(term, number, term.stan(block, values, scope), how, told))
    site = likelihood.stan(data)
    for name, own in _parameters(likelihood):
        _add(blocks, own, name)
    parts = [_rows(data, classes), site, _known(likelihood), *(part for _, part in blocks),
             *(written.part for written in terms), *_reported(fit, terms)]
    kept = {name: value for part in parts for name, value in part.values.items()}
    code = _text(fit, parts, [written.part.value for written in terms], _likelihood_line(site, data))
    return StanProgram(code, kept, model, tuple(blocks), tuple(written for written in terms if written.term.size))


def _add(blocks: list[tuple[ParameterBlock, StanPart]], block: ParameterBlock, name: str) -> str:
    """Write a block, once; the expression of its value."""
    for known, part in blocks:
        if known is block:
            return part.value
    blocks.append((block, block.stan(name)))
    return blocks[-1][1].value


def _told(fit: FormulaFit, number: int, block: Coded) -> ToldLevels | None:
    """What rows say of the levels of a group, by the sites of q; weights of others, but for shared ones, are known."""
    term, result, places = fit.linear.terms[number], fit.result, fit.linear.places
    if result is None or len(fit.model.likelihood.fields) > 1 or not term.parameters:
        return None
    shared, n = fit.linear.prepare(None).blocks[0], len(block.codes)
    X = shared.values if isinstance(shared, Dense) else np.zeros((n, 0))
    a, gamma = result.posterior.a[:n], np.maximum(result.posterior.gamma[:n], 0.0)  # outliers say nothing
    mean, Z = fit.model.detach(result.posterior).mean, block.values
    f = X @ mean[places[0]][: X.shape[1]] + (Z * mean[places[number]].reshape(-1, Z.shape[1])[block.codes]).sum(axis=1)
    sums = np.zeros((term.size // Z.shape[1], Z.shape[1], Z.shape[1] + 1 + X.shape[1]))
    np.add.at(sums, block.codes, Z[:, :, None] * np.column_stack([gamma[:, None] * Z, a + gamma * f,
                                                                  gamma[:, None] * X])[:, None])
    k = Z.shape[1]
    return ToldLevels(sums[:, :, :k], sums[:, :, k], sums[:, :, k + 1 :])


def _informed(fit: FormulaFit, number: int) -> bool:
    """Whether the data tell the weights of a term at every likely theta: only then do they not make a funnel."""
    components, place, shares = fit.components, fit.linear.places[number], []
    if len(fit.model.likelihood.fields) > 1:
        return False
    for k in np.flatnonzero(components.weights >= LIKELY * components.weights.max()):
        here = fit.linear.moved(components.theta[k])
        prior = here.terms[number].prior(here.values[number])
        if prior.precision is not None:
            return False
        shares.append(float(np.mean(components.parts[k].moments(place).variances() / prior.variances)))
    return max(shares) < INFORMED and fit.linear.terms[number].density(fit.linear.values[number]) is None


def _parameters(likelihood: Likelihood) -> list[tuple[str, ParameterBlock]]:
    if likelihood.response == "ordered":
        return [("cutpoints", block) for block in likelihood.parameters]
    return [(p.name, block) for p, block in zip(likelihood.free, likelihood.parameters, strict=True)]


def _rows(data: Observed, classes: int) -> StanPart:
    """How many rows and classes there are, and how often each row counts."""
    lines, values = ["int<lower=1> N;" + said("rows")], dict[str, Any](N=data.n)
    if classes > 1:
        lines.append("int<lower=2> C;" + said("classes"))
        values["C"] = classes
    if data.weights is not None:
        lines.append("vector<lower=0>[N] times;" + said("each row counts"))
        values["times"] = data.weights
    return StanPart(data=tuple(lines), values=values)


def _known(likelihood: Likelihood) -> StanPart:
    """Parameters of the likelihood that the user gave, as data."""
    names = {p.field: p.name for p in likelihood.site_parameters}
    known = {names.get(key, key): np.asarray(value) for key, value in likelihood.known.items()}
    return StanPart(values=known, data=tuple(
        f"vector[{value.size}] {name};" if value.ndim else f"real {name};" for name, value in known.items()))


def _likelihood_line(site: StanPart, data: Observed) -> str:
    """The log likelihood of all rows; a row that counts twice adds twice."""
    if data.weights is None and not site.by_row:
        return f"target += {site.density.replace('{n}', '')};"
    times = "" if data.weights is None else "times[n] * "
    return f"for (n in 1:N) target += {times}{site.density.replace('{n}', '[n]')};"


def _reported(fit: FormulaFit, terms: Sequence[WrittenTerm]) -> list[StanPart]:
    """What the table shows of the weights: coefficients, and cut points, of the columns as they are written."""
    parts, zero, cut = list[StanPart](), fit._at_zero, "cutpoints"
    cuts = [block.size for block in fit.model.theta.blocks if block.kind == "cut"]
    shift = fit._level_shift if cuts else np.zeros_like(zero)
    for written in terms:
        b, place, reported = written.part.weights, fit.linear.places[written.number], written.term.report()
        tag = b.removeprefix("b")
        if shift[place].any():
            parts.append(_matrix("row_vector", f"shift{tag}", shift[place], "what cut points take from b"))
            cut += f" + shift{tag} * {b}"
        if reported is None or not reported.names:
            continue
        T = np.eye(written.term.size) if reported.map is None else reported.map
        parts.append(_matrix("matrix", f"U{tag}", T, "from b to the coefficients of the columns as they are written"))
        value = f"U{tag} * {b}{{c}}"
        if INTERCEPT in reported.names:
            for other in (other for other in terms if zero[fit.linear.places[other.number]].any()):
                V = np.zeros((len(T), other.term.size))
                V[reported.names.index(INTERCEPT)] = zero[fit.linear.places[other.number]]
                name = f"zero{other.part.weights.removeprefix('b')}"
                parts.append(_matrix("matrix", name, V, "what the intercept takes from columns that are not 0"))
                value += f" + {name} * {other.part.weights}{{c}}"
        parts.append(StanPart(generated=(StanDefinition(f"vector[{len(T)}]", f"coefficient{tag}", value,
                                                        ", ".join(reported.names)),)))
    own = [StanDefinition(f"vector[{size}]", "cut", cut, "for columns as they are written") for size in cuts]
    return [*parts, StanPart(generated=tuple(own))]


def _matrix(kind: str, name: str, values: Array, words: str) -> StanPart:
    size = ", ".join(map(str, values.shape))
    return StanPart(data=(f"{kind}[{size}] {name};" + said(words),), values={name: values})


def _text(fit: FormulaFit, parts: Sequence[StanPart], summands: Sequence[str], likelihood: str) -> str:
    """The program: every block of Stan with the lines of all parts."""
    classes = len(fit.model.likelihood.fields)
    f = " + ".join(summands) or "rep_vector(0, N)"
    if classes == 1:
        latent = [f"vector[N] f = {f.replace('{c}', '')};"]
    else:
        latent = ["matrix[N, C] f;", f"for (c in 1:C) f[:, c] = {f.replace('{c}', '[c]')};"]
    priors = [line for part in parts for line in part.model]
    blocks = {
        "data": [line for part in parts for line in part.data],
        "parameters": [line for part in parts for line in part.parameters],
        "transformed parameters": [line for part in parts for own in part.transformed for line in own.lines(classes)],
        "model": [*(_each(line, classes) for line in priors), *latent, likelihood],
        "generated quantities": [line for part in parts for own in part.generated for line in own.lines(classes)],
    }
    text = [f"// {comment(fit.formula)}", f"// {comment(fit.family)}"]
    for name, lines in blocks.items():
        text += [f"{name} {{", *(f"  {line}" for line in lines), "}"] if lines else []
    return "\n".join(text) + "\n"


def _each(line: str, classes: int) -> str:
    """A statement, for every class where it speaks of one."""
    if classes == 1 or "{c}" not in line:
        return line.replace("{c}", "")
    return f"for (c in 1:C) {line.replace('{c}', '[c]')}"
