"""Numbers that views and metrics show of the state."""

from drumroll_planner import records as r
from drumroll_planner.admission import reserved_bytes
from drumroll_planner.state import State


def gauges(state: State, *, num_waiting_replicas: int) -> dict[str, float]:
    """Tickets by state and end, k, the lag of the tickets out, bytes, counters."""
    filling = state.filling
    lags = [(filling - version, count) for version, count in state.out.items()]
    out = sum(count for _, count in lags)
    leased = {lease.ticket for lease in state.leases.values()}
    decided = sum(len(step.tickets) for number, step in state.steps.items() if number >= state.trained_through)
    trained = sum(len(step.tickets) for number, step in state.steps.items() if number < state.trained_through)
    streamed = len(state.ready) + len(state.equal)
    values: dict[str, float] = {
        "tickets_planned": len(state.tickets) - len(leased) - streamed,
        "tickets_leased": len(leased),
        "tickets_streamed": streamed,
        "tickets_decided": decided,
        "tickets_trained": trained,
        "tickets_out": out,
        "filling_version": filling,
        "policy_lag_min": min((lag for lag, _ in lags), default=0),
        "policy_lag_mean": sum(lag * count for lag, count in lags) / out if out else 0.0,
        "policy_lag_max": max((lag for lag, _ in lags), default=0),
        "leases_live": len(state.leases),
        "replicas": len(state.replicas),
        "replicas_waiting": num_waiting_replicas,
        "stream_bytes": state.entries.num_bytes,
        "stream_bytes_reserved": reserved_bytes(state),
        "filtered_in_a_row": state.filtered_in_a_row,
    }
    values.update({f"tickets_ended_{end}": float(state.counters[f"ended_{end}"]) for end in r.TicketEnd})
    values.update({f"returned_{reason}": float(state.counters[f"returned_{reason}"]) for reason in r.ReturnReason})
    for name in ("admitted", "leased", "accepted", "accepted_tokens", "discarded_samples", "discarded_tokens"):
        values[f"{name}_count"] = float(state.counters[name])
    for name in ("rewinds", "replay_divergences", "decided"):
        values[f"{name}_count"] = float(state.counters[name])
    return values
