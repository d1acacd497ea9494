"""Extract the text of PDF and HTML documents for knowledge bases.

`readers` starts a limited process for each document; `pdf_child` is the program that runs in it.
"""
