"""Behind `drumroll plan`."""
