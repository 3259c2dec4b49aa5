"""How families of models write tool calls: one module a kind of syntax, `scan` puts them together.

Pure text in, calls out. A syntax is recognised by its marker, whatever the model; only forms that
could also be plain text (a bare object, a name and a brace) ask for the names of the tools or for
the model's family.
"""
