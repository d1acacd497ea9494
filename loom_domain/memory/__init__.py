"""Memory: four layers of what past runs left, notes in scopes, and knowledge bases.

`layers` defines the entries and the queries, `content` and `importance` derive them from a task, `scopes` are the notes
that runs of one tree share, `knowledge` and `chunks` are the documents, and `rank_fusion` fuses several rankings.
"""
