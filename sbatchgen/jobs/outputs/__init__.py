"""What commands print with --format json: a type for each document. schemas/output is made from these types.

Records of other folders are printed unchanged. Each other object in a document is a TypedDict here.
"""
