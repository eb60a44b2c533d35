"""Ends of tickets and of the job, other than by a step: failed, filtered, past the bound, covered, surplus."""

from drumroll_planner import records as r
from drumroll_planner.state import State
from drumroll_planner.steps import drop, give_back


def failed_tickets(state: State) -> list[r.Record]:
    """Tickets of which a sample failed `max_attempts` times, under every lag policy."""
    records: list[r.Record] = []
    for ticket_id in sorted(state.exhausted):
        ticket = state.tickets[ticket_id]
        reason = f"ticket {tuple(ticket_id)}, row {ticket.row}: {ticket.trouble}"
        records += give_back(ticket, "ticket failed")
        records.append(r.Ended(r.TicketEnd.FAILED, reason, (r.EndedTicket(ticket_id, ticket.num_tokens),)))
    return records


def sampling_tries(state: State) -> int:
    """Groups in a row that may be filtered before the job gives up."""
    return state.rules.prompts_per_step * state.rules.max_sampling_tries


def filtered_tickets(state: State) -> list[r.Record]:
    """Complete groups whose rewards are all equal, under dynamic sampling."""
    left = sampling_tries(state) - state.filtered_in_a_row
    ended = [r.EndedTicket(t, state.tickets[t].num_tokens) for t in sorted(state.equal)[: max(0, left)]]
    return [r.Ended(r.TicketEnd.FILTERED, "equal rewards", tuple(ended))] if ended else []


def past_the_bound(state: State) -> list[r.Record]:
    """Tickets too old for any step, which only a rewind or changed rules leave behind."""
    floor = state.window.floor
    policy = state.rules.lag_policy
    if policy == "mask" or state.no_more_steps or not any(version < floor for version in state.out):
        return []
    old = [ticket for ticket in state.tickets.values() if ticket.version is not None and ticket.version < floor]
    if policy == "drop":
        return drop(old, f"older than {floor}")
    records: list[r.Record] = []
    for ticket in old:
        records += give_back(ticket, "past the lag bound")
        records += [
            r.Discarded(ticket.id, index, "past_the_bound", sample.num_tokens)
            for index, sample in enumerate(ticket.samples)
            if sample.accepted is not None or sample.partial is not None
        ]
    return records


def covered_tickets(state: State) -> list[r.Record]:
    """Tickets of the steps that the newest checkpoint holds; one record a step."""
    return ended_by(state, state.covered)


def ended_by(state: State, covered: r.Covered | None) -> list[r.Record]:
    """The ends that a coverage brings."""
    if covered is None:
        return []
    return [
        r.Ended(
            r.TicketEnd.COVERED,
            f"checkpoint {covered.step}",
            tuple(r.EndedTicket(ticket.id, ticket.num_tokens) for ticket in step.tickets.values()),
        )
        for number, step in sorted(state.steps.items())
        if number < covered.step and step.tickets
    ]


def surplus_tickets(state: State) -> list[r.Record]:
    """What is still out when the last step is trained."""
    if not state.no_more_steps or state.trained_through < state.num_decided or not state.tickets:
        return []
    records = [record for ticket in state.tickets.values() for record in give_back(ticket, "surplus")]
    ended = tuple(r.EndedTicket(ticket.id, ticket.num_tokens) for ticket in state.tickets.values())
    return [*records, r.Ended(r.TicketEnd.SURPLUS, "the last step is done", ended)]


def job_failure(state: State) -> list[r.Record]:
    """Too many failed tickets, or nothing but filtered groups."""
    total = (state.num_steps or 0) * state.rules.prompts_per_step
    if state.rules.epochs is not None:
        total = state.rules.epochs * state.rules.num_prompts
    allowed = max(1, int(state.rules.max_failed_tickets * total))
    failed = state.counters["ended_failed"]
    if failed > allowed:
        reasons = "; ".join(state.failures)
        return [r.JobEnded(r.JobOutcome.FAILED, f"{failed} tickets failed, {allowed} may: {reasons}")]
    filtered = state.filtered_in_a_row
    if state.rules.dynamic_sampling and filtered >= sampling_tries(state):
        return [r.JobEnded(r.JobOutcome.FAILED, f"{filtered} of {filtered} groups had equal rewards")]
    return []


def job_completion(state: State) -> list[r.Record]:
    """All steps are trained and in a durable checkpoint, and every ticket has its end."""
    done = state.no_more_steps and state.covered_step >= state.num_decided and not state.tickets and not state.steps
    if not done:
        return []
    return [r.JobEnded(r.JobOutcome.COMPLETE, f"{state.num_decided} steps are trained and saved")]
