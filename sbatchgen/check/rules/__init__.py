"""The rules: a small function for each mistake of a job, and a page for each rule.

A rule's page (in `pages/`, a file for each group) has the reason for the rule, and bad and good examples. The
examples are its tests. `judge` lists the rules of resolved jobs, of scripts, and of both.
"""
