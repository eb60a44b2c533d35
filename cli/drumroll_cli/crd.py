"""`drumroll crd`: the CustomResourceDefinition on standard output."""

import typer


def crd() -> None:
    """Print the CustomResourceDefinition of RLJob.

    Example: `drumroll crd | kubectl apply --server-side -f -`
    """
    from drumroll.api.crd import crd_yaml

    typer.echo(crd_yaml(), nl=False)
