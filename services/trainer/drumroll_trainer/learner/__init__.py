"""All that imports torch: models, losses, optimizers, distributed checkpoints."""
