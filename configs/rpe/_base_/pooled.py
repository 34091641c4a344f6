# beside the own window, one mean key of every window up to 2 windows away
backbone = dict(pooled_neighbours=2)
