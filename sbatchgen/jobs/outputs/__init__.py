"""What commands print with --format json: a type for each document, of which schemas/output is made.

A record of the rest of the package is printed as it is; what else a document has is a TypedDict here.
"""
