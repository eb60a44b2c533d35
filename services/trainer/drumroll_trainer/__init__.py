"""The trainer: stream, batch, step, checkpoint, publish."""
