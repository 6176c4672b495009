"""Statistics of a study: mean and standard deviation, and paired differences with bootstrap intervals."""

import math
import statistics
from dataclasses import dataclass

import numpy as np

from bert_hf.analysis.study.metrics import Values

RESAMPLES = 10_000
_SEED = 0


@dataclass(frozen=True)
class Summary:
    """Mean, standard deviation and number of all values, and their standard deviation over the seeds of a fold.

    The latter is the square root of the variances' mean over the folds. None: too few values.
    """

    mean: float
    sd: float | None
    count: int
    sd_of_seeds: float | None


@dataclass(frozen=True)
class Difference:
    """The mean over the folds of a difference, and its 95 % interval; None with fewer than two folds.

    Attributes:
        higher: folds in which the model's metric is the higher one.
    """

    mean: float
    interval: tuple[float, float] | None
    folds: int
    higher: int


def summarize(values: Values) -> Summary:
    """Summary of one model at one training size."""
    everything = [value for of_fold in values.values() for value in of_fold]
    sd = statistics.stdev(everything) if len(everything) > 1 else None

    variances = [statistics.variance(of_fold) for of_fold in values.values() if len(of_fold) > 1]
    sd_of_seeds = math.sqrt(statistics.fmean(variances)) if variances else None
    return Summary(statistics.fmean(everything), sd, len(everything), sd_of_seeds)


def paired_difference(values: Values, reference: Values) -> Difference:
    """The difference of two models on the same folds, seeds averaged first.

    The folds are the sample: seeds of one fold share their test rows and are not independent. The interval is that of
    the percentile bootstrap over folds (Efron 1979), with a fixed seed. With few folds it is too narrow, and holds the
    true difference in far fewer than 95 % of all cases: docs/studies.md.
    """
    folds = sorted(values.keys() & reference.keys())
    differences = np.array([statistics.fmean(values[fold]) - statistics.fmean(reference[fold]) for fold in folds])
    higher = int((differences > 0).sum())
    if len(folds) < 2:
        return Difference(float(differences.mean()), None, len(folds), higher)

    drawn = np.random.default_rng(_SEED).integers(0, len(folds), (RESAMPLES, len(folds)))
    low, high = np.quantile(differences[drawn].mean(axis=1), (0.025, 0.975))
    return Difference(float(differences.mean()), (float(low), float(high)), len(folds), higher)
