"""A run that was never disturbed, and what must be true of one that was, once it got to its end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from andrea.errors import RunError
from andrea.runs import RunFolder
from cli_process import TEXT, TINY

from .disk import Child, Nursery, Outcome

DAMAGED = "damaged"


class Rehearsal:
    """A folder with a text, in which the same run is trained again and again.

    It has so many steps and saves after every `save_every`; with evaluations between.
    """

    def __init__(
        self, nursery: Nursery, folder: Path, *, steps: int, save_every: int, eval_every: int
    ) -> None:
        self.nursery, self.folder, self.steps = nursery, folder, steps
        self._options = (
            *(*TINY, "--batch-size", "4", "--steps", str(steps)),
            *("--save-every", str(save_every), "--eval-every", str(eval_every)),
        )
        folder.mkdir(exist_ok=True)
        (folder / "book.txt").write_text(TEXT, encoding="utf-8")
        nursery.learn(folder, "train", "book.txt", *TINY, "--steps", "2", "--out", "first")
        nursery.learn(folder, "train", "--resume", "first", "--steps", "4")
        done = self.begin("whole").wait()
        assert (done.code, done.err) == (0, ""), done.err
        self.final = newest(folder / "whole").read_bytes()
        self.losses = losses(folder / "whole")
        assert [step for step, _ in self.losses] == list(range(1, steps + 1))

    def begin(self, out: str, rules: str = "") -> Child:
        """Start the run in a new folder, or one that holds no checkpoint yet."""
        arguments = ("train", "book.txt", *self._options, "--out", out)
        return self.nursery.start(self.folder, *arguments, rules=rules)

    def resume(self, out: str, rules: str = "") -> Child:
        """Go on with a run."""
        return self.nursery.start(self.folder, "train", "--resume", out, rules=rules)

    def go_on(self, out: str, rules: str = "") -> Child:
        """Start or continue, whatever there is."""
        is_begun = self.step(out) is not None
        return self.resume(out, rules) if is_begun else self.begin(out, rules)

    def copy(self, of: str, out: str) -> Path:
        """A copy of a run as it is on the disk."""
        target = self.folder / out
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.folder / of, target)
        return target

    def damage(self, of: str, out: str) -> None:
        """A copy of a run whose newest checkpoint is damaged."""
        path = newest(self.copy(of, out))
        content = bytearray(path.read_bytes())
        content[-9] ^= 1
        path.write_bytes(content)
        (self.folder / out / DAMAGED).touch()

    def step(self, out: str) -> int | None:
        """The step that a run would go on from; None where it never saved. Nothing is damaged,
        but for what a test damaged."""
        try:
            with RunFolder.open(self.folder / out) as run:
                assert run.damaged == () or (self.folder / out / DAMAGED).exists()
                run.tokenizer()
                return run.state().step
        except RunError:
            # No checkpoint under its name: not one that is broken.
            assert not list((self.folder / out).glob("checkpoints/step-*.safetensors"))
            return None

    def finish(self, out: str) -> None:
        """Go on to the end, undisturbed; the outcome is that of the run that never was."""
        if self.step(out) != self.steps:
            done = self.go_on(out).wait()
            assert (done.code, done.err) == (0, ""), done.err + done.out[-2000:]
            assert log(self.folder / out)[-1]["type"] == "run.end"
            left = [path.name for path in (self.folder / out).rglob("*.tmp")]
            assert left == []
        self.check_end(out)

    def check_end(self, out: str) -> None:
        """The last checkpoint, byte for byte, and the log: each step once, in order."""
        folder = self.folder / out
        assert newest(folder).read_bytes() == self.final
        assert losses(folder) == self.losses
        evaluations = [entry["step"] for entry in log(folder) if entry["type"] == "run.eval"]
        assert evaluations == sorted(set(evaluations)) and evaluations[-1] == self.steps


def newest(run: Path) -> Path:
    """A run's newest checkpoint, by name."""
    return max(run.glob("checkpoints/step-*.safetensors"))


def log(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's log; each must be one, but for half a line of a process that was killed
    at the end, which is for the next one to remove."""
    *lines, half = (run / "log.jsonl").read_text("utf-8").split("\n")
    assert half == "" or not half.endswith("}")
    return [json.loads(line) for line in lines]


def losses(run: Path) -> list[tuple[int, float]]:
    """Step and loss, as they stand in the log."""
    return [(entry["step"], entry["loss"]) for entry in log(run) if entry["type"] == "run.loss"]


def kinds_of_calls(done: Outcome) -> list[tuple[int, str]]:
    """Number and kind of each first call of its kind among those that were traced.

    A kind is the call and the file, apart from numbers in its name.
    """
    kinds: dict[str, int] = {}
    for number, met in enumerate(done.met, start=1):
        name = "".join("n" if letter.isdigit() else letter for letter in met.path.name)
        kinds.setdefault(f"{met.call} {name}", number)
    return [(number, kind) for kind, number in kinds.items()]
