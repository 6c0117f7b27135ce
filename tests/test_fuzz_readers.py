"""Every reader of a file is given seeded damage: it refuses in one line, or reads what is right.

`pytest -m complete` goes on with new damage for ten minutes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.campaign import Reader, run_cases, seeds_for
from fuzz.checkpoints import CheckpointBytes, DamagedRun, SealedCheckpoint, SealedDialect
from fuzz.incidents import IncidentFile
from fuzz.models import CarriedRecord, FamilyFiles, HubDialect, HubFolder, LlmcFiles
from fuzz.records import CacheFiles, ConfigurationFile, RunLogFile, Settings, TokenizerRecord
from fuzz.texts import GzippedText, JsonLines, Parquet, PlainText

# How many cases run each time, and what must have come of some of them.
READERS: dict[type[Reader], tuple[int, set[str]]] = {
    CheckpointBytes: (150, {"refused"}),
    SealedCheckpoint: (150, {"refused", "read"}),
    SealedDialect: (150, {"refused", "read"}),
    DamagedRun: (40, {"refused", "read", "fell back"}),
    TokenizerRecord: (400, {"refused", "read"}),
    Settings: (500, {"refused", "read"}),
    ConfigurationFile: (200, {"refused", "read"}),
    CacheFiles: (40, {"built again"}),
    RunLogFile: (100, {"rewound"}),
    IncidentFile: (150, {"refused", "read"}),
    CarriedRecord: (150, {"refused", "read"}),
    HubFolder: (150, {"refused", "read"}),
    HubDialect: (120, {"refused", "read"}),
    LlmcFiles: (150, {"refused", "read"}),
    FamilyFiles: (60, {"refused", "read"}),
    JsonLines: (120, {"refused", "read", "read with bad lines"}),
    PlainText: (120, {"refused", "read"}),
    GzippedText: (80, {"refused"}),
    Parquet: (60, {"refused", "read"}),
}
# Of those for ten minutes.
SECONDS = 600 / len(READERS)


@pytest.mark.parametrize("kind", READERS, ids=lambda kind: kind.__name__)
def test_seeded_damage(kind: type[Reader], tmp_path: Path) -> None:
    if kind is Parquet:
        pytest.importorskip("pyarrow")
    count, outcomes = READERS[kind]
    seen = run_cases(kind(tmp_path), range(count), tmp_path)
    assert set(seen) >= outcomes, seen


@pytest.mark.complete
@pytest.mark.parametrize("kind", READERS, ids=lambda kind: kind.__name__)
def test_damage_for_minutes(kind: type[Reader], tmp_path: Path) -> None:
    if kind is Parquet:
        pytest.importorskip("pyarrow")
    seen = run_cases(kind(tmp_path), seeds_for(SECONDS), tmp_path)
    assert sum(seen.values()) > READERS[kind][0], seen
