"""`make demo`: an audit of a folder of source code whose worker is killed on the way.

Reading order
    demo      what happens, in order: stack, run, kill, approval, proof, and everything ended
    telling   the run as lines for people, while it goes on
    proof     what the history and the live stream say about it afterwards
    sources   the code that is audited; its flaws are on purpose
"""
