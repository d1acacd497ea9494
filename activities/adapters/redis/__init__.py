"""The live stream of runs, the bus and the transcript cache on Redis.

All of them use `connection`. `stream` writes and reads the tasks of a run, `bus` and `consumer` deliver tasks to
subscribers, and `transcripts` caches what the next activity needs.
"""
