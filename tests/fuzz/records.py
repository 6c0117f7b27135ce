"""Damaged records: tokenizers, settings and states as plain data, cached files, a run's log."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import andrea
from andrea.data import prepare
from andrea.reporting.metrics import Metrics
from andrea.runconfig import PATH, SECTIONS, read_config, write_config
from andrea.runs.log import newest_run_id, rewind
from andrea.tokenizers import tokenizer_from_dict, train_tokenizer
from andrea.training import TrainConfig, TrainState

from .damage import damage_bytes, damage_json

TEXT = "the theme of the thesis is that other things are there; " * 20
_ODD_TOML = (
    *("1", "-1", "1e999", "nan", "0x_", "true", '""', '"20m"', '"\\u', "[]", "[[1], [2]]", "{}"),
    *("x", "07:30:00", "2026-11-30", "2026-11-30T07:30:00Z", "9" * 5000, "[" * 5000, "'" * 3),
)


class TokenizerRecord:
    """Refused, or a tokenizer: what it encodes it decodes, and it is stored as it was read."""

    def __init__(self, _folder: Path) -> None:
        self.good = [
            train_tokenizer("byte", [TEXT]).tokenizer.to_dict(),
            train_tokenizer("char", [TEXT]).tokenizer.to_dict(),
            train_tokenizer("bpe", [TEXT], vocab_size=280).tokenizer.to_dict(),
        ]

    def case(self, random: Random, folder: Path) -> str:
        tokenizer = tokenizer_from_dict(damage_json(random, random.choice(self.good)))
        known = tokenizer.decode(range(tokenizer.vocab_size - 1))
        assert tokenizer.name == "bpe" or tokenizer.decode(tokenizer.encode(known)) == known
        if tokenizer.name != "char":
            tokens = tokenizer.encode(TEXT)
            assert tokenizer.decode(tokens) == TEXT
            assert 0 <= tokens.min() <= tokens.max() < tokenizer.beginning_of_document
        again = tokenizer_from_dict(json.loads(json.dumps(tokenizer.to_dict())))
        assert again == tokenizer
        assert again.vocab_size == tokenizer.vocab_size
        return "read"


_DIALECT = andrea.ModelConfig(
    *(65, 64, 2, 4, 32),
    norm="rmsnorm",
    norm_position="post",
    activation="swiglu",
    mlp_dim=20,
    mlp_bias=False,
    tie_embeddings=False,
    embedding_norm=True,
)


def _written(read: Any) -> dict[str, Any]:
    """All of what was read, as it is saved."""
    if isinstance(read, andrea.ModelConfig):
        return read.to_full_dict()
    written: dict[str, Any] = (
        read.to_dict(timed=True) if isinstance(read, TrainState) else read.to_dict()
    )
    return written


class Settings:
    """Settings and states: refused, or exactly what was given, and of the kinds they should be."""

    def __init__(self, _folder: Path) -> None:
        shape = andrea.ModelConfig(65, 64, 2, 4, 32)
        train = TrainConfig(8, 3e-4, steps=100, warmup=10, eval_every=10)
        state = TrainState(step=7, best_loss=1.5, best_step=5, recent_losses=[2.5, 2.25])
        self.good: list[tuple[dict[str, Any], Callable[[Mapping[str, Any]], Any]]] = [
            (shape.to_dict(), andrea.ModelConfig.from_dict),
            (_DIALECT.to_full_dict(), andrea.ModelConfig.from_dict),
            (train.to_dict(), TrainConfig.from_dict),
            (state.to_dict(timed=True), TrainState.from_dict),
        ]

    def case(self, random: Random, folder: Path) -> str:
        good, from_dict = random.choice(self.good)
        damaged = damage_json(random, good)
        read = from_dict(damaged)
        back = _written(read)
        for name, value in damaged.items():
            if name == "mlp_dim" and value == 0:
                continue  # the usual one: it is said which
            assert back[name] == value, name
            assert type(back[name]) is type(value) or name == "init_std", name
            kinds = {type(value), type(good[name])}
            assert kinds <= {int, float} or type(None) in kinds or len(kinds) == 1, name
        json.dumps(back, allow_nan=False)  # it can be saved
        return "read"


class CacheFiles:
    """A damaged cache is not served: the tokens are those of the text, or it is told."""

    def __init__(self, folder: Path) -> None:
        self.book = folder / "book.txt"
        self.book.write_text(TEXT)
        self.cache = folder / "cache-of-book"
        first = self._prepare()
        self.tokens = np.array(first.train), np.array(first.validation)
        self.facts = first.tokenizer, first.train_bytes, first.validation_bytes, first.documents

    def _prepare(self) -> Any:
        return prepare([self.book], cache_dir=self.cache, tokenizer="char")

    def case(self, random: Random, folder: Path) -> str:
        files = sorted(path for path in self.cache.rglob("*") if path.is_file())
        path = random.choice(files)
        content = path.read_bytes()
        if path.suffix == ".json" and random.random() < 0.5:
            damaged = json.dumps(damage_json(random, json.loads(content)))
            path.write_text(damaged)
        else:
            path.write_bytes(damage_bytes(random, content))
        data = self._prepare()
        np.testing.assert_array_equal(data.train, self.tokens[0])
        np.testing.assert_array_equal(data.validation, self.tokens[1])
        facts = data.tokenizer, data.train_bytes, data.validation_bytes, data.documents
        assert facts == self.facts
        return "served" if data.cached else "built again"


class ConfigurationFile:
    """A damaged TOML file: refused, or keys that there are with values of their kinds."""

    def __init__(self, folder: Path) -> None:
        path = folder / "good.toml"
        values = {"text": ["book.txt", "-"], "out": "run", "steps": 9, "tokens": "10M"}
        more = {"for": "20m", "learning_rate": 1e-3, "skip_bad": False, "until": "07:30"}
        write_config(path, {**values, **more, "n_layer": 2, "threads": 4, "encoding": "utf-8"})
        self.good = path.read_text()

    def case(self, random: Random, folder: Path) -> str:
        path = folder / "run.toml"
        if random.random() < 0.5:
            content = damage_bytes(random, self.good.encode())
        else:
            lines = self.good.splitlines()
            where = random.randrange(len(lines))
            key = lines[where].split(" = ")[0]
            lines[where] = f"{key} = {random.choice(_ODD_TOML)}"
            content = "\n".join(lines).encode()
        path.write_bytes(content)
        kinds = {key: kind for keys in SECTIONS.values() for key, kind in keys.items()}
        for key, value in read_config(path).items():
            is_right, _ = kinds[key]
            assert is_right(value), (key, value)
            if kinds[key] is PATH:
                assert Path(value).is_absolute()
        return "read"


class RunLogFile:
    """A damaged log: what is whole and belongs to the past stays, what the run left is undone."""

    def __init__(self, _folder: Path) -> None:
        """Nothing to prepare."""

    def case(self, random: Random, folder: Path) -> str:
        path = folder / "log.jsonl"
        step, run_id = random.randrange(8), "mine"
        entries: list[Any] = [{"type": "run.start", "run_id": run_id, "ts": "2026", "model": {}}]
        for number in range(1, 9):
            entry = {"type": "run.loss", "run_id": run_id, "ts": "2026", "step": number}
            entries.append({**entry, "loss": 1.5})
            if random.random() < 0.2:
                entries.append({**entry, "run_id": "other"})
        lines = [json.dumps(entry).encode() + b"\n" for entry in entries]
        whole = {line[:-1] for line in lines}
        where = random.randrange(len(lines))
        if random.random() < 0.5:
            lines[where] = json.dumps(damage_json(random, entries[where])).encode() + b"\n"
            content = b"".join(lines)
        else:
            content = damage_bytes(random, b"".join(lines))
        path.write_bytes(content)
        name = newest_run_id(path)
        assert name is None or isinstance(name, str)
        self._check_metrics(path)
        rewind(path, run_id, step)
        self._check_metrics(path)
        kept, before = path.read_bytes().split(b"\n"), content.split(b"\n")
        for line in before[:-1]:
            if line not in whole:
                continue
            entry = json.loads(line)
            is_past = entry["run_id"] != run_id or entry.get("step", 0) <= step
            assert kept.count(line) == (before[:-1].count(line) if is_past else 0), line
        assert kept[-1] == b"", "half a line is left"
        return "rewound"

    @staticmethod
    def _check_metrics(path: Path) -> None:
        """What plots and reports read from any log is finite."""
        metrics = Metrics.from_log(path)
        assert all(math.isfinite(bucket.mean) for bucket in metrics.loss.buckets)
