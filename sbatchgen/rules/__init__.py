"""The rules: what a job can get wrong, one small function each, and their pages.

A rule's page (in `pages/`, one file a group) says why it is there, with a bad and a good example, which are
its tests as well. Rules of `resources` judge what a job asks for, whether it is a plan or a script; those of
the other groups judge scripts.
"""
