"""Set-up of the development environments: ``python3.11 -m tools.setup``, which ``make setup`` calls.

Only the standard library is used, because it runs before anything is installed.
"""
