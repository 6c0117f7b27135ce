"""Ways to train that have a name: settings that belong together."""

from __future__ import annotations

from typing import Any

from andrea.errors import ConfigError

# Values by the names of the options of `andrea train`; what is given beside a recipe wins.
RECIPES: dict[str, dict[str, Any]] = {
    # How the ANDREA models were trained, by their authors' description.
    "andrea": {
        "steps": 200_000,
        "block_size": 1024,
        "batch_size": 8,
        "accumulate": 1,
        "learning_rate": 3e-4,
        "schedule": "cosine",
        "warmup": 2000,
        "min_ratio": 0.0,
        "beta1": 0.9,
        "beta2": 0.999,
        "max_norm": 1.0,
        "eval_every": 100,
        "save_every": 100,
        "sample_tokens": 420,
        "coherence_gate": 30.0,
    },
}


def recipe(name: str) -> dict[str, Any]:
    """The settings of a recipe.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in RECIPES:
        raise ConfigError(f"no recipe is called {name!r}; there is {', '.join(RECIPES)}")
    return dict(RECIPES[name])
