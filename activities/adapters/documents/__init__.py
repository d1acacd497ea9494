"""Extract the text of PDF and HTML documents for knowledge bases.

`readers` reads each document in a separate process with limited resources. `pdf_child` is the program that reads a PDF
in such a process.
"""
