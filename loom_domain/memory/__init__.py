"""Memory: four layers of what past runs left, notes in scopes, and knowledge bases.

`layers` defines the entries and the queries, `content` and `importance` what a task contributes, `scopes` the notes
that runs of one tree share, `knowledge` and `chunks` the documents, `rank_fusion` one ranking from several.
"""
