"""Folders of runs: what a start would find there, their data and curves."""
