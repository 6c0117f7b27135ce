"""A run's curves and samples for TensorBoard, which comes with the extra `tensorboard`.

While a run trains, as a listener of its events; or afterwards, from its log.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from andrea.closing import Closing
from andrea.errors import RunError

from .events import Event, Timestamps, finite, log_path, read_events, whole

FOLDER_NAME = "tensorboard"
# Type of the event -> its fields -> the names of their curves.
_SCALARS = {
    "run.loss": {
        "loss": "loss/training",
        "lr": "learning_rate",
        "gradient_norm": "gradient_norm",
        "tokens_per_second": "tokens_per_second",
    },
    "run.eval": {"score": "loss/validation", "bits_per_byte": "bits_per_byte"},
    "run.sample": {"coherence": "coherence"},
}


class TensorBoardWriter(Closing):
    """Writes event files into a folder; call it with each event of the log.

    After a write that fails it stays silent: training is worth more than its picture.

    Raises:
        RunError: TensorBoard is not installed, or the folder cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise RunError(
                "TensorBoard is not installed; add it with: pip install 'andrea[tensorboard]'"
            ) from error
        self.folder = folder
        self._event, self._summary = event_pb2.Event, summary_pb2
        self._tensor, self._string = tensor_pb2.TensorProto, types_pb2.DT_STRING
        self._times = Timestamps()
        self._failed = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._writer: Any = EventFileWriter(str(folder))
        except OSError as error:
            raise RunError(f"cannot write {folder}: {error.strerror or error}") from error

    def __call__(self, event: Event) -> None:
        """Take in an event as it stands in the log."""
        step, kind = whole(event.get("step")), str(event.get("type"))
        if step is None or self._failed:
            return
        values = []
        for name, tag in _SCALARS.get(kind, {}).items():
            number = finite(event.get(name))
            if number is not None:
                values.append(self._summary.Summary.Value(tag=tag, simple_value=number))
        text = event.get("text")
        if kind in ("run.sample", "run.notice") and isinstance(text, str):
            values.append(self._text(kind.removeprefix("run."), text))
        if not values:
            return
        self._write(
            self._event(
                wall_time=self._times.parse(event.get("ts")) or 0.0,
                step=step,
                summary=self._summary.Summary(value=values),
            )
        )

    def close(self) -> None:
        """Bring all to the disk; a second call does nothing."""
        if self._failed:
            return
        try:
            self._writer.close()
        except OSError:
            self._failed = True

    def _text(self, tag: str, text: str) -> Any:
        # Its text page reads Markdown: a code block keeps the lines of a sample.
        block = "\n".join("    " + line for line in text.splitlines())
        metadata = self._summary.SummaryMetadata(
            plugin_data=self._summary.SummaryMetadata.PluginData(plugin_name="text")
        )
        tensor = self._tensor(dtype=self._string, string_val=[block.encode("utf-8", "replace")])
        return self._summary.Summary.Value(tag=tag, metadata=metadata, tensor=tensor)

    def _write(self, event: Any) -> None:
        try:
            self._writer.add_event(event)
        except OSError:
            self._failed = True


def export(path: Path, folder: Path) -> int:
    """Write the log of a run into a folder for TensorBoard; return the number of events.

    Raises:
        RunError: there is no log, TensorBoard is not installed, or the folder cannot be written.
    """
    log = log_path(path)
    count = 0
    with TensorBoardWriter(folder) as writer:
        for event in read_events(log):
            writer(event)
            count += 1
    return count
