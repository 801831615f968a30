"""The rules: a small function for each mistake of a job, and a page for each rule.

A rule's page (in `pages/`, a file for each group) has the reason for the rule, and bad and good examples. The
examples are its tests. `judge` lists the modules by the kind of job that their rules judge.
"""
