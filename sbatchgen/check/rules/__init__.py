"""The rules: what a job can get wrong, a small function each, and their pages.

A rule's page (in `pages/`, one file a group) says why it is there, with bad and good examples, which are its
tests. Some rules judge resolved jobs, some scripts, some both: `judge` lists them.
"""
