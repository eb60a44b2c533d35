"""The decision chain: a digest over all decisions so far, by which trainer and ledger see that they agree."""

import hashlib
import json

from drumroll_planner.records import Decided


def chain_digest(previous: str, decided: Decided) -> str:
    """SHA-256 (hexadecimal) over the chain before this step ("" before the first) and the decision.

    The decision's own `chain` does not enter. Canonical form: JSON without spaces, lists in the order of the record.
    """
    body = [
        previous,
        decided.step,
        decided.version,
        decided.lineage,
        decided.mask_below,
        [
            [
                list(ticket.ticket),
                ticket.row,
                [
                    [s.index, s.attempt, s.entry_id, s.sha256.hex(), s.oldest_version, s.num_tokens]
                    for s in ticket.samples
                ],
            ]
            for ticket in decided.tickets
        ],
    ]
    return hashlib.sha256(json.dumps(body, separators=(",", ":")).encode()).hexdigest()
