"""What `drumroll simulate` and `drumroll profile` are made of."""
