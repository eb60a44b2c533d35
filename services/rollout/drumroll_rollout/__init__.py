"""The rollout worker: lease, generate, evaluate, stream."""
