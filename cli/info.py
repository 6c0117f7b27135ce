"""`andrea info`: what a model is made of, what a run has reached, what this machine offers."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .dialect_options import dialect_options, given_switches
from .errors import Failure
from .option_kinds import SectionCommand, option
from .options import run_or_preset_argument
from .recorded import check_record

if TYPE_CHECKING:
    from andrea.config import ModelConfig
    from andrea.runs.folder import RunFolder


@click.command(
    "info", cls=SectionCommand, short_help="Show what a model, a run or this machine is."
)
@run_or_preset_argument
@dialect_options
@option("--json", "as_json", section="Options", is_flag=True, help="Print JSON for programs.")
def command(what: str | None, as_json: bool, **options: Any) -> None:
    """Show the parameters, memory and work of a run or preset; or, of none, this machine.

    A preset is shown in the dialect that the options choose.
    """
    from andrea.config import PRESETS

    is_preset = what in PRESETS and not os.path.exists(what)
    if not is_preset:
        _refuse_dialect(options, what)
    if what is None:
        facts = _overview()
    elif is_preset:
        config = preset_config(what, options["dialect"], given_switches(options))
        facts = {"preset": what, **_model_facts(config, batch_size=1)}
    else:
        facts = _run_facts(what)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    from .info_text import info_lines

    width = shutil.get_terminal_size().columns
    for line in info_lines(facts, width):
        click.echo(line)


def preset_config(
    name: str, dialect: str | None = None, switches: Mapping[str, Any] | None = None
) -> ModelConfig:
    """A preset's model in its own dialect or another; where the text decides the vocabulary, that
    of bytes stands in.

    Raises:
        ConfigError: there is no such model.
    """
    from andrea.config import DIALECT_SETTINGS, PRESETS, ModelConfig
    from andrea.planning.dialects import chosen_dialect

    sizes = {key: size for key, size in PRESETS[name].items() if key not in DIALECT_SETTINGS}
    sizes["vocab_size"] = sizes["vocab_size"] or 257
    return ModelConfig(**sizes, **chosen_dialect(name, dialect, switches or {}))


def _refuse_dialect(options: Mapping[str, Any], what: str | None) -> None:
    given = [(name, value) for name, value in options.items() if value is not None]
    for name, value in given:
        flag = ("--no-" if value is False else "--") + name.replace("_", "-")
        where = "needs a preset" if what is None else f"is for a preset, which {what} is not"
        raise Failure(f"{flag} {where}: andrea info andrea-12m {flag} ...")


def _overview() -> dict[str, Any]:
    import andrea
    from andrea.config import PRESETS
    from andrea.planning.machine import available_memory
    from andrea.planning.sizes import memory_plan, num_parameters

    engine = andrea.engine_info()
    presets = []
    for name in PRESETS:
        config = preset_config(name)
        presets.append(
            {
                "name": name,
                "config": config.to_dict(),
                "vocab_size_from_text": not PRESETS[name]["vocab_size"],
                "parameters": num_parameters(config),
                "training_memory": memory_plan(config, 1)["total"],
            }
        )
    machine = {
        "andrea": andrea.__version__,
        "engine": engine["version"],
        "devices": engine["devices"],
        "gpu": engine["gpu"],
        "no_gpu": engine["no_gpu"],
        "instruction_set": engine["isa"],
        "instruction_sets": andrea.available_instruction_sets(),
        "threads": engine["threads"],
        "memory_available": available_memory(),
    }
    return {"machine": machine, "presets": presets}


def _model_facts(config: ModelConfig, batch_size: int) -> dict[str, Any]:
    from andrea.config import DIALECT_SETTINGS
    from andrea.planning.dialects import count_norms, describe_dialect, dialect_name
    from andrea.planning.sizes import (
        flops_formula,
        flops_per_token,
        memory_plan,
        num_parameters,
        parameter_table,
    )

    return {
        "config": config.to_dict(),
        "dialect": {
            "name": dialect_name(config.dialect()),
            "description": describe_dialect(config),
            **{
                name: value
                for name, value in config.to_full_dict().items()
                if name in DIALECT_SETTINGS
            },
        },
        "norms": {"number": config.num_norms, "places": count_norms(config)},
        "parameters": num_parameters(config),
        "table": [
            dataclasses.asdict(row) | {"shape": list(row.shape)} for row in parameter_table(config)
        ],
        "batch_size": batch_size,
        "memory": {
            "training": memory_plan(config, batch_size),
            "sampling": memory_plan(config, 1, use="decoding"),
        },
        "flops_per_token": {
            "forward": flops_per_token(config, training=False),
            "training": flops_per_token(config, training=True),
            "formula": flops_formula(config),
        },
    }


def _run_facts(what: str) -> dict[str, Any]:
    from andrea.runs.folder import RunFolder

    refuse_unknown(what)
    with RunFolder.open(Path(what)) as run:
        check_record(run)
        batch_size = run.config.batch_size if run.info.train else 1
        return {"run": _progress_facts(run), **_model_facts(run.info.model, batch_size)}


def refuse_unknown(what: str) -> None:
    """Refuse a name that is no preset's and that nothing is at.

    Raises:
        Failure: naming the presets.
    """
    from andrea.config import PRESETS

    if not os.path.exists(what) and os.sep not in what:
        raise Failure(
            f"{what} is neither a run's folder nor a preset; the presets are {', '.join(PRESETS)}"
        )


def _progress_facts(run: RunFolder) -> dict[str, Any]:
    record = dict(run.info.record)
    facts: dict[str, Any] = {
        "path": str(run.path),
        "run_id": run.run_id,
        "checkpoint_bytes": run.checkpoint_path.stat().st_size,
        "tokenizer": run.tokenizer().describe(),
        "record": record,
        "training": None if run.info.train is None else run.config.to_dict(),
        "state": None if run.info.state is None else run.state().to_dict(timed=_is_timed(run)),
        "losses": _last_losses(run.log_path),
    }
    return facts


def _is_timed(run: RunFolder) -> bool:
    return run.info.train is not None and run.config.seconds is not None


def _last_losses(log: Path) -> dict[str, Any]:
    """The last losses that the log tells of; a damaged line is passed over."""
    losses: dict[str, Any] = {}
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return losses
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if not isinstance(event, dict):
            continue
        if event.get("type") == "run.loss":
            losses["step"], losses["training"] = event.get("step"), event.get("loss")
        elif event.get("type") == "run.eval":
            losses["validation"] = event.get("score")
            losses["validation_step"] = event.get("step")
            losses["bits_per_byte"] = event.get("bits_per_byte")
    return losses
