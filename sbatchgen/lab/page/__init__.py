"""The page for a centre's documentation: the form of a job, its script and findings, all in the browser.

`files/` holds HTML, JavaScript, and the modules that Python needs in a browser.
"""
