"""What a job's pods look like, and (on a cluster) what keeps them so."""
