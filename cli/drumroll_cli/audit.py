"""`drumroll audit`: what a finished job's journal and checkpoint prove."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drumroll.errors import EXIT_INTERNAL

if TYPE_CHECKING:
    from drumroll_planner.audit import AuditReport


def audit(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="A run directory, or a job's folder on its volume.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for programs.")] = False,
) -> None:
    """Prove from a finished job's journal and checkpoint that nothing was lost, repeated or too old.

    Checked: each admitted ticket has exactly one end; each trained one is in exactly one step of the final lineage; no
    token over the lag bound entered the loss. Exit code 0: all of it holds; 1: not, with the tickets named; 2: there is
    nothing to check.

    Examples:

    `drumroll audit runs/first-light`
    """
    report = _report(run_dir)
    if as_json:
        found = {"ok": report.ok, "outcome": report.outcome, "findings": report.findings, "counts": dict(report.counts)}
        typer.echo(json.dumps(found, indent=1))
    else:
        for finding in report.findings:
            typer.echo(finding)
        typer.echo(report.summary())
    if not report.ok:
        raise typer.Exit(EXIT_INTERNAL)


def _report(run_dir: Path) -> "AuditReport":
    from drumroll_planner.audit import CheckpointFacts, audit
    from drumroll_scheduler.rules import rules_of
    from drumroll_trainer.checkpoints import CheckpointStore

    from drumroll_cli.story import read_story

    story = read_story(run_dir)
    newest = CheckpointStore(story.job.layout.checkpoints_dir).newest()
    facts = CheckpointFacts(newest.state.step, newest.state.version, newest.state.lineage) if newest else None
    return audit(story.records, rules=rules_of(story.job, story.num_prompts), checkpoint=facts)
