"""Parsers of families' tool calls: one module per kind of syntax; `scan` combines them.

Pure text in, calls out. A syntax is recognized by its marker, whatever the model; only forms that
could also be plain text (a bare object, a name and a brace) ask for the names of the tools or for
the model's family.
"""
