"""What the command line tools are made of: configs, checks before a run, processes, checkpoint files, hooks."""
