"""``klimb completion``: the script that makes a shell complete commands and options."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the script that lets SHELL complete commands, options and file names.

    \b
    Examples:
      eval "$(klimb completion bash)"       # put this line into ~/.bashrc
      klimb completion zsh > ~/.zfunc/_klimb
      klimb completion fish > ~/.config/fish/completions/klimb.fish
    """
    from click.shell_completion import get_completion_class

    from klimb.cli.app import app
    from klimb.cli.shell import emit

    maker = get_completion_class(shell)
    assert maker is not None
    emit(maker(app, {}, "klimb", "_KLIMB_COMPLETE").source())
