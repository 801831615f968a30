"""What commands print with --format json: a type for each document, of which schemas/output is made.

Records of other folders are printed as they are; the other objects in a document are a TypedDict here.
"""
