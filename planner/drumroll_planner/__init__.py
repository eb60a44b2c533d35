"""Pure decisions: plans, the scheduling policy, audits. No clock, no network, no randomness of its own."""
