"""The scheduler service: a gRPC shell around drumroll_planner.policy."""
