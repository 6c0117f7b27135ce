"""What an experiment found: a row for each variant, a verdict for each claim, all of it as data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from andrea.planning.sizes import flops_per_token, num_parameters
from andrea.words import decimal, plural

from .experiment import Contrast, Experiment, Table, Variant
from .run import Run
from .statistics import LEVEL, UNDECIDED, Summary, Verdict, all_of, judge, judge_alike, summary

if TYPE_CHECKING:
    from andrea.data import PreparedData

FORMAT = 1
"""Of `Results.to_dict`; another number where a program would read it wrongly."""


@dataclass(frozen=True)
class Judged:
    """A claim and what the numbers say of it. effect: one for each seed that has all runs that it
    needs; None where there is no such seed."""

    contrast: Contrast
    effect: Summary | None
    verdict: Verdict


@dataclass(frozen=True)
class Results:
    """The runs of an experiment, those that are done, and what they say.

    seeds: that there were to be. device: what it ran on.
    """

    experiment: Experiment
    runs: tuple[Run, ...]
    seeds: tuple[int, ...]
    text: PreparedData
    device: str

    @property
    def is_complete(self) -> bool:
        """Whether all runs are done."""
        return len(self.runs) == len(self.seeds) * len(self.experiment.variants)

    def of(self, variant: Variant) -> tuple[Run, ...]:
        """The runs of a variant, in the order of the seeds."""
        return tuple(run for run in self.runs if run.variant == variant.name)

    def by_seed(self) -> dict[int, dict[str, Run]]:
        """The runs by seed and by the variant's name."""
        found: dict[int, dict[str, Run]] = {}
        for run in self.runs:
            found.setdefault(run.seed, {})[run.variant] = run
        return found

    def diverged(self, variant: Variant) -> int:
        """How many of its runs diverged."""
        return sum(run.diverged is not None for run in self.of(variant))

    def loss(self, variant: Variant) -> Summary | None:
        """Its score over the seeds (see `Run.score`); None where none of its runs is done."""
        scores = [run.score for run in self.of(variant)]
        return summary(scores) if scores else None

    @cached_property
    def judged(self) -> tuple[Judged, ...]:
        """Every claim of the experiment with its verdict."""
        return tuple(map(self._judge, self.experiment.contrasts))

    @property
    def outcome(self) -> str:
        """Whether all that the experiment is to show holds: of those claims that decide it."""
        return all_of([one.verdict for one in self.judged if one.contrast.decides])

    @property
    def steps_done(self) -> int:
        """Of all runs together."""
        return sum(run.steps for run in self.runs)

    def _judge(self, contrast: Contrast) -> Judged:
        values, silent = self._values(contrast)
        if not values:
            why = "no seed tells: its runs are not done, or what would tell is beyond them"
            return Judged(contrast, None, Verdict(UNDECIDED, why))
        effect = summary(values)
        rule = judge_alike if contrast.alike else judge
        verdict = rule(effect, contrast.bound, contrast.unit)
        if silent:
            # They are not silent by chance: what the others say is no answer for all.
            told = f"{plural(silent, 'seed')} of {silent + len(values)} cannot tell"
            verdict = Verdict(UNDECIDED, f"{verdict.why}; but {told}")
        return Judged(contrast, effect, verdict)

    def _values(self, contrast: Contrast) -> tuple[list[float], int]:
        """A number of each seed that has one, and how many have none though their runs are done."""
        values, silent = [], 0
        for runs in self.by_seed().values():
            try:
                value = contrast.value(runs)
            except KeyError:
                value = math.nan
            if math.isfinite(value):
                values.append(value)
            elif len(runs) == len(self.experiment.variants):
                silent += 1
        return values, silent

    def table(self) -> Table:
        """A row for each variant: its size, its loss over the seeds, and its measures."""
        return Table(self.experiment.title, self._header(), tuple(self._rows()))

    def _header(self) -> tuple[str, ...]:
        columns = [measure.title for measure in self.experiment.measures]
        return ("variant", "parameters", "loss", "± sd", *columns, "diverged")

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for variant in self.experiment.variants:
            runs = self.of(variant)
            loss = self.loss(variant)
            if loss is None:
                continue
            measured = []
            for measure in self.experiment.measures:
                values = [value for run in runs if (value := measure.value(run)) is not None]
                mean = sum(values) / len(values) if values else None
                measured.append("" if mean is None else decimal(mean, measure.digits))
            failed = self.diverged(variant)
            yield (
                variant.name,
                f"{num_parameters(variant.model):,}",
                f"{loss.mean:.4f}",
                "" if loss.sd is None else f"{loss.sd:.4f}",
                *measured,
                f"{failed} of {len(runs)}" if failed else "",
            )

    def tables(self) -> tuple[Table, ...]:
        """That of the variants, and what else the experiment shows in tables."""
        more = self.experiment.tables
        return (self.table(), *(() if more is None or not self.runs else more(self)))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data for JSON; the same for the same seeds, text and machine."""
        experiment = self.experiment
        return {
            "format": FORMAT,
            "experiment": experiment.name,
            "title": experiment.title,
            "claim": experiment.claim,
            "mode": experiment.mode,
            "outcome": self.outcome,
            "complete": self.is_complete,
            "device": self.device,
            "seeds": list(self.seeds),
            "text": {
                "fingerprint": self.text.fingerprint,
                "bytes": self.text.num_bytes,
                "train_tokens": len(self.text.train),
                "validation_tokens": len(self.text.validation),
                "tokenizer": self.text.tokenizer.describe(),
                "unigram_entropy": self.text.unigram_entropy,
            },
            "level": LEVEL,
            "claims": [self._claim(one) for one in self.judged],
            "variants": [self._variant(variant) for variant in experiment.variants],
            "tables": [
                {"title": table.title, "header": list(table.header), "rows": list(table.rows)}
                for table in self.tables()
            ],
            "data": {} if experiment.data is None or not self.runs else dict(experiment.data(self)),
            "notes": list(experiment.notes),
            "runs": [run.to_dict() for run in self.runs],
        }

    @staticmethod
    def _claim(one: Judged) -> dict[str, Any]:
        effect = one.effect
        return {
            "claim": one.contrast.claim,
            "outcome": one.verdict.outcome,
            "why": one.verdict.why,
            "decides": one.contrast.decides,
            "test": "alike" if one.contrast.alike else "at least",
            "bound": one.contrast.bound,
            "unit": one.contrast.unit.strip(),
            "effect": None if effect is None else effect.to_dict(),
            "effect_size": None if effect is None else effect.effect_size,
        }

    def _variant(self, variant: Variant) -> dict[str, Any]:
        loss = self.loss(variant)
        return {
            "name": variant.name,
            "factors": dict(variant.factors),
            "model": variant.model.to_full_dict(),
            "training": variant.train.to_dict(),
            "parameters": num_parameters(variant.model),
            "flops_per_token": flops_per_token(variant.model, training=True),
            "loss": None if loss is None else loss.to_dict(),
            "diverged": self.diverged(variant),
        }
