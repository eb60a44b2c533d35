"""docs/conditions.md, made from conditions and reasons: `python -m drumroll_operator.contract_page FILE`."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

from drumroll.api.status import Phase
from drumroll_operator.conditions import CONDITIONS, PARTS
from drumroll_operator.reasons import documented

_HEAD = """\
<!-- Made by `python -m drumroll_operator.contract_page docs/conditions.md`; changes here are lost. -->
# Conditions

What `status.conditions` of an RLJob says, as a contract: types and reasons keep their meaning, new ones may come. Each
condition has `status` (True, False or Unknown), `reason` (one word, for programs), `message` (a sentence, for people),
`lastTransitionTime` (when its status last changed) and `observedGeneration` (the spec that it was judged by).

```
kubectl wait --for=condition=Ready rlj/first-light --timeout=30m
kubectl wait --for=condition=Complete rlj/first-light --timeout=24h
kubectl get rlj first-light -o jsonpath='{.status.conditions[?(@.type=="Ready")].reason}'
```

A condition that is not there says nothing. A job that is refused (`Accepted` False) has no others but `Ready`,
`Complete` and `Failed`, unless it ran before.

## Types
"""
_PHASES: dict[str, str] = {
    "Pending": "No pod of the job has a node yet; `Accepted`, `Admitted` and the parts say why.",
    "Starting": "Pods are on nodes, and not all parts are ready yet.",
    "Running": "The job was ready once. It stays so, whatever is replaced, until it is suspended or ends.",
    "Suspended": "`spec.suspend` is true; the pods are gone or going.",
    "Complete": "All steps are trained, published and archived. For good.",
    "Failed": "The job has ended before its last step. For good.",
}
_TAIL = """
## How they hang together

- **Ready** follows the parts, in this order: {parts}. Its reason is that of the first one that is missing;
  where the API server refuses objects, it is that of `Admitted`.
- **Degraded** is about what does not pass by itself; the job may go on all the same. It has the reason of the
  gravest thing that is wrong.
- **Complete** and **Failed** latch: once one of them is true, nothing is created for the job any more, whatever
  happens to its pods. Its GPUs are given back at once; workers of a complete job have 15 s
  to end by themselves, so that their logs stay. `spec.cleanup` says what stays for how long.
- A **restart budget** (`restartPolicy` of a role) is charged by failures of processes alone. Evictions,
  preemptions, lost nodes, deleted pods and processes that found a successor are not charged. `status.restarts`
  shows what is in the count, with the last words of the last failure.
- **Deadlines** do not count the time for which a job was suspended.

The same words are the reasons of the job's Events (`kubectl describe rlj`, `drumroll status`). Programs should
branch on conditions and reasons, never on `status.phase` or on messages.
"""


def page() -> str:
    """The whole page."""
    parts = [
        _HEAD,
        _table("Type", "True when", CONDITIONS.items()),
        "\n## Phase\n\n`status.phase` sums the conditions up in one word, for people.\n",
        _table("Phase", "Meaning", [(phase, _PHASES[phase]) for phase in get_args(Phase)]),
        "\n## Reasons\n",
        _table("Reason", "Meaning, and what to do", documented().items()),
        _TAIL.format(parts=", ".join(f"`{part}`" for part in PARTS)),
    ]
    return "\n".join(part.strip("\n") + "\n" for part in parts)


def _table(first: str, second: str, rows: Iterable[tuple[str, str]]) -> str:
    lines = [f"| {first} | {second} |", "| --- | --- |"]
    lines += [f"| `{name}` | {text.replace('|', '&#124;')} |" for name, text in rows]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write the page; the exit code."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m drumroll_operator.contract_page FILE\n")
        return 2
    Path(arguments[0]).write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
