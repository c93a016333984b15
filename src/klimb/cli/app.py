"""The group of commands. Their modules are imported when they are called: --help stays fast."""

from importlib import import_module
from pathlib import Path

import click

import klimb
from klimb.cli.shell import emit
from klimb.errors import nearest

COMMANDS = {  # name: (where it is, one line for --help)
    "fit": ("klimb.cli.fit.command", "Fit a model given by a formula, print its table, save it."),
    "cache": ("klimb.cli.fit.cache_command", "Convert columns of large files to memory maps, for faster fits."),
    "predict": ("klimb.cli.saved.command", "Predict new rows with intervals."),
    "report": ("klimb.cli.saved.report_command", "Write a one-page HTML report of a saved fit."),
    "compare": ("klimb.cli.saved.compare_command", "Rank saved fits of the same data."),
    "check": ("klimb.cli.saved.check_command", "Report whether a saved fit can be trusted, and why."),
    "info": ("klimb.cli.saved.info_command", "Show what a saved file contains."),
    "calibrate": ("klimb.cli.fit.calibrate_command", "Check the coverage of intervals by simulation."),
    "label": ("klimb.cli.label.command", "Label a table on a local web page, by active learning."),
    "demo": ("klimb.cli.app.demo_command", "Fit the bundled example and write its report."),
    "reproduce": ("klimb.cli.reproduce.command", "Reproduce tables and figures of the papers klimb is based on."),
    "completion": ("klimb.cli.app.completion_command", "Print the completion script for a shell."),
}

EPILOG = """\b
Examples:
  klimb fit "y ~ x + (1 | g)" data.csv --family bernoulli -o m.klimb
  klimb predict m.klimb new.csv > predictions.csv
  klimb report m.klimb -o report.html

\b
Exit codes:
  0 converged    1 invalid input    2 usage    130 interrupted
  3 not converged, or in doubt    4 misfit (klimb check, klimb fit --strict)
"""


class Commands(click.Group):
    """Finds commands by name without importing the others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].rpartition(".")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str],
                        ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            hint = nearest(args[0], COMMANDS).strip() or f"The commands are: {', '.join(COMMANDS)}."
            raise click.UsageError(f"There is no command {args[0]!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])


@click.group(cls=Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(klimb.__version__, message="klimb %(version)s")
def app() -> None:
    """Latent Gaussian models by formula: fitted deterministically, with a verdict on whether to trust the answer."""


@click.command("completion")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion_command(shell: str) -> None:
    """Print the script that lets SHELL complete commands, options and file names.

    \b
    Examples:
      eval "$(klimb completion bash)"       # put this line into ~/.bashrc
      klimb completion zsh > ~/.zfunc/_klimb
      klimb completion fish > ~/.config/fish/completions/klimb.fish
    """
    from click.shell_completion import get_completion_class
    maker = get_completion_class(shell)
    assert maker is not None
    emit(maker(app, {}, "klimb", "_KLIMB_COMPLETE").source())


@click.command("demo")
@click.option("-o", "--output", "folder", metavar="DIRECTORY", default=".", show_default=True,
              type=click.Path(file_okay=False, path_type=Path), help="Directory for the three files.")
def demo_command(folder: Path) -> int:
    """Fit the bundled example (a mixed logistic regression), predict, and write report, picture and table.

    \b
    Examples:
      klimb demo
      klimb demo -o /tmp/klimb-demo
    """
    from klimb.cli.fit import exit_code
    from klimb.demo.run import run
    folder.mkdir(parents=True, exist_ok=True)
    return exit_code(run(folder, emit))
