"""Slow, literal restatements of what the package computes: every fast path is compared with one of these.

They are written from the published definitions, by plain coordinates and over all tokens of one image, and share no
code with the package.
"""
