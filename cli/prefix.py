"""`andrea prefix`: the folder that programs in C and C++ are built against."""

from __future__ import annotations

import click

from .option_kinds import SectionCommand


@click.command(
    "prefix", cls=SectionCommand, short_help="Where the C library is, for CMake and pkg-config."
)
def command() -> None:
    """Print the folder that holds include/ and lib/ of the engine as a C library.

    For CMake: -DCMAKE_PREFIX_PATH="$(andrea prefix)", then find_package(microgpt_cuda). For
    pkg-config: PKG_CONFIG_PATH="$(andrea prefix)/lib/pkgconfig", then pkg-config microgpt_cuda.
    """
    from andrea.installed import prefix

    click.echo(prefix())
