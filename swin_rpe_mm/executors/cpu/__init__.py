"""A CPU's executors: packed tokens, a few windows at a time, so that what a block makes stays in the cache."""
