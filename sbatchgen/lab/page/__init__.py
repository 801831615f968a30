"""A page for a centre's documentation: the form of a job, its script and findings, all in the browser.

`files/` has the page: HTML, JavaScript, and what Python needs in a browser.
"""
