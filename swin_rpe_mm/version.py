"""The one place where the version is written; setup.cfg reads it from here."""
__version__ = '0.1.0'
