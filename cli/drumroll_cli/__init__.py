"""The `drumroll` command."""
