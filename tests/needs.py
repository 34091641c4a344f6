"""What some tests need, in the words that say so where it is missing."""
NO_OPS = "needs mmcv's compiled operators: install a C++ compiler and run make setup"
